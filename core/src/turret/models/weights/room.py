"""Whether a model can fit into this machine's memory at all, asked before anything is allocated."""

from __future__ import annotations

import os

from turret.models.decoder import DecoderConfig
from turret.models.mini import MiniConfig
from turret.spi import ConfigError

FLOAT = 4
BLOCK = 10_000
"""Bytes of a block's Python objects, beside its numbers."""
PACKED = 0.5
"""Bytes of a packed value without its scales."""

MOST_POSITIONS = 2**23
"""Twice the longest published context: tables of more would take minutes, whatever the file holds."""


def require_room(config: DecoderConfig | MiniConfig, *, packed: bool = False) -> None:
    """A lower bound that only the impossible exceeds; packed: linear weights take 4 bits.

    Raises: ConfigError saying how much the model needs and how much there is, and for a context beyond any model.
    """
    floats = config.vocabulary * config.width * (1 if config.tied_head else 2)
    linear = config.parameter_count() - floats
    positions = 2 * config.context * (config.size_of_head // 2) if isinstance(config, MiniConfig) else 0
    needed = FLOAT * (floats + positions) + (PACKED if packed else FLOAT) * linear + BLOCK * config.blocks
    if needed > (there := machine_memory()):
        raise ConfigError(
            f"a model of {config.parameter_count():,} parameters and a context of {config.context:,} needs at least "
            f"{needed / 1e9:,.1f} GB of memory and this machine has {there / 1e9:,.1f}; take a smaller model"
            f"{'' if packed else ', or quantize=' + repr('nf4')}, or set context lower"
        )
    if positions and config.context > MOST_POSITIONS:
        raise ConfigError(
            f"a context of {config.context:,} positions; wanted at most {MOST_POSITIONS:,}: set context lower"
        )


def machine_memory() -> int:
    """Bytes of memory, used or not; without a limit where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**63
