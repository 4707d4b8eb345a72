"""What a packed weight may be called in a file."""

from __future__ import annotations

from collections.abc import Mapping

from turret.spi import ConfigError
from turret.tensor.ops.quantized import shown

from .weight import PackedWeight

STATE = "quant_state.bitsandbytes__"
"""Behind a dot it ends the name of a weight in a file of bitsandbytes."""


def require_weights(weights: Mapping[str, PackedWeight]) -> None:
    """Raises: ConfigError for what is no mapping, no name that a file can hold, or no packed weight."""
    if not isinstance(weights, Mapping):
        raise ConfigError(f"packed weights to save are {type(weights).__name__}; wanted a mapping of names to them")
    for name, weight in weights.items():
        if not _is_name(name):
            raise ConfigError(
                f"a packed weight to save is named {shown(name)}; wanted text that is not empty, is valid Unicode, is "
                f"not '__metadata__' and has no '.{STATE}' in it"
            )
        if not isinstance(weight, PackedWeight):
            raise ConfigError(
                f"{name:.80} to save is {type(weight).__name__}; wanted a PackedWeight, which PackedWeight.pack makes"
            )


def _is_name(name: object) -> bool:
    if not isinstance(name, str) or name in ("", "__metadata__") or f".{STATE}" in name:
        return False
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True
