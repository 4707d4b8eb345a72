"""The compile slot: XLA programs of whole functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from .arrays import X
from .library import jax
from .place import Place
from .storage import copied

Function = Callable[..., tuple[X, ...]]
Signature = tuple[tuple[tuple[int, ...], object], ...]


class TpuCompile:
    """`jax.jit`. Of what is donated, XLA gets the buffers that an output can take; the others stay."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def compile(self, fn: Function, /, *, donate: tuple[int, ...] = ()) -> Function:
        return _Program(self._place, fn, tuple(donate))


class _Program:
    """One function, compiled once for every combination of shapes and dtypes."""

    def __init__(self, place: Place, fn: Function, donate: tuple[int, ...]) -> None:
        self._place, self._fn, self._donate = place, fn, donate
        self._plain: Function = jax.jit(fn)
        self._taking: dict[tuple[int, ...], Function] = {(): self._plain}
        self._known: dict[Signature, Function] = {}

    def __call__(self, *arrays: X) -> tuple[X, ...]:
        return self._place.run(self._call, *arrays)

    def _call(self, *arrays: X) -> tuple[X, ...]:
        if not self._donate:
            return self._plain(*arrays)
        signature = tuple((x.shape, x.dtype) for x in arrays)
        program = self._known.get(signature)
        if program is None:
            program = self._known[signature] = self._program(arrays)
        return program(*self._each_once(arrays))

    def _program(self, arrays: tuple[X, ...]) -> Function:
        """The program that takes those donated buffers for which there is an output of the same size.

        JAX warns of every other one. Tracing again costs nothing: JAX knows the function by now.
        """
        room = Counter((out.shape, out.dtype) for out in jax.eval_shape(self._plain, *arrays))
        usable = []
        for number in sorted(self._donate):
            size = arrays[number].shape, arrays[number].dtype
            if room[size]:
                room[size] -= 1
                usable.append(number)
        taken = tuple(usable)
        return self._taking.setdefault(taken, jax.jit(self._fn, donate_argnums=taken))

    def _each_once(self, arrays: tuple[X, ...]) -> list[X]:
        """A donated array that is passed twice is copied: JAX takes no buffer that is read elsewhere."""
        counts, passed = Counter(map(id, arrays)), list(arrays)
        for number in self._donate:
            if counts[id(arrays[number])] > 1:
                passed[number] = copied(arrays[number])
        return passed
