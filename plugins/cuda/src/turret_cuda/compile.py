"""The compile slot: CUDA graphs of whole functions."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .graph import Graph, capture
from .library import X
from .place import Place

Function = Callable[..., tuple[X, ...]]
Signature = tuple[tuple[tuple[int, ...], object], ...]


class CudaCompile:
    """A function is captured once for every combination of shapes and dtypes, and replayed from then on.

    It is captured again where a large array that is not donated comes from another place in memory than before; from
    then on that argument is copied at every call.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def compile(self, fn: Function, /, *, donate: tuple[int, ...] = ()) -> Function:
        return _Program(self._place, fn, frozenset(donate))


class _Program:
    """One function and its graphs. Calls from several threads take turns: a graph has one set of buffers."""

    def __init__(self, place: Place, fn: Function, donate: frozenset[int]) -> None:
        self._place, self._fn, self._donate = place, fn, donate
        self._graphs: dict[Signature, Graph] = {}
        self._lock = threading.RLock()

    def __call__(self, *arrays: X) -> tuple[X, ...]:
        if self._place.capture is not None:  # as part of the program that is being captured
            return tuple(self._fn(*arrays))
        signature = tuple((x.shape, x.dtype) for x in arrays)
        with self._lock:
            graph = self._graphs.get(signature)
            if graph is None or not graph.fits(arrays):
                moved = graph.moved_now(arrays) if graph is not None else frozenset()
                graph = self._graphs[signature] = capture(self._place, self._fn, arrays, self._donate, moved)
            return graph.run(arrays)
