"""Values on their way to the device and back: every dtype, every layout, one rounding, and no shared memory."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.spi import BackendMismatch, DTypeError, Toolset, host_dtype

FINFO: Any = ml_dtypes.finfo
DTYPES = ("float32", "int32", "bool", "uint8", "float16", "bfloat16", "float64", "int64")
VALUES: dict[str, Any] = {
    "float32": [0.0, -0.0, 1e-45, -3.4e38, np.inf, np.nan],
    "float64": [0.0, -0.0, 5e-324, 1e300, -np.inf, np.nan],
    "float16": [0.0, -0.0, 6e-8, 65504.0, -np.inf, np.nan],
    "bfloat16": [0.0, -0.0, 1e-40, 3.3e38, np.inf, np.nan],
    "int32": [0, -1, 2**31 - 1, -(2**31)],
    "int64": [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)],
    "uint8": [0, 1, 255],
    "bool": [True, False, True],
}
BITS = {"float16": 11, "bfloat16": 8}
SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (1, 1), (257,)]


def native(dtype: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def nearest(x: Fraction, bits: int) -> float:
    """x > 0 with so many significant bits, ties to even."""
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    exponent -= x < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - bits + 1)
    return float(round(x / unit) * unit)  # Python's round() is to even


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_value_comes_back_bit_for_bit(tools: Toolset[Any], dtype: Any) -> None:
    storage, host = tools.storage, np.array(VALUES[dtype]).astype(native(dtype))
    x = storage.from_host(host)
    assert storage.dtype_of(x) == dtype
    want = host.astype(host_dtype(dtype))
    for y in (x, storage.copy(x), storage.cast(x, dtype)):
        assert storage.to_host(y).tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_comes_back_as_an_array_of_its_own(tools: Toolset[Any], dtype: Any, shape: Any) -> None:
    storage = tools.storage
    host = np.ones(shape, native(dtype))
    x = storage.from_host(host)
    got = storage.to_host(x)
    assert (tuple(x.shape), got.shape, got.dtype) == (shape, shape, host_dtype(dtype))
    assert isinstance(got, np.ndarray) and got.flags.c_contiguous and got.flags.writeable and got.flags.owndata
    got[...] = 0
    assert (storage.to_host(x) == 1).all()


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("of", DTYPES)
def test_a_cast_is_that_of_numpy(tools: Toolset[Any], of: Any, to: Any) -> None:
    values = [0, 1, 200, 255] if "uint8" in (of, to) else [0, 1, -100, 250.75, -2.5, -0.0]
    host = np.array(values).astype(native(of))
    want = host.astype(native(to)).astype(host_dtype(to))
    x = tools.storage.from_host(host)
    for got in (tools.storage.cast(x, to), tools.storage.from_host(host, dtype=to)):
        assert tools.storage.dtype_of(got) == to
        assert tools.storage.to_host(got).tobytes() == want.tobytes()


def test_to_bool_everything_but_zero_is_true(tools: Toolset[Any]) -> None:
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        x = tools.storage.from_host(np.array([0.0, -0.0, 1e-40, 0.5, np.nan, np.inf]), dtype=dtype)
        want = [False, False, dtype != "float16", True, True, True]
        assert tools.storage.to_host(tools.storage.cast(x, "bool")).tolist() == want


# Just beside the middle between two halves, and on the middle itself once rounded to float32.
BESIDE_THE_MIDDLE = [
    (dtype, sign * scale * (middle + side))
    for dtype, bits in BITS.items()
    for middle in (1 + 2.0**-bits, 1 + 3 * 2.0**-bits)
    for side in (-(2.0**-40), 2.0**-40)
    for scale in (1.0, 2.0**-13, 2.0**12)
    for sign in (1, -1)
]


def test_two_roundings_would_get_some_of_these_values_wrong() -> None:
    for dtype, bits in BITS.items():
        values = [value for name, value in BESIDE_THE_MIDDLE if name == dtype and value > 0]
        twice = np.array(values).astype(np.float32).astype(native(dtype)).astype(np.float64)
        assert (twice != [nearest(Fraction(value), bits) for value in values]).any()


@pytest.mark.parametrize(("dtype", "value"), BESIDE_THE_MIDDLE)
def test_float64_becomes_a_half_by_one_rounding(tools: Toolset[Any], dtype: Any, value: float) -> None:
    storage = tools.storage
    want = np.copysign(nearest(abs(Fraction(value)), BITS[dtype]), value)
    host = np.array([value])
    ways: dict[str, Callable[[], Any]] = {
        "cast": lambda: storage.cast(storage.from_host(host), dtype),
        "from_host": lambda: storage.from_host(host, dtype=dtype),
        "full": lambda: storage.full((1,), value, dtype=dtype),
        "scalar": lambda: tools.elementwise.add(storage.full((1,), 0.0, dtype=dtype), value),
    }
    for way, call in ways.items():
        assert storage.to_host(call()).item() == want, way


@given(st.floats(min_value=2.0**-12, max_value=60000.0))
def test_any_float64_becomes_the_nearest_half(tools: Toolset[Any], value: float) -> None:
    storage = tools.storage
    for dtype, bits in BITS.items():
        want = nearest(Fraction(value), bits)
        assert storage.to_host(storage.full((), value, dtype=dtype)) == want  # type: ignore[arg-type]
        assert storage.to_host(storage.cast(storage.from_host(np.array(value)), dtype)) == want  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", BITS)
def test_a_half_at_the_ends_of_its_range(tools: Toolset[Any], dtype: Any) -> None:
    storage = tools.storage
    greatest = float(FINFO(native(dtype)).max)
    smallest = float(FINFO(native(dtype)).smallest_subnormal)
    half = greatest * 2.0 ** -(BITS[dtype] + 1)  # a little less than half of the last step
    pairs = [
        (greatest + 0.9 * half, greatest),
        (greatest + 1.1 * half, np.inf),
        (1e300, np.inf),
        (-1e300, -np.inf),
        (0.5 * smallest, 0.0),
        (0.50001 * smallest, smallest),
        (-1e-300, -0.0),
        (1.5 * smallest, 2 * smallest),
    ]
    host, want = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs], np.float32)
    for x in (storage.from_host(host, dtype=dtype), storage.cast(storage.from_host(host), dtype)):
        assert storage.to_host(x).astype(np.float32).tobytes() == want.tobytes()
    for value, expected in pairs:
        assert storage.to_host(storage.full((), value, dtype=dtype)).astype(np.float32) == np.float32(expected)


def test_int64_beyond_what_a_double_holds_stays_exact(tools: Toolset[Any]) -> None:
    storage, numbers = tools.storage, [2**53 + 1, 2**62 + 1, -(2**53) - 1, 2**63 - 1]
    x = storage.from_host(np.array(numbers))
    assert storage.to_host(x).tolist() == numbers
    for number in numbers:
        assert storage.to_host(storage.full((2,), number, dtype="int64")).tolist() == [number] * 2
    near = np.array([2**24 + 1, 2**54 + 2**30 + 1, 2**62 + 2**38 + 1])  # in a double the last one is a tie
    assert storage.to_host(storage.cast(storage.from_host(near), "float32")).tolist() == [
        nearest(Fraction(int(n)), 24) for n in near
    ]


@pytest.mark.parametrize("power", [25, 53, 54, 60, 62])
def test_int64_becomes_bfloat16_by_one_rounding(tools: Toolset[Any], power: int) -> None:
    storage = tools.storage
    middle = 2**power + 2 ** (power - 8)
    numbers = [
        sign * (middle + step + side) for step in (0, 2 ** (power - 7)) for side in (-1, 0, 1) for sign in (1, -1)
    ]
    want = [float(np.copysign(nearest(Fraction(abs(number)), 8), number)) for number in numbers]
    host = np.array(numbers)
    assert storage.to_host(storage.cast(storage.from_host(host), "bfloat16")).tolist() == want
    assert storage.to_host(storage.from_host(host, dtype="bfloat16")).tolist() == want
    for number, expected in zip(numbers, want, strict=True):
        assert storage.to_host(storage.full((), number, dtype="bfloat16")) == expected


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::-1],
        lambda x: x[:, ::2],
        lambda x: x.T,
        lambda x: np.broadcast_to(x[:1], (3, *x.shape[1:])),
        lambda x: x[:0],
        lambda x: np.asfortranarray(x),
        lambda x: x[1:, ::-3, None],
        lambda x: x[2, 3],
    ],
)
@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16", "int64"])
def test_any_layout_of_the_host_arrives(tools: Toolset[Any], view: Any, dtype: Any) -> None:
    host = view(np.arange(24, dtype=np.float32).reshape(4, 6))
    if isinstance(host, np.ndarray):
        host.flags.writeable = False
    got = tools.storage.to_host(tools.storage.from_host(np.asarray(host), dtype=dtype))
    assert got.shape == host.shape
    assert got.tolist() == host.tolist()


def test_later_writes_to_the_host_do_not_arrive(tools: Toolset[Any]) -> None:
    storage = tools.storage
    for host in (np.zeros((300, 300), np.float32), np.zeros(3, np.float32)):
        x = storage.from_host(host)
        host[...] = 1
        first = storage.to_host(x)
        assert not first.any()
        first[...] = 2
        assert not storage.to_host(x).any()


@pytest.mark.parametrize("name", ["complex64", "uint16", "int16", "uint64", "float8_e4m3fn", "object"])
def test_a_dtype_the_device_lacks_is_refused_not_narrowed(tools: Toolset[Any], name: Any) -> None:
    storage, x = tools.storage, tools.storage.full((2,), 1.0, dtype="float32")
    calls: list[Callable[[], Any]] = [
        lambda: storage.from_host(np.ones(2, np.float32), dtype=name),
        lambda: storage.full((2,), 1.0, dtype=name),
        lambda: storage.cast(x, name),
    ]
    if not name.startswith("float8"):
        calls.append(lambda: storage.from_host(np.ones(2, name)))
    for call in calls:
        with pytest.raises(DTypeError, match=rf"cuda has no {name}; wanted one of float32, .*; cast on the host first"):
            call()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_full_makes_a_fresh_array_of_one_value(tools: Toolset[Any], dtype: Any, shape: Any) -> None:
    x, y = (tools.storage.full(shape, 1.0, dtype=dtype) for _ in range(2))
    assert tools.storage.dtype_of(x) == dtype
    assert tools.storage.to_host(x).tolist() == np.ones(shape).tolist()
    assert not x.size or x.data.ptr != y.data.ptr


def test_full_takes_a_value_as_its_dtype_does(tools: Toolset[Any]) -> None:
    cases: list[tuple[Any, Any, Any]] = [
        ("float32", 1e300, np.inf), ("float32", 2**100, 2.0**100), ("float64", 1e300, 1e300), ("int32", -1, -1),
        ("bool", 2, True), ("bool", 0.0, False), ("uint8", 255, 255), ("float16", 65520.0, np.inf),
    ]  # fmt: skip
    for dtype, value, want in cases:
        assert tools.storage.to_host(tools.storage.full((), value, dtype=dtype)) == want
    negative = tools.storage.to_host(tools.storage.full((2,), -0.0, dtype="float32"))
    assert np.signbit(negative).all()
    assert np.isnan(tools.storage.to_host(tools.storage.full((2,), float("nan"), dtype="bfloat16"))).all()


@pytest.mark.parametrize("stop", [0, 1, 257, 5000])
def test_arange_counts_from_0(tools: Toolset[Any], stop: int) -> None:
    x = tools.storage.arange(stop)
    assert tools.storage.dtype_of(x) == "int32"
    assert tools.storage.to_host(x).tolist() == list(range(stop))


def test_a_copy_shares_no_memory_with_a_view_of_any_kind(tools: Toolset[Any]) -> None:
    storage, host = tools.storage, np.arange(24.0).reshape(2, 3, 4)
    x = storage.from_host(host)
    views = {
        "turned": (tools.layout.transpose(x, (2, 0, 1)), host.transpose(2, 0, 1)),
        "strided": (tools.layout.slice(x, (0, 1, 1), (2, 3, 4), step=(1, 1, 2)), host[:, 1:, 1::2]),
        "repeated": (tools.layout.broadcast_to(x, (2, 2, 3, 4)), np.broadcast_to(host, (2, 2, 3, 4))),
        "empty": (tools.layout.slice(x, (0, 3, 0), (2, 3, 4)), host[:, 3:]),
    }
    for name, (view, want) in views.items():
        copy = storage.copy(view)
        assert copy.flags.c_contiguous, name
        assert not copy.size or copy.data.mem.ptr != x.data.mem.ptr, name
        for each in (view, copy, storage.cast(view, "float32")):
            assert storage.to_host(each).tolist() == want.tolist(), name


def test_an_array_that_is_none_of_cupys_is_another_backends(tools: Toolset[Any]) -> None:
    for other in (np.ones(2, np.float32), object()):
        with pytest.raises(
            BackendMismatch, match=r"cuda:emulated got .*, wanted its own cupy.ndarray; .*turret.tensor"
        ):
            tools.storage.dtype_of(other)


def test_memory_is_counted_while_arrays_live(tools: Toolset[Any]) -> None:
    before = tools.storage.memory()
    assert before is not None
    x = tools.storage.full((1 << 20,), 1.0, dtype="float32")
    during = tools.storage.memory()
    assert during is not None
    assert during.used_bytes - before.used_bytes == x.nbytes
    assert during.peak_bytes >= during.used_bytes
    assert during.total_bytes >= during.peak_bytes
    del x
    after = tools.storage.memory()
    assert after is not None
    assert after.used_bytes == before.used_bytes
    assert after.peak_bytes >= during.used_bytes


def test_the_device_says_that_it_is_emulated(tools: Toolset[Any]) -> None:
    device = tools.storage.device()
    assert device.kind == "cuda:emulated"
    assert device.dtypes == frozenset(DTYPES)
    assert device.name == "emulated on the host, no GPU"
    assert not device.flushes_subnormals
