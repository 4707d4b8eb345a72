"""Compiling kernels: once per machine where the disk allows it, announced when it takes time."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from numba.core import event

# Never nnan or ninf: infinities and NaN must be seen. reassoc lets sums run in several lanes.
SUMS = {"contract", "reassoc", "nsz"}
STRICT = {"contract"}

_lock = threading.RLock()
_known: list[_Lazy] = []


def _digest() -> str:
    """Numba's cache looks at one file only; this names all the sources a kernel may inline."""
    seen = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        seen.update(source.read_bytes())
    return seen.hexdigest()[:16]


_SOURCES = _digest()


class _Lazy:
    """Something Numba makes from a Python function at first need, from its cache where that is possible."""

    __slots__ = ("_function", "_made")

    def __init__(self, function: Callable[..., Any]) -> None:
        function.__qualname__ = f"{function.__name__}_{_SOURCES}"
        self._function = function
        self._made: Any = None
        _known.append(self)

    @property
    def made(self) -> bool:
        """Whether it was compiled or loaded already."""
        return self._made is not None

    def make(self) -> Any:
        """Compiles or loads it."""
        with _lock:
            if self._made is None:
                with announced():
                    try:
                        self._made = self._build(cache=True)
                    except (RuntimeError, OSError):  # no folder is writable, or the disk is full
                        self._made = self._build(cache=False)
            return self._made

    def _build(self, *, cache: bool) -> Any:
        raise NotImplementedError


class Kernel(_Lazy):
    """A function `(words, part, parts)` that does one share of the work.

    The shares of one call are disjoint and may run in any order and on any thread. A kernel allocates nothing and
    raises nothing. `words` are its operands, see `turret_cpu.threads.Pool.run`.
    """

    __slots__ = ("_fastmath", "_word")

    def __init__(self, function: Callable[..., None], fastmath: set[str]) -> None:
        super().__init__(function)
        self._fastmath, self._word = fastmath, 0

    @property
    def address(self) -> int:
        """Where the machine code is: void (*)(int64 *words, int64 part, int64 parts)."""
        if not self._word:
            self._word = int(self.make().address)
        return self._word

    def _build(self, *, cache: bool) -> Any:
        options = {"nopython": True, "fastmath": self._fastmath, "error_model": "numpy", "boundscheck": False}
        return numba.cfunc("void(CPointer(int64), int64, int64)", cache=cache, **options)(self._function)


class Entry(_Lazy):
    """A function that Python calls and that runs without the interpreter lock."""

    __slots__ = ("_signature",)

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        super().__init__(function)
        self._signature = signature

    def __call__(self, *operands: object) -> Any:
        return (self._made or self.make())(*operands)

    def _build(self, *, cache: bool) -> Any:
        options = {"nogil": True, "error_model": "numpy", "boundscheck": False}
        return numba.njit(self._signature, cache=cache, **options)(self._function)


def kernel(function: Callable[..., None] | None = None, *, fastmath: set[str] = SUMS) -> Any:
    """Declares a kernel."""
    if function is None:
        return lambda f: kernel(f, fastmath=fastmath)
    return Kernel(function, fastmath)


def inlined(function: Callable[..., Any] | None = None, *, fastmath: set[str] = SUMS, always: bool = False) -> Any:
    """A function that kernels call; it keeps its own float rules inside them.

    `always`: also where LLVM finds it too long, because a loop with a call in it is not vectorized.
    """
    if function is None:
        return lambda f: inlined(f, fastmath=fastmath, always=always)
    options = {"nogil": True, "fastmath": fastmath, "error_model": "numpy", "boundscheck": False}
    return numba.njit(forceinline=always, **options)(function)


class _Progress(event.Listener):  # type: ignore[misc]
    """Tells the user, once, that time goes into compiling; on a terminal it counts."""

    def __init__(self) -> None:
        self.built, self.said = 0, False

    def on_start(self, event: Any) -> None:
        terminal = sys.stderr.isatty()
        if not self.said:
            end = "" if terminal else "\n"
            print(
                "turret-cpu: compiling kernels for this machine, kept for later runs ...",
                end=end,
                file=sys.stderr,
                flush=True,
            )
            self.said = True
        if terminal:
            done = sum(k.made for k in _known)
            text = (
                f"\rturret-cpu: compiling kernels for this machine, kept for later runs: {done + 1} of {len(_known)} "
            )
            print(text, end="", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        self.built += 1


_progress = _Progress()


@contextmanager
def announced() -> Iterator[None]:
    """Says so when Numba compiles inside."""
    before = _progress.built
    with event.install_listener("numba:compile", _progress):
        yield
    if _progress.built > before and sys.stderr.isatty():
        print(file=sys.stderr, flush=True)
