"""Tables of rotary position angles."""

from __future__ import annotations

import math

import numpy as np

from turret.spi import ConfigError, ShapeError
from turret.tensor import Tensor, ops, tensor

from .module import Module
from .rope_scaling import RopeScaling, frequencies

Rotation = tuple[Tensor, Tensor]
"""cos and sin for the positions of one step, each (T, d/2), or (B, T, d/2) where rows differ."""

ROWS = 4096
"""Positions whose angles, in float64, are in memory at once: contexts of a million are published."""


class Rotary(Module):
    """cos and sin of position * theta^(-2i/d) for `context` positions, made on the host in float64.

    Source: Su et al. 2021, eq. 15. Half-split pairs. scaling: how frequencies are stretched, if they are.
    """

    def __init__(
        self, context: int, head_size: int, *, theta: float = 10_000.0, scaling: RopeScaling | None = None
    ) -> None:
        if context < 1:
            raise ConfigError(f"rotary context {context}; wanted at least 1 position")
        if head_size < 2 or head_size % 2:
            raise ConfigError(f"rotary head size {head_size}; wanted an even number: positions turn pairs")
        if not 0 < theta < math.inf:
            raise ConfigError(f"rotary theta {theta}; wanted a positive number")
        self.context = context
        turns = frequencies(head_size, theta, scaling)
        magnitude = 1.0 if scaling is None else scaling.magnitude
        cos, sin = np.empty((2, context, len(turns)), np.float32)
        for start in range(0, context, ROWS):
            stop = min(start + ROWS, context)
            angles = np.outer(np.arange(start, stop, dtype=np.float64), turns)
            cos[start:stop], sin[start:stop] = magnitude * np.cos(angles), magnitude * np.sin(angles)
        self.cos, self.sin = tensor(cos), tensor(sin)

    def __call__(self, start: int, count: int) -> Rotation:
        """The pair cos, sin, each (count, d/2), of positions start..start+count-1."""
        stop = start + count
        if not 0 <= start <= stop <= self.context:
            raise ShapeError(
                f"positions {start} to {stop - 1} of a context of {self.context}; wanted 0 <= position < it"
            )
        return self.cos[start:stop], self.sin[start:stop]

    def at(self, places: Tensor) -> Rotation:
        """The pair cos, sin of positions in an int32 (T,) or (B, T): the caller's promise, all in the context."""
        return ops.gather_rows(self.cos, places), ops.gather_rows(self.sin, places)
