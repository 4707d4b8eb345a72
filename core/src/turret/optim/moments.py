"""Storage of Adam's moments: one array per parameter, or pages of a fixed number of elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from turret.registry import OpenBackend
from turret.spi import ConfigError, Host, Shape
from turret.tensor import Tensor
from turret.tensor.graph import Native

T = TypeVar("T")


class Moments:
    """First and second moments, float32, zero at first.

    With `page_elements`, each parameter's row-major elements are cut into pages, the last one shorter; `split` cuts
    parameters and gradients the same way, so that one update sees pages only, and `join` puts results together.
    """

    def __init__(self, backend: OpenBackend, shapes: Sequence[Shape], page_elements: int | None) -> None:
        if page_elements is not None and page_elements < 1:
            raise ConfigError(f"page_elements {page_elements}; wanted at least 1, or None for whole arrays")
        self._backend, self._shapes, self._page = backend, list(shapes), page_elements
        self.first = [self._zeros(s) for s in self._page_shapes()]
        self.second = [self._zeros(s) for s in self._page_shapes()]

    def _zeros(self, shape: Shape) -> Tensor:
        return Tensor(self._backend.tools.storage.full(shape, 0.0, dtype="float32"), self._backend, "float32")

    def store(self, first: Sequence[Native], second: Sequence[Native]) -> None:
        """Replaces both moments by arrays of the same shapes, one per page."""
        for tensors, values in ((self.first, first), (self.second, second)):
            for t, value in zip(tensors, values, strict=True):
                t.value = value

    def _bounds(self, shape: Shape) -> list[tuple[int, int]]:
        size, page = math.prod(shape), self._page or 1
        return [(a, min(a + page, size)) for a in range(0, size, page)]

    def _page_shapes(self) -> list[Shape]:
        if self._page is None:
            return self._shapes
        return [(b - a,) for shape in self._shapes for a, b in self._bounds(shape)]

    def split(self, arrays: Sequence[Native]) -> list[Native]:
        """One array per parameter -> one per page."""
        if self._page is None:
            return list(arrays)
        layout, pages = self._backend.tools.layout, []
        for x, shape in zip(arrays, self._shapes, strict=True):
            flat = layout.reshape(x, (math.prod(shape),))
            pages += [layout.slice(flat, (a,), (b,)) for a, b in self._bounds(shape)]
        return pages

    def join(self, pages: Sequence[Native]) -> list[Native]:
        """One array per page -> one per parameter."""
        if self._page is None:
            return list(pages)
        layout, rest, joined = self._backend.tools.layout, iter(pages), []
        for shape in self._shapes:
            mine = [next(rest) for _ in self._bounds(shape)]
            joined.append(layout.reshape(layout.concatenate(mine, axis=0), shape))
        return joined

    def spread(self, values: Sequence[T]) -> list[T]:
        """One value per parameter -> one per page."""
        if self._page is None:
            return list(values)
        return [v for v, shape in zip(values, self._shapes, strict=True) for _ in self._bounds(shape)]

    def to_host(self) -> tuple[list[Host], list[Host]]:
        """Copies of both moments in the parameters' shapes."""
        to_host = self._backend.tools.storage.to_host
        first, second = (
            [to_host(x) for x in self.join([t.value for t in pages])] for pages in (self.first, self.second)
        )
        return first, second

    def load(self, first: Sequence[Host], second: Sequence[Host]) -> None:
        """Takes both moments in the parameters' shapes; commits after everything was moved."""
        made = []
        for hosts in (first, second):
            put = self._backend.tools.storage.from_host
            made.append(self.split([put(h, dtype="float32") for h in hosts]))
        self.store(*made)
