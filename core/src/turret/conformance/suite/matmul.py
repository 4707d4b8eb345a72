"""Cases of the matmul slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from turret.spi import FLOATS, DType, Host, Shape

from ..bench import Bench
from ..case import Case, call_case
from ..given import Call, Draw, View
from ..oracle import matmul as oracle
from .naming import SHORT

Sizes = tuple[int, int, int]
Flags = tuple[bool, bool]
Build = Callable[[Draw], tuple[Host, Host]]

FLAGS: tuple[Flags, ...] = ((False, False), (True, False), (False, True), (True, True))
SIZES: tuple[Sizes, ...] = (
    (1, 1, 1),
    (1, 63, 65),
    (63, 1, 2),
    (65, 64, 1),
    (8, 16, 32),
    (63, 65, 64),
    (129, 130, 257),
    (3, 1000, 5),
    (2, 2049, 33),
)
"""M, K, N: alone and beside every tile size that kernels like."""
BATCHED: tuple[tuple[Shape, Sizes], ...] = (((3,), (5, 33, 7)), ((2, 3), (9, 4, 6)), ((1, 2), (1, 17, 3)))
EMPTY: tuple[tuple[Shape, Sizes], ...] = (
    ((), (3, 0, 5)),
    ((2,), (3, 0, 5)),
    ((), (0, 4, 5)),
    ((), (3, 4, 0)),
    ((0,), (3, 4, 5)),
    ((2, 0), (3, 0, 5)),
)
VIEWS: tuple[tuple[View, View], ...] = (
    ("transposed", "whole"),
    ("whole", "transposed"),
    ("strided", "offset"),
    ("offset", "strided"),
    ("repeated", "whole"),
    ("whole", "repeated"),
)
NARROW: tuple[DType, ...] = ("float16", "bfloat16", "float64")


def cases() -> Iterator[Case]:
    """Sizes, flags, ranks, emptiness, views, dtypes, what halves and float32 are summed in, infinities."""
    for n, sizes in enumerate(SIZES):
        yield _product((), sizes)
        if n % 2:
            yield _product((), sizes, flags=(sizes[0] % 2 == 0, True))
    for batch, sizes in (((), (7, 33, 18)), *BATCHED):
        for flags in FLAGS:
            yield _product(batch, sizes, flags=flags)
    for batch, sizes in EMPTY:
        yield _product(batch, sizes)
    yield _product((2,), (3, 0, 5), flags=(True, True))
    for views in VIEWS:
        yield _product((3,), (6, 10, 4), views=views)
        yield _product((), (34, 12, 20), views=views, flags=(True, True))
    for dtype in NARROW:
        for flags in FLAGS:
            yield _product((2,), (5, 65, 9), dtype=dtype, flags=flags)
        yield _product((), (3, 0, 5), dtype=dtype)
        yield _product((), (6, 10, 4), dtype=dtype, views=("strided", "transposed"))
    yield from _accumulated()
    yield from _propagated()
    yield Case(id="matmul/product/itself-f32", body=_with_itself, kind="forward")
    for dtype in sorted(FLOATS):
        yield _accumulation(dtype)


def _product(
    batch: Shape,
    sizes: Sizes,
    *,
    dtype: DType = "float32",
    flags: Flags = (False, False),
    views: tuple[View, View] = ("whole", "whole"),
) -> Case:
    (m, k, n), (ta, tb) = sizes, flags

    def call(draw: Draw) -> Call:
        a = draw.normal(*batch, *((k, m) if ta else (m, k)), dtype=dtype, view=views[0])
        b = draw.normal(*batch, *((n, k) if tb else (k, n)), dtype=dtype, view=views[1])
        return Call("matmul", "matmul", (a, b), {"transpose_a": ta, "transpose_b": tb})

    words = [f"B{'x'.join(map(str, batch))}"] if batch else []
    words += [f"M{m}-K{k}-N{n}", *(["ta"] if ta else []), *(["tb"] if tb else [])]
    words += [*(views if views != ("whole", "whole") else ()), SHORT[dtype]]
    return call_case(f"matmul/product/{'-'.join(words)}", call, oracle.matmul)


def _of(name: str, dtype: DType, build: Build) -> Case:
    def call(draw: Draw) -> Call:
        a, b = build(draw)
        return Call("matmul", "matmul", (draw.of(a, dtype), draw.of(b, dtype)))

    return call_case(f"matmul/{name}-{SHORT[dtype]}", call, oracle.matmul)


def _accumulated() -> Iterator[Case]:
    """Sums that a narrower accumulator loses: 4096 ones stop at 2048 or 256, products and parts overflow."""
    for dtype in NARROW:
        yield _of("accumulation/ones", dtype, lambda draw: (np.ones((3, 4096)), np.ones((4096, 2))))
        yield _of("accumulation/large-then-small", dtype, _large_then_small)
        yield _of(
            "accumulation/overflow-between", dtype, lambda draw: (np.array([[256.0, 3, 256]]), _column(256, 1, -256))
        )
        yield _of("accumulation/long", dtype, lambda draw: (draw.rng.random((2, 3000)), draw.rng.random((3000, 3))))
    yield _of("accumulation/ones", "float32", lambda draw: (np.ones((3, 4096)), np.ones((4096, 2))))
    yield _of("accumulation/digits", "float32", lambda draw: (np.array([[1 + 2.0**-23, 1 - 2.0**-24]]), _column(1, 1)))
    yield _of("accumulation/long", "float32", lambda draw: (draw.rng.random((2, 9000)), draw.rng.random((9000, 3))))
    yield _of(
        "accumulation/wide-range", "float32", lambda draw: (np.array([[1e30, 1e-30, 1e20]]), _column(1e-30, 1e30, 3))
    )


def _column(*values: float) -> Host:
    return np.array(values)[:, None]


def _large_then_small(draw: Draw) -> tuple[Host, Host]:
    """512, then many eighths."""
    a = np.full((2, 1025), 0.125)
    a[:, 0] = 512.0
    return a, np.ones((1025, 2))


def _propagated() -> Iterator[Case]:
    """NaN and infinities reach what depends on them and nothing else; 0 * inf is NaN."""
    for value, name in ((np.nan, "nan"), (np.inf, "inf")):
        for place, word in (((62, 64), "last"), ((0, 0), "first")):
            for which in (0, 1):
                yield _of(f"propagation/{name}-{word}-of-{'ab'[which]}", "float32", _struck(value, place, which))
    for dtype in ("float32", "float16", "bfloat16", "float64"):
        yield _of(
            "propagation/zero-times-inf",
            dtype,
            lambda draw: (np.array([[0.0, 1], [2, 3]]), np.array([[np.inf, 1], [1, 1]])),
        )
        yield _of(
            "propagation/inf-minus-inf", dtype, lambda draw: (np.array([[1.0, 1, 1]]), _column(np.inf, -np.inf, 1))
        )
        yield _of(
            "propagation/overflow",
            dtype,
            lambda draw: (np.array([[1e30, 1.0], [1, -1e30]]), np.array([[1e30, 1.0], [1e30, 1]])),
        )


def _struck(value: float, place: tuple[int, int], which: int) -> Build:
    """(63, 65) and (65, 66), one element of one of them replaced."""

    def build(draw: Draw) -> tuple[Host, Host]:
        pair = draw.rng.standard_normal((63, 65)), draw.rng.standard_normal((65, 66))
        pair[which][place] = value
        return pair

    return build


def _with_itself(bench: Bench) -> None:
    """One array as both operands."""
    given = bench.draw.normal(33, 33)
    x = bench.put(given)
    square = bench.tools.matmul.matmul(x, x, transpose_b=True)
    size = np.abs(given.exact) @ np.abs(given.exact.T)
    bench.within("x x^T", bench.get(square), given.exact @ given.exact.T, 40 * 2.0**-24 * size)


ACCUMULATIONS = ("float32", "float64", "tf32", "bfloat16", "float16", "unstated")


def _accumulation(dtype: DType) -> Case:
    def body(bench: Bench) -> None:
        bench.needs(dtype)
        word = bench.tools.matmul.accumulation(dtype)
        wanted = f"wanted one of {', '.join(ACCUMULATIONS)}"
        bench.require(word in ACCUMULATIONS, f"accumulation({dtype!r}) gave {word!r}, {wanted}")

    return Case(id=f"matmul/accumulation/word-{SHORT[dtype]}", body=body, kind="forward")
