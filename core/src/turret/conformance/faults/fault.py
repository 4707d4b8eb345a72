"""What a fault is, and what the wrong slots are built from."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from turret.spi import REQUIRED_SLOTS, Capabilities, Host, Storage, Toolset

from ..case import Kind

Tools = Toolset[Any]
Table = Capabilities[Any]
Wrap = Callable[[Table, Tools], Table]
Make = Callable[..., Any]
Need = Literal["writing", "float64", "forking"]
"""Arrays that can be written in place; a device with float64; working on in a forked child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to be wrong, taken from a public report; `wrap` puts it into a good backend's table.

    name: distinct. capability: the cases that have to notice. slot: what is broken; empty where it is how the backend
    is opened. kind: what sort of promise is broken, as in `Case`. url, report: where it happened and what happened
    there. summary: what the broken slot does. needs: without what of the good backend it cannot show.
    """

    name: str
    capability: str
    slot: str
    kind: Kind
    url: str
    report: str
    summary: str
    wrap: Wrap
    needs: Need | None = None


class Broken:
    """A slot with some of its methods replaced; all else is the good slot's."""

    def __init__(self, good: Any, **methods: Callable[..., Any]) -> None:
        self._good = good
        self.__dict__.update(methods)

    def __getattr__(self, method: str) -> Any:
        return getattr(self._good, method)


class Remembered:
    """Facts about arrays by identity. The latest few hundred arrays are held, so that no identity is given twice."""

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._facts: OrderedDict[int, tuple[Any, Any]] = OrderedDict()

    def keep(self, array: Any, fact: Any) -> None:
        self._facts[id(array)] = (array, fact)
        self._facts.move_to_end(id(array))
        if len(self._facts) > self._most:
            self._facts.popitem(last=False)

    def about(self, array: Any) -> Any:
        """What was kept, or None."""
        found = self._facts.get(id(array))
        return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class View:
    """Where an array came from: the method of `layout`, its input, and the bounds of a slice."""

    method: str
    source: Any
    start: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()
    step: tuple[int, ...] = ()

    @property
    def is_strided(self) -> bool:
        return self.method == "slice" and any(step > 1 for step in self.step)

    def trims(self, axis: int) -> bool:
        """Whether a slice leaves elements of this axis out."""
        return self.method == "slice" and self.stop[axis] - self.start[axis] < self.source.shape[axis]


class Views(Remembered):
    """Transposed and sliced arrays, watched at the layout slot."""

    def watching(self, layout: Any) -> Broken:
        """The layout slot, unchanged but for being listened to."""

        def transpose(x: Any, axes: tuple[int, ...], /) -> Any:
            result = layout.transpose(x, axes)
            if result is not x:
                self.keep(result, View("transpose", x))
            return result

        def cut(
            x: Any, start: tuple[int, ...], stop: tuple[int, ...], /, *, step: tuple[int, ...] | None = None
        ) -> Any:
            result = layout.slice(x, start, stop, step=step)
            if result is not x:
                self.keep(result, View("slice", x, tuple(start), tuple(stop), tuple(step or (1,) * len(start))))
            return result

        return Broken(layout, transpose=transpose, slice=cut)

    def packed(self, storage: Storage[Any], x: Any) -> Any:
        """What a reader sees who takes a view for packed: the source's first elements in the view's shape."""
        host = storage.to_host(self.about(x).source).reshape(-1)
        return new(storage, np.resize(host, x.shape), x)


def fault(
    *,
    name: str,
    slot: str,
    url: str,
    report: str,
    summary: str,
    capability: str = "",
    kind: Kind = "forward",
    needs: Need | None = None,
    views: bool = False,
) -> Callable[[Make], Fault]:
    """Makes a fault of a function (good slot, tools) -> broken slot; with `views` it is also given the `Views`.

    A slot that the backend leaves to composition is broken as composed; a required slot is broken for all that is
    composed from it.
    """

    def decorate(make: Make) -> Fault:
        def wrap(table: Table, tools: Tools) -> Table:
            seen = Views()
            if views:
                tools = dataclasses.replace(tools, layout=seen.watching(tools.layout))
                table = with_slot(table, "layout", tools.layout)
            good = getattr(tools, slot)
            return with_slot(table, slot, make(good, tools, seen) if views else make(good, tools))

        return Fault(
            name=name,
            capability=capability or slot,
            slot=slot,
            kind=kind,
            url=url,
            report=report,
            summary=summary,
            wrap=wrap,
            needs=needs,
        )

    return decorate


def with_slot(table: Table, slot: str, broken: Any) -> Table:
    """The table with one slot in place of another."""
    if slot in REQUIRED_SLOTS:
        return dataclasses.replace(table, required=dataclasses.replace(table.required, **{slot: broken}))
    return dataclasses.replace(table, **{slot: broken})


def new(storage: Storage[Any], host: Any, like: Any) -> Any:
    """Host values as a fresh array with the dtype of `like`."""
    with np.errstate(all="ignore"):
        return storage.from_host(np.asarray(host), dtype=storage.dtype_of(like))


def edited(storage: Storage[Any], x: Any, change: Callable[[Host], Host | None]) -> Any:
    """A fresh array: the values of `x` after `change`, which returns new ones or writes into those it is given."""
    host = storage.to_host(x)
    with np.errstate(all="ignore"):
        changed = change(host)
    return new(storage, host if changed is None else changed, x)


def wide(storage: Storage[Any], x: Any) -> Host:
    """The values on the host in float64."""
    return storage.to_host(x).astype(np.float64)


def overwrite(tools: Tools, x: Any, host: Host) -> None:
    """Writes into the buffer of `x` where the library can; the caller sees it, which is the point."""
    if not host.size:
        return
    if not x.shape:
        overwrite(tools, tools.layout.reshape(x, (1,)), host.reshape(1))
        return
    ids = tools.storage.from_host(np.arange(x.shape[0], dtype=np.int32))
    tools.indexing.set_rows(x, ids, new(tools.storage, host, x), donate=True)
