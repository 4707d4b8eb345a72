"""The programs that eager calls compile: how many of them are kept, and how thoroughly they are compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .library import get_opaque_trace_state, jax

F = TypeVar("F", bound=Callable[..., Any])

# XLA compiles a program for every shape and would keep all of them: texts that grow by a token at a time would fill the
# memory. Its CPU compiler holds some 1.5 MB for each.
MOST, MOST_QUICK = 256, 512

# Elements of all operands up to which XLA's CPU compiler does without its optimizer: a half to a quarter of the time to
# compile, some ten microseconds more a call.
SMALL = 2048
ANY = 1 << 62  # where only whether kernels are right is asked, and not how fast
QUICKLY: dict[str, bool | str] = {"xla_backend_optimization_level": "0", "xla_cpu_use_fusion_emitters": False}


def _trace() -> object:
    """What is being traced here; equal while it is the same."""
    return get_opaque_trace_state(convention="flax")  # type: ignore[no-untyped-call]  # JAX states no types


NOTHING = _trace()


class Program:
    """A function as one program of the device for every shape; within a program that is being traced, as part of it."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function, self._options = function, options
        self._part = self.jitted()

    def __call__(self, *operands: Any, **options: Any) -> Any:
        return self.fitting(operands, options, quick=0)(*operands, **options)

    def fitting(self, operands: tuple[Any, ...], options: dict[str, Any], *, quick: int) -> Callable[..., Any]:
        """This program for operands of these shapes; up to `quick` elements it does without XLA's optimizer."""
        if _trace() != NOTHING:
            return self._part
        size = 0
        signature: list[object] = []
        for x in jax.tree.leaves(operands):
            if isinstance(x, jax.Array):
                size += x.size
                signature.append((x.shape, x.dtype))
            else:
                signature.append(type(x))
        make = _quick if 0 < size <= quick else _thorough
        return make(self, *signature, *options.values())

    def jitted(self, **compiling: Any) -> Callable[..., Any]:
        """A new compiled function. What JAX keeps hangs on its inner function, and goes when that goes."""

        @functools.wraps(self._function)
        def own(*operands: Any, **options: Any) -> Any:
            return self._function(*operands, **options)

        jitted: Callable[..., Any] = jax.jit(own, **self._options, **compiling)
        return jitted


@functools.lru_cache(maxsize=MOST)
def _thorough(program: Program, *signature: object) -> Callable[..., Any]:
    return program.jitted()


@functools.lru_cache(maxsize=MOST_QUICK)
def _quick(program: Program, *signature: object) -> Callable[..., Any]:
    return program.jitted(compiler_options=QUICKLY)


def program(*static: str, donate: tuple[str, ...] = (), out: jax.sharding.Sharding | None = None) -> Callable[[F], F]:
    """The function as a Program.

    static: options that are compiled in. donate: arrays whose buffers it may take. out: where its results go, if not
    to where its arrays are.
    """

    def made(function: F) -> F:
        options = {"static_argnames": static, "donate_argnames": donate, "out_shardings": out, "inline": out is None}
        return Program(function, options)  # type: ignore[return-value]  # called like the function

    return made
