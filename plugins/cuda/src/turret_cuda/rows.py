"""How rows along a last axis are shared out over the threads of a device."""

from __future__ import annotations

import math
from typing import Any

from .arrays import suffix
from .library import X
from .place import MOST_BLOCKS, THREADS, Place

WARP = 32
SHORT, LONG = 1024, 4096  # up to the first a row is the work of one warp; beyond the second, of the largest block
MOST_THREADS = 1024


def over_rows(place: Place, file: str, name: str, x: X, *operands: Any) -> None:
    """Queues the kernel for x's dtype over x's rows; nothing where there are none.

    After `operands` it gets the number of rows, their length, and how many neighbouring threads share one.
    """
    count, size = math.prod(x.shape[:-1]), x.shape[-1]
    if not count:
        return
    team = WARP if size <= SHORT else THREADS if size <= LONG else MOST_THREADS
    threads = max(team, THREADS)
    blocks = min(-(-count // (threads // team)), MOST_BLOCKS)
    place.launch(file, f"{name}_{suffix(x)}", blocks, threads, *operands, count, size, team)
