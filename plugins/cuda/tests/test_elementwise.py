"""One result per element: float64 formulas and NumPy's integers, scalars in the array's dtype, any broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from scipy import special

from turret.spi import Toolset

FINFO: Any = ml_dtypes.finfo
FLOATS = ("float32", "float64", "float16", "bfloat16")
WHOLE = ("int32", "int64", "uint8")
BITS = {"float32": 24, "float64": 53, "float16": 11, "bfloat16": 8}
UNARY: dict[str, Callable[..., Any]] = {
    "negative": np.negative,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "erf": special.erf,
}
BINARY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
COMPARING = {"equal": np.equal, "less": np.less, "less_equal": np.less_equal}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.25, np.inf, -np.inf, np.nan]


def native(dtype: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def exact(values: Any, dtype: str) -> Any:
    """In float64, but values that `dtype` has."""
    return np.asarray(values).astype(native(dtype)).astype(np.float64)


def drawn(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    return exact(np.random.default_rng(seed).normal(0, 2, shape), dtype)


def close(got: Any, want: Any, dtype: str, units: float) -> None:
    """Within `units` last places of the dtype, and of a value that the dtype rounds to."""
    with np.errstate(all="ignore"):
        limit = float(FINFO(native(dtype)).max)
        small = float(FINFO(native(dtype)).smallest_normal)
        want = np.where(np.abs(want) > limit * (1 + 2.0 ** -BITS[dtype]), np.copysign(np.inf, want), want)
        unit = 2.0 ** (1 - BITS[dtype]) * np.maximum(np.abs(want), small)
        got = got.astype(np.float64)
        assert ((np.abs(got - want) <= units * unit) | (got == want) | (np.isnan(got) & np.isnan(want))).all()


@pytest.fixture
def put(tools: Toolset[Any]) -> Callable[..., Any]:
    return lambda values, dtype: tools.storage.from_host(np.asarray(values).astype(native(dtype)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_operand_are_the_formulas(tools: Toolset[Any], put: Any, name: str, dtype: Any) -> None:
    values = np.concatenate([drawn(dtype, (300,)), exact([20, 1e-6, -1e-6, 60000, -8, 5.5], dtype)])
    if name in ("log", "sqrt", "rsqrt"):
        values = np.abs(values) + (name != "sqrt") * float(FINFO(native(dtype)).smallest_normal)
        values = exact(values, dtype)
    with np.errstate(all="ignore"):
        want = UNARY[name](values)
    got = getattr(tools.elementwise, name)(put(values, dtype))
    assert tools.storage.dtype_of(got) == dtype
    # CUDA promises two or three last places in float32 and float64; halves come from float32 and round once.
    close(tools.storage.to_host(got), want, dtype, 0.51 if dtype in ("float16", "bfloat16") else 3)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_functions_at_the_edges_of_their_domains(tools: Toolset[Any], put: Any, name: str, dtype: Any) -> None:
    with np.errstate(all="ignore"):
        want = UNARY[name](np.array(SPECIAL))
    got = tools.storage.to_host(getattr(tools.elementwise, name)(put(SPECIAL, dtype)))
    if name == "rsqrt":
        want[1] = got[1] if np.isinf(got[1]) else want[1]  # of -0, either infinity
    close(got, want, dtype, 3)
    assert np.signbit(got[:2]).tolist() == np.signbit(want[:2]).tolist()


@pytest.mark.parametrize("dtype", FLOATS)
def test_only_numbers_are_finite(tools: Toolset[Any], put: Any, dtype: Any) -> None:
    greatest = float(FINFO(native(dtype)).max)
    got = tools.elementwise.isfinite(put([*SPECIAL, greatest, -greatest], dtype))
    assert tools.storage.dtype_of(got) == "bool"
    assert tools.storage.to_host(got).tolist() == [True] * 5 + [False] * 3 + [True] * 2


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [*BINARY, "divide", *COMPARING])
def test_two_operands_are_those_of_float64_rounded_once(tools: Toolset[Any], put: Any, name: str, dtype: Any) -> None:
    edges = np.array(np.meshgrid(SPECIAL, SPECIAL)).reshape(2, -1)
    a, b = (np.concatenate([drawn(dtype, (200,), seed), edges[seed]]) for seed in (0, 1))
    b[:50] = a[:50]
    with np.errstate(all="ignore"):
        want = (BINARY | COMPARING | {"divide": np.divide})[name](a, b)
    got = getattr(tools.elementwise, name)(put(a, dtype), put(b, dtype))
    assert tools.storage.dtype_of(got) == ("bool" if name in COMPARING else dtype)
    if name in COMPARING:
        assert tools.storage.to_host(got).tolist() == want.tolist()
    else:
        close(tools.storage.to_host(got), want, dtype, 0.5001)


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("name", [*BINARY, *COMPARING])
def test_whole_numbers_wrap_as_numpys_do(tools: Toolset[Any], put: Any, name: str, dtype: Any) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    values = np.array([low, low + 1, 0, 1, 2, 3, high - 1, high], dtype)
    a, b = np.repeat(values, 8), np.tile(values, 8)
    with np.errstate(all="ignore"):
        want = (BINARY | COMPARING)[name](a, b)
    got = getattr(tools.elementwise, name)(put(a, dtype), put(b, dtype))
    assert tools.storage.to_host(got).tolist() == want.tolist()
    if name == "subtract":
        negative = tools.elementwise.negative(put(values, dtype))
        assert tools.storage.to_host(negative).tolist() == (np.zeros(1, dtype) - values).tolist()


def test_truth_values(tools: Toolset[Any], put: Any) -> None:
    a, b = put([0, 0, 1, 1], "bool"), put([0, 1, 0, 1], "bool")
    e, host = tools.elementwise, tools.storage.to_host
    assert host(e.logical_and(a, b)).tolist() == [False, False, False, True]
    assert host(e.equal(a, b)).tolist() == [True, False, False, True]
    assert host(e.less(a, b)).tolist() == [False, True, False, False]
    assert host(e.less_equal(a, b)).tolist() == [True, True, False, True]
    assert host(e.maximum(a, b)).tolist() == [False, True, True, True]
    assert host(e.minimum(a, b)).tolist() == [False, False, False, True]
    assert host(e.equal(a, True)).tolist() == [False, False, True, True]


SCALARS: list[tuple[str, Any, Any]] = [
    ("float32", 1e300, np.inf),
    ("float32", -1e300, -np.inf),
    ("float32", 0.1, np.float32(0.1)),
    ("float32", 2**24 + 1, 2.0**24),
    ("float32", np.nan, np.nan),
    ("float32", np.float64(0.1), np.float32(0.1)),
    ("float64", 1e300, 1e300),
    ("float64", 0.1, 0.1),
    ("float64", 2**53 + 1, 2.0**53),
    ("float16", 65519.0, 65504.0),
    ("float16", 65520.0, np.inf),
    ("bfloat16", 1 + 2.0**-9, 1.0),
    ("int64", 2**53 + 1, 2**53 + 1),
    ("int64", -(2**63), -(2**63)),
    ("int64", 2**63 - 1, 2**63 - 1),
    ("int32", -(2**31), -(2**31)),
    ("int32", np.int64(7), 7),
    ("uint8", 255, 255),
]


@pytest.mark.parametrize(("dtype", "scalar", "want"), SCALARS)
def test_a_scalar_takes_the_dtype_of_the_array_on_either_side(
    tools: Toolset[Any], put: Any, dtype: Any, scalar: Any, want: Any
) -> None:
    zero, e, host = put([0, 0], dtype), tools.elementwise, tools.storage.to_host
    chosen = put([True, False], "bool")
    for got in (
        e.add(zero, scalar), e.add(scalar, zero), e.subtract(scalar, zero), e.where(put([1, 1], "bool"), scalar, zero),
        e.where(put([0, 0], "bool"), zero, scalar),
    ):  # fmt: skip
        assert tools.storage.dtype_of(got) == dtype
        np.testing.assert_array_equal(host(got), np.array([want, want]).astype(host(zero).dtype))
    mixed = host(e.where(chosen, scalar, zero))
    np.testing.assert_array_equal(mixed, np.array([want, 0]).astype(mixed.dtype))
    filled = put([want, want], dtype)
    assert host(e.equal(filled, scalar)).tolist() == [want == want] * 2
    assert host(e.less(filled, scalar)).tolist() == [False] * 2
    assert host(e.less_equal(scalar, filled)).tolist() == [want == want] * 2


def test_a_negative_zero_is_an_operand_like_others(tools: Toolset[Any], put: Any) -> None:
    e, host = tools.elementwise, tools.storage.to_host
    for dtype in FLOATS:
        minus = put([-0.0], dtype)
        assert np.signbit(host(e.add(minus, -0.0))).all()
        assert not np.signbit(host(e.add(minus, 0.0))).any()
        assert np.isneginf(host(e.divide(1.0, minus))).all()
        assert np.signbit(host(e.where(put([1], "bool"), -0.0, minus))).all()
        assert np.signbit(host(e.multiply(put([3.0], dtype), -0.0))).all()


def test_what_is_not_chosen_never_matters(tools: Toolset[Any], put: Any) -> None:
    e, host = tools.elementwise, tools.storage.to_host
    nan, x, condition = put([np.nan] * 3, "float32"), put([1.0, 2.0, 3.0], "float32"), put([1, 0, 1], "bool")
    assert host(e.where(condition, x, nan)).tolist()[::2] == [1, 3]
    assert host(e.where(condition, nan, x)).tolist()[1] == 2
    assert host(e.where(condition, x, np.nan)).tolist()[::2] == [1, 3]
    for dtype in ("bool", "uint8", "float16", "bfloat16", "float64", "int64", "int32"):
        got = e.where(condition, put([1, 0, 1], dtype), put([0, 1, 0], dtype))
        assert tools.storage.dtype_of(got) == dtype
        assert host(got).tolist() == [1, 1, 1]


def views(tools: Toolset[Any], host: Any) -> list[tuple[Any, Any]]:
    """Arrays that do not lie densely, with the rank 2 of `host`."""
    layout, x, (p, q) = tools.layout, tools.storage.from_host(host), host.shape
    return [
        (x, host),
        (layout.transpose(x, (1, 0)), host.T),
        (layout.slice(x, (1, 0), (p, q), step=(2, 3)), host[1::2, ::3]),
        (layout.broadcast_to(layout.slice(x, (0, 0), (p, 1)), (p, q)), np.broadcast_to(host[:, :1], (p, q))),
        (layout.slice(layout.transpose(x, (1, 0)), (1, 1), (q, p), step=(2, 1)), host.T[1::2, 1:]),
        (layout.slice(x, (0, 2), (p, 2)), host[:, 2:2]),
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8"])
def test_operands_are_read_where_they_lie(tools: Toolset[Any], dtype: Any) -> None:
    host = (np.arange(35).reshape(5, 7) % 31).astype(native(dtype))
    e, to_host = tools.elementwise, tools.storage.to_host
    for x, want in views(tools, host):
        wide = want.astype(np.int64)
        row = tools.storage.from_host(np.arange(want.shape[1]).astype(native(dtype)))
        assert to_host(e.add(x, x)).tolist() == (2 * wide).tolist()
        assert to_host(e.add(x, row)).tolist() == (wide + np.arange(want.shape[1])).tolist()
        assert to_host(e.multiply(3, x)).tolist() == (3 * wide).tolist()
        assert to_host(e.less(x, 9)).tolist() == (wide < 9).tolist()
        assert to_host(e.where(e.less(x, row), row, x)).tolist() == np.maximum(wide, np.arange(want.shape[1])).tolist()
        if dtype in FLOATS:
            assert to_host(e.negative(x)).tolist() == (-wide).tolist()
            assert to_host(e.isfinite(x)).tolist() == np.ones(want.shape, bool).tolist()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)])
def test_no_and_single_elements(tools: Toolset[Any], shape: Any) -> None:
    e, x = tools.elementwise, tools.storage.full(shape, 4.0, dtype="float32")
    for got in (e.add(x, x), e.multiply(2.0, x), e.subtract(12.0, x), e.where(e.isfinite(x), 8.0, x)):
        assert tools.storage.to_host(got).tolist() == np.full(shape, 8.0).tolist()
    assert tools.storage.to_host(e.sqrt(x)).tolist() == np.full(shape, 2.0).tolist()
    wide = e.add(x, tools.storage.full((3, *[1] * len(shape)), 1.0, dtype="float32"))
    assert tools.storage.to_host(wide).tolist() == np.full((3, *shape), 5.0).tolist()


def test_eight_axes_broadcast_crosswise(tools: Toolset[Any]) -> None:
    a, b, c = (2, 1, 3, 1, 2, 1, 2, 1), (1, 2, 1, 3, 1, 2, 1, 2), (3, 3, 2, 1, 1, 2)
    hosts = [np.random.default_rng(3).integers(-9, 9, shape).astype(np.float32) for shape in (a, b, c)]
    x, y, z = map(tools.storage.from_host, hosts)
    e = tools.elementwise
    assert tools.storage.to_host(e.subtract(x, y)).tolist() == (hosts[0] - hosts[1]).tolist()
    want = np.where(hosts[0] < hosts[1], hosts[2], hosts[0])
    assert tools.storage.to_host(e.where(e.less(x, y), z, x)).tolist() == want.tolist()
    assert tools.storage.to_host(e.where(e.less(x, y), z, 5.0)).tolist() == np.where(
        hosts[0] < hosts[1], hosts[2], np.float32(5)
    ).tolist()  # fmt: skip


@given(mutually_broadcastable_shapes(num_shapes=3, max_dims=8, min_side=0, max_side=3), st.integers(0, 2**31))
def test_any_shapes_broadcast_as_numpys_do(tools: Toolset[Any], shapes: Any, seed: int) -> None:
    draw = np.random.default_rng(seed)
    hosts = [draw.integers(-99, 99, shape).astype(np.int32) for shape in shapes.input_shapes]
    xs = []
    for host in hosts:
        order = tuple(draw.permutation(host.ndim).tolist())
        x = tools.storage.from_host(host.transpose(order))
        xs.append(tools.layout.transpose(x, tuple(np.argsort(order).tolist())))
    e = tools.elementwise
    got = e.where(e.less(xs[0], xs[1]), xs[2], e.add(xs[0], xs[1]))
    want = np.where(hosts[0] < hosts[1], hosts[2], hosts[0] + hosts[1])
    assert tuple(got.shape) == want.shape
    assert tools.storage.to_host(got).tolist() == want.tolist()


def test_results_share_no_memory_with_operands(tools: Toolset[Any]) -> None:
    x = tools.storage.full((300,), 1.0, dtype="float32")
    e = tools.elementwise
    for y in (e.add(x, 0.0), e.maximum(x, x), e.where(e.isfinite(x), x, x), e.multiply(x, 1.0)):
        assert y.data.mem.ptr != x.data.mem.ptr


def test_more_elements_than_one_sweep_of_all_threads(tools: Toolset[Any]) -> None:
    count = 16_384 * 256 + 77
    x = tools.storage.full((count,), 1, dtype="uint8")
    y = tools.layout.broadcast_to(tools.storage.full((1,), 2, dtype="uint8"), (count,))
    assert (tools.storage.to_host(tools.elementwise.add(x, y)) == 3).all()
