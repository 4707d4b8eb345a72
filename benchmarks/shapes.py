"""The GPT shapes that training steps are measured at, their arithmetic, and their data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

VOCABULARY = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """B windows of T tokens, width D, H heads, L blocks; feed-forward width 4 D."""

    batch: int
    context: int
    width: int
    heads: int
    layers: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """From "8,128,128,4,4"."""
        return cls(*(int(part) for part in text.split(",")))

    def __str__(self) -> str:
        return f"{self.batch},{self.context},{self.width},{self.heads},{self.layers}"

    def flops(self) -> float:
        """Of one step: 6 per weight of a matrix and token, and attention's six products over the causal half."""
        tokens, d = self.batch * self.context, self.width
        linear = 6.0 * tokens * (self.layers * 12 * d * d + d * VOCABULARY)
        attention = self.layers * 6 * 2.0 * self.batch * self.context * self.context * d / 2
        return linear + attention

    def ids(self, step: int) -> npt.NDArray[np.int32]:
        """(B, T + 1) token ids of a step, the same for every contender."""
        generator = np.random.default_rng([7, step])
        return generator.integers(0, VOCABULARY, (self.batch, self.context + 1)).astype(np.int32)


SHAPES = (Shape(8, 128, 128, 4, 4), Shape(4, 256, 256, 8, 6), Shape(12, 64, 128, 4, 4))
