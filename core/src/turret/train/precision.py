"""Mixed precision of a run: whether the device gains by it, and the scale that keeps float16 gradients in range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from turret.registry import OpenBackend
from turret.spi import HALVES, CheckpointError, ConfigError, DType

PRECISIONS: dict[str, DType | None] = {"float32": None, "bfloat16": "bfloat16", "float16": "float16"}
"""What `--precision` may say, and the format that layers compute in where it is not that of the parameters."""


def compute_format(precision: str, backend: OpenBackend) -> DType | None:
    """The format for `turret.nn.computing`.

    Raises: ConfigError for another word, and where the device lacks the format or gains nothing by it.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision {precision!r}; wanted one of {', '.join(PRECISIONS)}")
    dtype, device = PRECISIONS[precision], backend.tools.storage.device()
    if dtype is None:
        return None
    fast = device.dtypes - device.storage_only
    instead = ", ".join(["float32", *sorted(fast & HALVES)])
    if dtype not in device.dtypes:
        raise ConfigError(f"precision {precision}: {backend.spec} ({device.name}) has no {dtype}; choose {instead}")
    if dtype not in fast:
        raise ConfigError(
            f"precision {precision}: {backend.spec} ({device.name}) has no arithmetic in {dtype} and would convert "
            f"around every operation, which is slower than float32; choose {instead}"
        )
    return dtype


class LossScale:
    """The factor of the loss before its gradients, a power of two; gradients are divided by it before they are used.

    Halved where a gradient overflowed, and that step is skipped; doubled after `patience` steps without. `skipped`
    counts. Source: Micikevicius et al. 2018, section 3.2 (dynamic loss scaling).
    """

    LEAST, GREATEST = 1.0, 2.0**24

    def __init__(self, value: float = 2.0**16, *, patience: int = 2000) -> None:
        if not self.LEAST <= value <= self.GREATEST or math.frexp(value)[0] != 0.5:
            raise ConfigError(f"loss scale {value}; wanted a power of two from {self.LEAST:g} to {self.GREATEST:g}")
        if patience < 1:
            raise ConfigError(f"loss scale patience {patience}; wanted at least 1 step")
        self.value, self.patience = value, patience
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
        if (
            not isinstance(value, float)
            or not self.LEAST <= value <= self.GREATEST
            or math.frexp(value)[0] != 0.5
            or not isinstance(good, int)
            or not isinstance(skipped, int)
            or not (0 <= good < self.patience and 0 <= skipped <= step)
        ):
            raise CheckpointError(
                f"loss scale {dict(state)!r:.200} at step {step}; wanted value (a power of two from {self.LEAST:g} to "
                f"{self.GREATEST:g}), good (below {self.patience}) and skipped (at most {step}); use another checkpoint"
            )
        self.value, self.good, self.skipped = value, good, skipped
