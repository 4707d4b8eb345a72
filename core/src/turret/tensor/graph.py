"""Graph nodes and the recording switch."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .value import Parameter, Tensor

Native = Any
"""An array of the backend's own library; core looks at nothing but its shape."""

Vjp = Callable[[Native, tuple[bool, ...]], tuple[Native | None, ...]]
"""(gradient of the output, which inputs want one) -> one gradient or None per input."""

_recording: ContextVar[bool] = ContextVar("turret_recording", default=True)
_serials = itertools.count()


class Node:
    """One recorded operation with one output; of several outputs each has a node, and one behind them has the VJP.

    Parents are nodes or leaves, None where no gradient is wanted; not tensors, so that a value lives only as long as
    some VJP needs it. `vjp` is None once the graph was freed. `watched` remembers the version of every parameter that
    the operation read.
    """

    __slots__ = ("name", "needs", "parents", "serial", "vjp", "watched")

    def __init__(
        self,
        name: str,
        parents: Sequence[Node | Tensor | None],
        needs: tuple[bool, ...],
        vjp: Vjp,
        watched: Sequence[tuple[Parameter, int]],
    ) -> None:
        self.name = name
        self.parents, self.needs = parents, needs
        self.vjp: Vjp | None = vjp
        self.watched = watched
        self.serial = next(_serials)

    def free(self) -> None:
        """Drops saved values and edges."""
        self.vjp, self.parents, self.watched = None, (), ()


class Parts:
    """The gradients of an operation with several outputs, None for those that nobody used."""

    __slots__ = ("gradients",)

    def __init__(self, count: int, index: int, gradient: Native) -> None:
        self.gradients: list[Native | None] = [None] * count
        self.gradients[index] = gradient

    def merge(self, other: Parts) -> Parts:
        """Both together; every output has one port, so no two name the same."""
        for index, gradient in enumerate(other.gradients):
            if gradient is not None:
                self.gradients[index] = gradient
        return self


def is_recording() -> bool:
    """Whether operations add nodes in this context."""
    return _recording.get()


def next_serial() -> int:
    """A number below that of every node recorded from now on."""
    return next(_serials)


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Operations inside record nothing; for inference and for updates by hand."""
    token = _recording.set(False)
    try:
        yield
    finally:
        _recording.reset(token)


@contextlib.contextmanager
def enable_grad() -> Iterator[None]:
    """Operations inside record, also within `no_grad`."""
    token = _recording.set(True)
    try:
        yield
    finally:
        _recording.reset(token)
