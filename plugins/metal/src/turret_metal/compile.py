"""The compile slot: `mx.compile`, with outputs under way when a call returns."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from turret.spi import CaptureError

from .stream import Stream, X

Function = Callable[..., tuple[X, ...]]

# How MLX says that a value was asked for while it has none.
REFUSALS = ("[eval] ", "[async_eval] ")


class MetalCompile:
    """MLX traces a function once for every combination of shapes and dtypes in every thread that calls it.

    Donation needs no word: MLX reuses the buffer of any array that nobody holds any more.
    """

    def __init__(self, do: Stream) -> None:
        self._do = do

    def compile(self, fn: Function, /, *, donate: tuple[int, ...] = ()) -> Function:
        return _Program(self._do, fn)


class _Program:
    """One compiled function."""

    def __init__(self, do: Stream, fn: Function) -> None:
        self._do, self._fn = do, fn
        self._compiled = mx.compile(self._traced)

    def __call__(self, *arrays: X) -> tuple[X, ...]:
        self._do.check()
        try:
            made: tuple[X, ...] = tuple(self._compiled(*arrays))
        except ValueError as error:
            if str(error).startswith(REFUSALS):
                raise CaptureError(
                    f"the function reads a value while {self._do.spec} is compiling it, and there is none yet "
                    f"({error}); the lines above say where; return the array and read it outside"
                ).with_traceback(error.__traceback__) from error
            raise
        self._do.start(*made)
        return made

    def _traced(self, *arrays: X) -> tuple[X, ...]:
        with self._do.tracing():
            return tuple(self._fn(*arrays))
