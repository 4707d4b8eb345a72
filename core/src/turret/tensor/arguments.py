"""Arguments and results of captured steps: nested tuples, lists and dicts with tensors as leaves."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from turret.spi import CaptureError

from .value import Tensor

Signature = tuple[Hashable, ...]
"""What decides a program: where tensors are, of which shape and dtype, and the values of everything else."""


class Arguments:
    """The arguments of one call, taken apart. Raises: CaptureError for what can neither be traced nor compared."""

    __slots__ = ("_args", "_numbers", "_options", "signature", "tensors")

    def __init__(self, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._args, self._options = args, options
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}  # a tensor that comes twice is one, also for its gradient
        signature: list[Hashable] = [self._sign(f"argument {i}", a) for i, a in enumerate(args)]
        signature += [self._sign(f"argument {name!r}", a) for name, a in options.items()]
        self.signature: Signature = tuple(signature)

    def _sign(self, place: str, thing: Any) -> Hashable:
        if isinstance(thing, Tensor):
            number = self._numbers.setdefault(id(thing), len(self.tensors))
            if number == len(self.tensors):
                self.tensors.append(thing)
            return (place, "tensor", thing.shape, thing.dtype, thing.requires_grad, number)
        if _is_sequence(thing):
            inside = tuple(self._sign(f"{place}[{i}]", each) for i, each in enumerate(thing))
            return (place, type(thing), inside)
        if type(thing) is dict and not any(isinstance(key, Tensor) for key in thing):
            return (place, dict, tuple(self._sign(f"{place}[{key!r}]", each) for key, each in thing.items()))
        if thing is None or isinstance(thing, (bool, int, float, str)):
            # by its text: 0.0 equals -0.0 and True equals 1, which are other programs, and nan does not equal itself
            return (place, "value", repr(thing), type(thing))
        raise CaptureError(
            f"{place} of a captured step is {type(thing).__name__}; wanted a Tensor (turret.tensor(...) makes one), a "
            f"number, a string, None, or plain tuples, lists and dicts of these"
        )

    def rebuilt(self, tensors: list[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same arguments with other tensors in the places of these."""

        def other(tensor: Tensor) -> Tensor:
            return tensors[self._numbers[id(tensor)]]

        args = tuple(_rebuild(a, other) for a in self._args)
        return args, {name: _rebuild(a, other) for name, a in self._options.items()}


def _is_sequence(thing: Any) -> bool:
    """A tuple, a list, or a named tuple: what can be made again from its members."""
    return type(thing) in (tuple, list) or (isinstance(thing, tuple) and "_make" in dir(thing))


def _rebuild(thing: Any, leaf: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(thing, Tensor):
        return leaf(thing)
    if _is_sequence(thing):
        members = [_rebuild(each, leaf) for each in thing]
        return type(thing)(members) if type(thing) in (tuple, list) else type(thing)._make(members)
    if type(thing) is dict:
        return {key: _rebuild(each, leaf) for key, each in thing.items()}
    return thing


class Results:
    """What a step returned, taken apart. Raises: CaptureError for anything but tensors and what holds them."""

    __slots__ = ("_returned", "tensors")

    def __init__(self, returned: Any) -> None:
        self.tensors = list(_leaves("its result", returned))
        self._returned = _rebuild(returned, lambda t: t.detach())

    def rebuilt(self, values: Iterator[Any]) -> Any:
        """The same structure, outside any graph, around new arrays."""
        return _rebuild(self._returned, lambda t: Tensor(next(values), t.backend, t.dtype))

    def detached(self) -> Any:
        """The same structure outside any graph."""
        return self._returned

    def forget(self) -> None:
        """Drops the arrays and keeps the structure."""
        self._returned = _rebuild(self._returned, lambda t: Tensor(None, t.backend, t.dtype))
        self.tensors = []


def _leaves(place: str, thing: Any) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield thing
    elif _is_sequence(thing):
        for i, each in enumerate(thing):
            yield from _leaves(f"{place}[{i}]", each)
    elif type(thing) is dict and not any(isinstance(key, Tensor) for key in thing):
        for key, each in thing.items():
            yield from _leaves(f"{place}[{key!r}]", each)
    elif thing is not None:
        raise CaptureError(
            f"a captured step returned {type(thing).__name__} as {place}; wanted Tensors, None, or tuples, lists and "
            f"dicts of them: what the host computes while a step is captured would never change again"
        )
