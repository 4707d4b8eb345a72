"""Whether a run or a model can fit into this machine's memory at all, asked before anything is allocated."""

from __future__ import annotations

import os

from turret.models import DecoderConfig, MiniConfig
from turret.spi import ConfigError

from .values import shown

FLOAT = 4
"""Bytes of a float32."""
WINDOW = 8
"""Bytes of a token, an int32 in a batch's inputs and one in its targets."""
BLOCK = 10_000
"""Bytes of a block's Python objects, beside its numbers."""
PAGES = 100_000
"""Pages of optimizer state that a run may have: every step makes some arrays for each."""


def require_room(
    config: DecoderConfig | MiniConfig, *, tokens: int = 0, held: int = 0, copies: int = 1, saving: bool = False
) -> None:
    """A lower bound that only the impossible exceeds.

    tokens: in one forward pass that is kept for a gradient; held: tokens of batches kept on the host; copies: of every
    parameter (with gradient and two moments: 4). saving: activations are made again, or kept in halves.
    Raises: ConfigError saying how much the sizes need and how much there is.
    """
    inside = 0 if saving else 3 * config.width + config.feed_forward
    kept = config.blocks * (config.width + inside) + config.vocabulary
    activations = tokens * kept // (2 if saving else 1)
    table = config.context * (config.width // config.heads)
    numbers = copies * config.parameter_count() + activations + table
    needed = FLOAT * numbers + WINDOW * held + BLOCK * config.blocks
    if needed > (there := machine_memory()):
        raise ConfigError(
            f"these sizes need at least {_gigabytes(needed)} GB of memory and this machine has {_gigabytes(there)}; "
            f"make layers, width, ff, context, batch, accumulate or eval_batches smaller"
        )


def require_few_pages(config: DecoderConfig | MiniConfig, page: int) -> None:
    """Raises: ConfigError where pages of `page` elements for every parameter are more than `PAGES`."""
    parameters = config.parameter_count()
    if (pages := -(-parameters // page)) > PAGES:
        raise ConfigError(
            f"optimizer-page {page} cuts the {shown(parameters)} parameters into {shown(pages)} pages, each of them an "
            f"array in every step; wanted at least {shown(-(-parameters // PAGES))} for this model"
        )


def machine_memory() -> int:
    """Bytes of memory, used or not; without a limit where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**63


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f}" if size < 1e18 else "over a billion"
