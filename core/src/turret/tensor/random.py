"""Random tensors as a stream: the same seed gives the same numbers on one backend, captured or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from turret.registry import OpenBackend, current
from turret.spi import ConfigError, Shape

from .graph import Native
from .tracing import capturing
from .value import Tensor

Kind = Literal["uniform", "normal"]


class RandomStream:
    """Draws number 0, 1, 2, ... of a seed; `counter` is the number of the next one.

    As part of a captured step's state its draws are made before each call and enter the program as arrays, so that
    captured and eager steps see the same numbers. Source of the numbers: the backend's `random` slot.
    """

    def __init__(self, seed: int, *, backend: OpenBackend | None = None, counter: int = 0) -> None:
        if seed < 0 or counter < 0:
            raise ConfigError(f"a random stream got seed {seed} and counter {counter}; wanted both at least 0")
        self.seed, self.counter = seed, counter
        self.backend = backend or current()

    def uniform(self, *shape: int) -> Tensor:
        """float32 of a shape, 0 <= x < 1."""
        return self._next("uniform", shape)

    def normal(self, *shape: int) -> Tensor:
        """float32 of a shape, mean 0 and variance 1."""
        return self._next("normal", shape)

    def _next(self, kind: Kind, shape: Shape) -> Tensor:
        draw, tracing = Draw(stream=self, kind=kind, shape=shape), capturing()
        return Tensor(draw.make() if tracing is None else tracing.draw(draw), self.backend, "float32")

    def held_tensors(self) -> Iterable[Tensor]:
        """None: its state is a count on the host."""
        return ()

    def replaced_tensors(self) -> Iterable[Tensor]:
        """None."""
        return ()

    def before_step(self) -> None:
        """Nothing: a program asks for its own draws."""

    def after_step(self, again: Callable[[], object]) -> None:
        """Nothing to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Which numbers a place in a program needs anew at every call."""

    stream: RandomStream
    kind: Kind
    shape: Shape

    def make(self) -> Native:
        """The stream's next numbers."""
        stream, slot = self.stream, self.stream.backend.tools.random
        method = slot.uniform if self.kind == "uniform" else slot.normal
        made = method(self.shape, key=stream.seed, counter=stream.counter)
        stream.counter += 1
        return made

    def placeholder(self) -> Native:
        """Zeros, where only the shape counts."""
        return self.stream.backend.tools.storage.full(self.shape, 0.0, dtype="float32")
