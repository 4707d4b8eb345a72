"""Mixed precision of a run: whether the device gains by it, and the scale that keeps float16 gradients in range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from turret.registry import OpenBackend
from turret.spi import HALVES, CheckpointError, ConfigError, DType

from .values import shown

PRECISIONS: dict[str, DType | None] = {"float32": None, "bfloat16": "bfloat16", "float16": "float16"}
"""What `--precision` may say, and the format that layers compute in where it is not that of the parameters."""


def compute_format(precision: str, backend: OpenBackend, *, resumed: bool = False) -> DType | None:
    """The format for `turret.nn.computing`. resumed: the run keeps its precision, so only a backend can be advised.

    Raises: ConfigError for another word, and where the device lacks the format or gains nothing by it.
    """
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ConfigError(f"precision {shown(precision)}; wanted one of {', '.join(PRECISIONS)}")
    dtype, device = PRECISIONS[precision], backend.tools.storage.device()
    if dtype is None:
        return None
    fast = device.dtypes - device.storage_only
    instead = (
        f"a resumed run keeps its precision, so choose a backend that computes in {dtype}"
        if resumed
        else f"choose {', '.join(['float32', *sorted(fast & HALVES)])}"
    )
    if dtype not in device.dtypes:
        raise ConfigError(f"precision {precision}: {backend.spec} ({device.name}) has no {dtype}; {instead}")
    if dtype not in fast:
        raise ConfigError(
            f"precision {precision}: {backend.spec} ({device.name}) has no arithmetic in {dtype} and would convert "
            f"around every operation, which is slower than float32; {instead}"
        )
    return dtype


class LossScale:
    """The factor of the loss before its gradients, a power of two; gradients are divided by it before they are used.

    Halved where a gradient overflowed, and that step is skipped; doubled after `patience` steps without. `skipped`
    counts. Source: Micikevicius et al. 2018, section 3.2 (dynamic loss scaling).
    """

    LEAST, GREATEST = 1.0, 2.0**24

    def __init__(self, value: float = 2.0**16, *, patience: int = 2000) -> None:
        if not self._is_scale(value):
            raise ConfigError(
                f"loss scale {shown(value)}; wanted a power of two from {self.LEAST:g} to {self.GREATEST:g}"
            )
        if not _is_count(patience) or patience < 1:
            raise ConfigError(f"loss scale patience {shown(patience)}; wanted a whole number of at least 1 step")
        self.value, self.patience = float(value), patience
        self.good, self.skipped = 0, 0

    def passed(self) -> None:
        """A step was committed."""
        self.good += 1
        if self.good >= self.patience:
            self.value, self.good = min(self.value * 2, self.GREATEST), 0

    def overflowed(self) -> bool:
        """A step's gradients were not finite; False where the scale cannot be blamed, being the least already."""
        if self.value <= self.LEAST:
            return False
        self.value, self.good, self.skipped = self.value / 2, 0, self.skipped + 1
        return True

    def state(self) -> dict[str, float | int]:
        """Plain values for a checkpoint."""
        return {"value": self.value, "good": self.good, "skipped": self.skipped}

    def load(self, state: Mapping[str, Any], *, step: int) -> None:
        """Takes what `state` gave after `step` steps. Raises: CheckpointError; nothing is changed then."""
        value, good, skipped = (state.get(name) for name in ("value", "good", "skipped"))
        # Every step is a good one or a skipped one; good ones before the last change of the scale are counted no more.
        if (
            not isinstance(value, float)
            or not self._is_scale(value)
            or not _is_count(good)
            or not _is_count(skipped)
            or not (0 <= good < self.patience and skipped >= 0 and good + skipped <= step)
        ):
            raise CheckpointError(
                f"loss scale {shown(dict(state))} at step {step}; wanted value (a power of two from {self.LEAST:g} to "
                f"{self.GREATEST:g}), good (below {self.patience}) and skipped (together at most {step}); use another "
                f"checkpoint"
            )
        self.value, self.good, self.skipped = value, good, skipped

    def _is_scale(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return self.LEAST <= value <= self.GREATEST and math.frexp(value)[0] == 0.5


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
