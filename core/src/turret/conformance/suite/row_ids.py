"""Which rows a write of M new rows meets."""

from __future__ import annotations

import numpy as np

from ..given import Draw, Given, View


def distinct(draw: Draw, count: int, size: int, view: View = "whole") -> Given:
    """Out of order; the last row among them."""
    ids = draw.rng.permutation(size)
    last = int(np.flatnonzero(ids == size - 1)[0])
    ids[[last, 0]] = ids[[0, last]]
    return draw.of(ids[:count], "int32", view)


def repeated(draw: Draw, count: int, size: int) -> Given:
    """Any number of times each, the last row among them."""
    ids = draw.rng.integers(0, size, count)
    ids[count // 2 : count // 2 + 1] = size - 1
    return draw.of(ids, "int32")
