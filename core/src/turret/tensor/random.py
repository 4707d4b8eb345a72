"""Random tensors as a stream: the same seed gives the same numbers, captured or not, and again where asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from turret.registry import OpenBackend, current
from turret.spi import ConfigError, DType, GraphError, Shape, ShapeError

from .graph import Native
from .tracing import capturing
from .value import Tensor

Kind = Literal["uniform", "normal", "bernoulli"]


class RandomStream:
    """Draws number 0, 1, 2, ... of a seed; `counter` is the number of the next one.

    As part of a captured step's state its draws are made before each call and enter the program as arrays, so that
    captured and eager steps see the same numbers. Source of the numbers: the backend's `random` slot.
    """

    def __init__(self, seed: int, *, backend: OpenBackend | None = None, counter: int = 0) -> None:
        for name, number in (("seed", seed), ("counter", counter)):
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 64:
                raise ConfigError(f"a random stream got {name} {number!r:.80}; wanted an int, 0 <= {name} < 2**64")
        self.seed, self.counter = seed, counter
        self.backend = backend or current()

    def uniform(self, *shape: int) -> Tensor:
        """float32 of a shape, 0 <= x < 1."""
        return self._next(Draw(stream=self, kind="uniform", shape=shape))

    def normal(self, *shape: int) -> Tensor:
        """float32 of a shape, mean 0 and variance 1."""
        return self._next(Draw(stream=self, kind="normal", shape=shape))

    def bernoulli(self, probability: float, *shape: int) -> Tensor:
        """bool of a shape, True where a uniform number is below `probability`; the same on every backend."""
        if not 0 <= probability <= 1:
            raise ConfigError(f"bernoulli got the probability {probability}; wanted 0 <= probability <= 1")
        return self._next(Draw(stream=self, kind="bernoulli", shape=shape, probability=probability))

    def _next(self, draw: Draw) -> Tensor:
        for size in draw.shape:
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise ShapeError(f"{draw.kind} got the shape {draw.shape!r:.80}; wanted sizes of at least 0")
        playing, tracing = _playing.get(), capturing()
        if playing is not None:
            drawn = playing.next(draw)
            value = drawn.draw.at(drawn.counter) if drawn.value is None else drawn.value
        elif tracing is not None:
            value = tracing.draw(draw)
            drawn = _Drawn(draw=draw, counter=self.counter, value=value)
        else:
            value = draw.at(self.counter)
            drawn = _Drawn(draw=draw, counter=self.counter)
            self.counter += 1
        for tape in _taping.get():
            tape.append(drawn)
        return Tensor(value, self.backend, draw.dtype)

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
    probability: float = 1.0

    @property
    def dtype(self) -> DType:
        return "bool" if self.kind == "bernoulli" else "float32"

    def make(self) -> Native:
        """The stream's next numbers."""
        made = self.at(self.stream.counter)
        self.stream.counter += 1
        return made

    def at(self, counter: int) -> Native:
        """These numbers as the draw number `counter` of the stream."""
        stream, tools = self.stream, self.stream.backend.tools
        if self.kind == "normal":
            return tools.random.normal(self.shape, key=stream.seed, counter=counter)
        uniform = tools.random.uniform(self.shape, key=stream.seed, counter=counter)
        return uniform if self.kind == "uniform" else tools.elementwise.less(uniform, self.probability)

    def is_like(self, other: Draw) -> bool:
        """Whether both give the same numbers at the same counter."""
        mine, its = self.stream, other.stream
        return (mine.seed, self.kind, self.shape, self.probability, mine.backend) == (
            *(its.seed, other.kind, other.shape, other.probability, its.backend),
        )

    def placeholder(self) -> Native:
        """Zeros, where only the shape counts."""
        return self.stream.backend.tools.storage.full(self.shape, 0.0, dtype=self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """What a draw gave: its number in the stream, from which it is made again, or the array of a program."""

    draw: Draw
    counter: int
    value: Native | None = None


class Tape:
    """The draws of one run of a function, in order."""

    __slots__ = ("_drawn",)

    def __init__(self) -> None:
        self._drawn: list[_Drawn] = []

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Draws inside are noted."""
        token = _taping.set((*_taping.get(), self._drawn))
        try:
            yield
        finally:
            _taping.reset(token)

    @contextlib.contextmanager
    def playing(self) -> Iterator[None]:
        """Draws inside give the numbers noted, and leave their stream where it is.

        Raises: GraphError where they are not those noted.
        """
        player = _Player(self._drawn)
        tokens = _playing.set(player), _taping.set(())
        try:
            yield
        finally:
            _playing.reset(tokens[0])
            _taping.reset(tokens[1])
        player.finish()


class _Player:
    __slots__ = ("_count", "_drawn")

    def __init__(self, drawn: Sequence[_Drawn]) -> None:
        self._drawn, self._count = drawn, 0

    def next(self, wanted: Draw) -> _Drawn:
        drawn = self._drawn[self._count] if self._count < len(self._drawn) else None
        if drawn is None or not drawn.draw.is_like(wanted):
            raise GraphError(
                f"draw {self._count + 1} of a function that ran again is {wanted.kind} {wanted.shape}, which the first "
                f"run did not draw there; it must draw the same numbers in the same order"
            )
        self._count += 1
        return drawn

    def finish(self) -> None:
        if self._count != len(self._drawn):
            raise GraphError(
                f"a function drew random numbers {len(self._drawn)} times at first and {self._count} times when it ran "
                f"again; it must draw the same numbers in the same order"
            )


_taping: ContextVar[tuple[list[_Drawn], ...]] = ContextVar("turret_taping", default=())
_playing: ContextVar[_Player | None] = ContextVar("turret_playing", default=None)
