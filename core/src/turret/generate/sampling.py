"""Choosing the next token from logits, on the host and in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from turret.data.counter import WORD, Stream, checked_seed, fraction
from turret.spi.errors import ConfigError, NonFiniteError, ShapeError

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How to choose: the temperature scales first, then `top_k`, then `top_p` cut; None does not cut.

    Construction raises ConfigError, with the value, for what makes no distribution.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not _is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise ConfigError(f"got temperature {self.temperature!r}, want 0 (greedy) or a finite positive number")
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 1):
            raise ConfigError(f"got top_k {self.top_k!r}, want an integer of at least 1, or none to keep all")
        if self.top_p is not None and (not _is_number(self.top_p) or not 0 < self.top_p <= 1):
            raise ConfigError(f"got top_p {self.top_p!r}, want above 0 and at most 1, or none to keep all")
        checked_seed(self.seed)


@dataclass(frozen=True, slots=True)
class Sampler:
    """Chooses ids below `allowed`, even where logits are wider; token n depends on logits, seed and n only."""

    config: SamplingConfig
    allowed: int | None = None

    def __post_init__(self) -> None:
        if self.allowed is not None and (type(self.allowed) is not int or self.allowed < 1):
            raise ConfigError(f"got {self.allowed!r} allowed ids, want an integer of at least 1, or none for all")

    def pick(self, logits: npt.NDArray[Any], n: int) -> int:
        """The id of token n of a request, counted from 0, from logits (V,).

        Temperature 0 takes the largest logit, the first of equals; top_k and top_p do not matter then.

        Raises: ShapeError unless logits are (V,) with V > 0; NonFiniteError for NaN or +inf among the allowed logits,
        or when all of them are -inf.
        """
        if not 0 <= n < WORD:
            raise ConfigError(f"got token number {n}, want at least 0 and below 2**64")
        ids, probabilities = self._candidates(self._usable(logits))
        cumulative = probabilities.cumsum()
        point = fraction(self.config.seed, Stream.SAMPLING, (n, 0)) * cumulative[-1]
        # Strictly greater: an id of probability 0 repeats the sum before it and is never the first beyond the point.
        return int(ids[np.searchsorted(cumulative, point, side="right")])

    def probabilities(self, logits: npt.NDArray[Any]) -> Floats:
        """What `pick` draws from: (V,) or (allowed,) float64 that sum to 1, zero where cut.

        Raises: as `pick`.
        """
        usable = self._usable(logits)
        ids, probabilities = self._candidates(usable)
        spread = np.zeros(len(usable))
        spread[ids] = probabilities
        return spread

    def _candidates(self, logits: Floats) -> tuple[Indices, Floats]:
        """The ids that may be drawn, ascending, and their probabilities."""
        if self.config.temperature == 0:
            return np.array([logits.argmax()]), np.ones(1)
        ids = _largest(logits, self.config.top_k or len(logits))
        kept = logits[ids]
        with np.errstate(over="ignore"):
            probabilities: Floats = np.exp((kept - kept.max()) / self.config.temperature)
        probabilities /= probabilities.sum()
        if self.config.top_p is not None and self.config.top_p < 1:
            inside = _nucleus(probabilities, self.config.top_p)
            ids, probabilities = ids[inside], probabilities[inside] / probabilities[inside].sum()
        return ids, probabilities

    def _usable(self, logits: npt.NDArray[Any]) -> Floats:
        if logits.ndim != 1 or len(logits) == 0:
            raise ShapeError(f"got logits of shape {logits.shape}, want (V,) of one position with V > 0")
        usable: Floats = logits[: self.allowed].astype(np.float64)
        wrong = np.isnan(usable) | (usable == math.inf)
        if wrong.any():
            index = int(wrong.argmax())
            raise NonFiniteError(
                f"the logit of id {index} is {usable[index]}; the weights or the forward pass are damaged, "
                "load another checkpoint"
            )
        if usable.max() == -math.inf:
            raise NonFiniteError(
                f"all {len(usable)} logits are -inf, so no id can be chosen; a mask excludes everything"
            )
        return usable


def _largest(logits: Floats, k: int) -> Indices:
    """Ids of the k largest, ascending; of equals at the border the first."""
    if k >= len(logits):
        return np.arange(len(logits))
    border = np.partition(logits, len(logits) - k)[len(logits) - k]
    above = np.flatnonzero(logits > border)
    equal = np.flatnonzero(logits == border)
    return np.sort(np.concatenate([above, equal[: k - len(above)]]))


def _nucleus(probabilities: Floats, p: float) -> Indices:
    """Where the fewest largest probabilities are whose sum reaches p, at least one, ascending; of equals the first.

    Source: Holtzman et al. 2020, The curious case of neural text degeneration, section 3.1.
    """
    # All that lie below this, together, hold less than 1 - p: they need not be sorted.
    likely = np.flatnonzero(probabilities >= (1 - p) / len(probabilities))
    order = likely[np.argsort(-probabilities[likely], kind="stable")]
    reached = np.cumsum(probabilities[order])
    return np.sort(order[: int(np.searchsorted(reached, p, side="left")) + 1])


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
