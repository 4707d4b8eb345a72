"""Cases of layout methods applied to each other's results, where views of views go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from turret.spi import Host

from ..bench import Bench
from ..case import Case
from ..given import Draw
from ..oracle import layout as oracle

Step = tuple[str, tuple[Any, ...], dict[str, Any]]
Choice = Callable[[Draw, Host], Step]


def cases() -> Iterator[Case]:
    """Every method after every other, and longer chains; what an operation reads of the end of a chain."""
    for first in CHOICES:
        yield Case(id=f"layout/chain/after-{first.replace('_', '-')}-f32", body=_pairs(first), kind="forward")
    yield Case(id="layout/chain/padding-alone-f32", body=_padding_alone, kind="forward")
    for length in (3, 5):
        yield Case(id=f"layout/chain/{length}-long-f32", body=_long(length), kind="forward")


def _reshape(draw: Draw, x: Host) -> Step:
    return "reshape", ((*x.shape[::-1], 1) if draw.rng.random() < 0.5 else (x.size,),), {}


def _transpose(draw: Draw, x: Host) -> Step:
    return "transpose", (tuple(int(axis) for axis in draw.rng.permutation(x.ndim)),), {}


def _slice(draw: Draw, x: Host) -> Step:
    start = tuple(int(draw.rng.integers(0, (size + 1) // 2)) for size in x.shape)
    stop = tuple(int(draw.rng.integers(low + 1, size + 1)) for low, size in zip(start, x.shape, strict=True))
    return "slice", (start, stop), {"step": tuple(int(draw.rng.integers(1, 3)) for _ in start)}


def _pad(draw: Draw, x: Host) -> Step:
    """As wide as the array, so that a slice may see nothing else."""
    widths = tuple((int(draw.rng.integers(0, size + 1)), int(draw.rng.integers(0, 2))) for size in x.shape)
    return "pad", (widths,), {"value": float(draw.rng.integers(2, 9))}


def _broadcast_to(draw: Draw, x: Host) -> Step:
    return "broadcast_to", ((int(draw.rng.integers(1, 4)), *x.shape),), {}


def _concatenate(draw: Draw, x: Host) -> Step:
    return "concatenate", (), {"axis": int(draw.rng.integers(0, x.ndim))}


CHOICES: dict[str, Choice] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "pad": _pad,
    "broadcast_to": _broadcast_to,
    "concatenate": _concatenate,
}


def _chain(bench: Bench, names: list[str]) -> None:
    """Applies the methods in turn; a concatenation joins the array with itself."""
    given = bench.draw.normal(4, 3, 5)
    x, truth = bench.put(given), given.host
    told = []
    for name in names:
        method, arguments, options = CHOICES[name](bench.draw, truth)
        told.append(f"{method}{arguments}{options}")
        way, right = getattr(bench.tools.layout, method), getattr(oracle, method)
        if method == "concatenate":
            x, truth = way([x, x], **options), right([truth, truth], **options)
        else:
            x, truth = way(x, *arguments, **options), right(truth, *arguments, **options)
    bench.context = " then ".join(told)
    bench.exact("result", x, np.array(truth, order="C"), "float32")
    bench.exact("its sum with itself", bench.tools.elementwise.add(x, x), np.array(truth + truth, order="C"), "float32")


def _pairs(first: str) -> Callable[[Bench], None]:
    def body(bench: Bench) -> None:
        for second in CHOICES:
            for _ in range(2):
                _chain(bench, [first, second])

    return body


def _padding_alone(bench: Bench) -> None:
    """A part of a padded array that holds nothing but padding."""
    layout, x = bench.tools.layout, bench.put(bench.draw.normal(3, 4))
    padded = layout.pad(x, ((2, 0), (1, 3)), value=-7.5)
    for start, stop in (((0, 0), (2, 8)), ((0, 5), (5, 8)), ((3, 0), (5, 1))):
        want = np.full([high - low for low, high in zip(start, stop, strict=True)], -7.5, np.float32)
        bench.exact(f"{start} to {stop}", layout.slice(padded, start, stop), want, "float32")


def _long(length: int) -> Callable[[Bench], None]:
    def body(bench: Bench) -> None:
        for _ in range(8):
            _chain(bench, [str(name) for name in bench.draw.rng.choice(list(CHOICES), length)])

    return body
