"""Whether a step is being captured at this moment, what it may touch then, and which line broke a rule."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from turret.spi import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .graph import Native
    from .random import Draw
    from .value import Parameter, Tensor

V = TypeVar("V")


@runtime_checkable
class Stateful(Protocol):
    """What a captured step may read and change besides its arguments: a module, an optimizer, a cache, random numbers.

    A captured step takes the arrays of these tensors as inputs and stores the new ones in the same tensors, so the set
    of tensors must not depend on anything but the object's structure.
    """

    def held_tensors(self) -> Iterable[Tensor]:
        """Every tensor that a step may read or replace."""
        ...

    def replaced_tensors(self) -> Iterable[Tensor]:
        """Those among them that a step replaces. Their arrays are given to the device at every call and dead then."""
        ...

    def before_step(self) -> None:
        """Called before each run of a captured step: computes on the host what changes from step to step."""
        ...

    def after_step(self, again: Callable[[], object]) -> None:
        """Called after each run of a program whose step called `stepping(self)`, with the new arrays in place.

        again: runs the same step once more, operation by operation, to find out what went wrong.
        Raises: what the step would have raised on the host.
        """
        ...


class Tracing:
    """One step while it is being captured: the tensors it may use, and the objects that made their step in it."""

    def __init__(
        self, state: Iterable[Stateful], held: Iterable[Tensor], drawn: Sequence[Native], *, giving: bool
    ) -> None:
        self.giving = giving
        self._state = {id(each) for each in state}
        self.held = {id(t) for t in held}
        self._drawn = drawn
        self.draws: list[Draw] = []
        self.stepped: list[Stateful] = []
        self.verdicts: list[Tensor] = []

    def check(self, name: str, parameter: Parameter) -> None:
        """Raises: CaptureError for a parameter whose value the program would keep for ever."""
        if id(parameter) not in self.held:
            raise CaptureError(
                f"{name} reads a parameter of shape {parameter.shape} at {user_line()}, which is not part of the "
                f"captured state: the program would keep today's value; pass its module in capture(..., state=[...])"
            )

    def draw(self, wanted: Draw) -> Native:
        """The array that stands for these random numbers; zeros where the tracing begins to learn of them.

        Raises: CaptureError for numbers of a stream that is not captured.
        """
        if id(wanted.stream) not in self._state:
            raise CaptureError(
                f"random numbers at {user_line()} come from a stream outside the captured state: the program would "
                f"repeat them; pass the stream in capture(..., state=[...])"
            )
        self.draws.append(wanted)
        place = len(self.draws) - 1
        return self._drawn[place] if place < len(self._drawn) else wanted.placeholder()

    def note(self, who: Stateful, what: str) -> None:
        """Counts a step. Raises: CaptureError for the second one, and for an object that is not captured."""
        if id(who) not in self._state:
            raise CaptureError(
                f"{what} at {user_line()} belongs to a {type(who).__name__} outside the captured state; pass it in "
                f"capture(..., state=[...])"
            )
        if any(each is who for each in self.stepped):
            raise CaptureError(f"{what} is called twice in one captured step, again at {user_line()}; capture one step")
        self.stepped.append(who)


_ambient: list[ContextVar[Any]] = []


def shapes_programs(variable: ContextVar[V]) -> ContextVar[V]:
    """Makes the variable's value, which must be hashable, part of what a program was made for. Returns the variable."""
    _ambient.append(variable)
    return variable


def ambient() -> tuple[object, ...]:
    """What such variables hold in this context."""
    return tuple(variable.get() for variable in _ambient)


_explaining: ContextVar[bool] = ContextVar("turret_explaining", default=False)
_tracing: ContextVar[Tracing | None] = ContextVar("turret_tracing", default=None)


def capturing() -> Tracing | None:
    """The capture in progress in this context, or None: operations run as they are called."""
    return _tracing.get()


def explaining() -> bool:
    """Whether a refused step runs once more to find out why: nothing may be stored, and what is wrong is raised."""
    return _explaining.get()


@contextlib.contextmanager
def explanation() -> Iterator[None]:
    """A step inside is run for its error alone."""
    token = _explaining.set(True)
    try:
        yield
    finally:
        _explaining.reset(token)


def stepping(who: Stateful, what: str, verdict: Tensor | None = None) -> bool:
    """Whether a step is being captured, and then notes that `who` makes its step in it.

    verdict: a tensor of the state, bool of rank 0, that says after the step whether it counts; where one of a program's
    verdicts is False, the program keeps the whole state as it was.
    Raises: CaptureError as `Tracing.note`.
    """
    tracing = _tracing.get()
    if tracing is None:
        return False
    tracing.note(who, what)
    if verdict is not None:
        tracing.verdicts.append(verdict)
    return True


def giving() -> bool:
    """Whether a step may write its new state into the old arrays; not where a verdict may still choose the old ones."""
    tracing = _tracing.get()
    return tracing is None or tracing.giving


def refuse_host(what: str, instead: str) -> None:
    """Raises: CaptureError where a step is being captured; `instead` is what to do."""
    if _tracing.get() is not None:
        raise CaptureError(
            f"{what} at {user_line()} while its step is being captured, where arrays have no values yet; {instead}"
        )


@contextlib.contextmanager
def tracing(
    state: Iterable[Stateful], held: Iterable[Tensor], drawn: Sequence[Native], *, giving: bool
) -> Iterator[Tracing]:
    """Operations inside belong to one program, which gets the random numbers it is known to need."""
    made = Tracing(state, held, drawn, giving=giving)
    token = _tracing.set(made)
    try:
        yield made
    finally:
        _tracing.reset(token)


def user_line() -> str:
    """`file:line` of the innermost frame that belongs neither to turret nor to a library."""
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        found.append((frame, frame.f_lineno))
        frame = frame.f_back
    return _choose(found)


def line_of(error: BaseException) -> str:
    """The same of where `error` was first raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    return _choose([*traceback.walk_tb(error.__traceback__)][::-1])


def _choose(innermost_first: list[tuple[FrameType, int]]) -> str:
    for frame, line in innermost_first:
        if not _is_library(frame):
            return f"{frame.f_code.co_filename}:{line}"
    frame, line = innermost_first[-1]
    return f"{frame.f_code.co_filename}:{line}"


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@functools.cache
def _packages() -> frozenset[str]:
    """turret and its installed plugins."""
    points = importlib.metadata.entry_points(group="turret")
    return frozenset({"turret", *(point.module.partition(".")[0] for point in points)})


def _is_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in _packages() or frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen"))
