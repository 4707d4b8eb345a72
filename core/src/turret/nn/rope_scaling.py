"""Frequencies of rotary positions, plain or stretched for contexts longer than a model was first trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from turret.spi import ConfigError

ScalingKind = Literal["linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How frequencies are stretched by `factor`.

    linear: all alike. llama3: those with wavelengths above original_context / low, none below original_context / high,
    in between both mixed. yarn: dimensions that turn less than `slow` times in original_context, none that turn more
    than `fast` times; cos and sin are multiplied by `attention`, by default 0.1 ln(factor) + 1.
    Source: Chen et al. 2023 (linear); Llama 3.1, as `rope_type: llama3`; Peng et al. 2023 (YaRN), section 3.
    """

    kind: ScalingKind
    factor: float
    original_context: int = 1
    low: float = 1.0
    high: float = 4.0
    fast: float = 32.0
    slow: float = 1.0
    attention: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(ScalingKind):
            raise ConfigError(f"rope scaling {self.kind!r:.40}; wanted one of {', '.join(get_args(ScalingKind))}")
        for name in ("factor", "low", "high", "fast", "slow", "original_context"):
            _require_number(name, getattr(self, name))
        if self.attention is not None:
            _require_number("attention", self.attention)
        if type(self.original_context) is not int:
            raise ConfigError(f"rope scaling: original_context is {self.original_context!r:.40}; wanted a whole number")
        if self.factor < 1:
            raise ConfigError(f"rope scaling: factor is {self.factor}; wanted at least 1")
        if self.kind == "llama3" and not self.low < self.high:
            raise ConfigError(f"rope scaling: low is {self.low} and high is {self.high}; wanted low < high")
        if self.kind == "yarn" and not self.slow < self.fast:
            raise ConfigError(f"rope scaling: slow is {self.slow} and fast is {self.fast}; wanted slow < fast")

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by."""
        if self.kind != "yarn":
            return 1.0
        return 0.1 * math.log(self.factor) + 1.0 if self.attention is None else float(self.attention)


def frequencies(head_size: int, theta: float, scaling: RopeScaling | None) -> npt.NDArray[np.float64]:
    """Radians a position, (d/2,): theta^(-2i/d), stretched. Source: Su et al. 2021, eq. 15."""
    plain = theta ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    if scaling is None:
        return plain
    stretched = plain / scaling.factor
    if scaling.kind == "linear":
        return stretched
    kept = _kept_llama3(plain, scaling) if scaling.kind == "llama3" else _kept_yarn(head_size, theta, scaling)
    return kept * plain + (1 - kept) * stretched


def _kept_llama3(plain: npt.NDArray[np.float64], scaling: RopeScaling) -> npt.NDArray[np.float64]:
    """Share of each frequency that stays as it is, (d/2,)."""
    turns = scaling.original_context * plain / (2 * math.pi)
    return np.clip((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0)


def _kept_yarn(head_size: int, theta: float, scaling: RopeScaling) -> npt.NDArray[np.float64]:
    """Share of each frequency that stays as it is, (d/2,)."""

    def dimension(turns: float) -> float:
        """The dimension, of head_size, that turns so often in the original context."""
        return head_size * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(dimension(scaling.fast)), 0)
    last = min(math.ceil(dimension(scaling.slow)), head_size - 1)
    wide = last - first if last != first else 0.001
    return 1 - np.clip((np.arange(head_size // 2, dtype=np.float64) - first) / wide, 0.0, 1.0)


def _require_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigError(f"rope scaling: {name} is {value!r:.40}; wanted a positive number")
