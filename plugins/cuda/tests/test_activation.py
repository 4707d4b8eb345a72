from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from turret_cuda.activation import CudaActivation
from turret_cuda.place import Place
from turret_cuda.storage import CudaStorage

UNIT = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
NATIVE = {"bfloat16": np.dtype(ml_dtypes.bfloat16)} | {n: np.dtype(n) for n in ("float32", "float64", "float16")}
FORMS = ("gelu-erf", "gelu-tanh", "silu")


@pytest.fixture
def activation(place: Place) -> CudaActivation:
    return CudaActivation(place)


@pytest.fixture
def storage(place: Place) -> CudaStorage:
    return CudaStorage(place)


def gate_and_slope(form: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """value / x and the derivative, by SciPy in float64; x of at most 35 in size."""
    if form == "gelu-erf":
        gate = special.ndtr(x)
        return gate, gate + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    if form == "gelu-tanh":
        scale = math.sqrt(2 / math.pi)
        argument, inner = 2 * scale * (x + 0.044715 * x**3), 2 * scale * (1 + 3 * 0.044715 * x * x)
    else:
        argument, inner = x, np.ones_like(x)
    gate = special.expit(argument)
    return gate, gate + x * gate * special.expit(-argument) * inner


def run(activation: CudaActivation, form: str, *operands: Any) -> Any:
    """The form of x, or with dy before x its gradient."""
    name, _, variant = form.partition("-")
    method = getattr(activation, f"{name}_vjp" if len(operands) == 2 else name)
    return method(*operands, form=variant) if variant else method(*operands)


def drawn(shape: tuple[int, ...], dtype: str, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, shape).astype(NATIVE[dtype]).astype(np.float64)


@pytest.mark.parametrize("dtype", list(UNIT))
@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients_agree_with_float64(
    activation: CudaActivation, storage: CudaStorage, form: str, dtype: Any
) -> None:
    x, dy = drawn((5, 131), dtype), drawn((5, 131), dtype, 2)
    put, put_dy = (storage.from_host(each, dtype=dtype) for each in (x, dy))
    gate, slope = gate_and_slope(form, x)
    got, gradient = run(activation, form, put), run(activation, form, put_dy, put)
    assert storage.dtype_of(got) == storage.dtype_of(gradient) == dtype
    computed = 2.0**-50 if dtype == "float64" else 2.0**-21
    bound = UNIT[dtype] * np.abs(x * gate) + computed * np.abs(x) * gate * (1 + x * x)
    smallest = 2.0**-24 if dtype == "float16" else 0.0
    assert (np.abs(storage.to_host(got) - x * gate) <= bound + smallest).all()
    bound = UNIT[dtype] * np.abs(dy * slope) + computed * np.abs(dy) * (1 + np.abs(x))
    assert (np.abs(storage.to_host(gradient) - dy * slope) <= bound + smallest).all()


@pytest.mark.parametrize("dtype", list(UNIT))
def test_gated_values_and_gradients_agree_with_float64(
    activation: CudaActivation, storage: CudaStorage, dtype: Any
) -> None:
    dy, gate, up = (drawn((4, 77), dtype, seed) for seed in (1, 2, 3))
    put = [storage.from_host(each, dtype=dtype) for each in (dy, gate, up)]
    sigmoid, slope = gate_and_slope("silu", gate)
    dgate, dup = activation.gated_silu_vjp(*put)
    unit = UNIT[dtype] + (2.0**-50 if dtype == "float64" else 2.0**-21)
    for got, want in (
        (activation.gated_silu(*put[1:]), gate * sigmoid * up),
        (dgate, dy * up * slope),
        (dup, dy * gate * sigmoid),
    ):
        assert storage.dtype_of(got) == dtype
        assert (np.abs(storage.to_host(got) - want) <= unit * (np.abs(want) + np.abs(dy * up) * 2.0**-2 + 1e-4)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", FORMS)
def test_left_tails_keep_their_relative_accuracy(
    activation: CudaActivation, storage: CudaStorage, form: str, dtype: Any
) -> None:
    x = -np.linspace(1.5, 7.0 if form == "gelu-tanh" else 12.0, 90).astype(dtype).astype(np.float64)
    put, ones = storage.from_host(x, dtype=dtype), storage.full(x.shape, 1.0, dtype=dtype)
    gate, slope = gate_and_slope(form, x)
    # what rounding the argument of the exponential costs: its own size in units
    tolerance = UNIT[dtype] * 200
    np.testing.assert_allclose(storage.to_host(run(activation, form, put)), x * gate, tolerance)
    np.testing.assert_allclose(storage.to_host(run(activation, form, ones, put)), slope, 2 * tolerance)


EXTREMES = (200.0, -200.0, 1e4, -1e4, 1e30, -1e30, 3e38, -3e38, math.inf, -math.inf)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", FORMS)
def test_nothing_far_out_becomes_nan(activation: CudaActivation, storage: CudaStorage, form: str, dtype: Any) -> None:
    far = (*EXTREMES, 1e300, -1e300) if dtype == "float64" else EXTREMES
    x = np.array([value * 4 if form == "silu" and abs(value) == 200 else value for value in far])
    put, dy = storage.from_host(x, dtype=dtype), storage.full(x.shape, 3.0, dtype=dtype)
    got = storage.to_host(run(activation, form, put))
    np.testing.assert_array_equal(got, np.where(x > 0, x, 0).astype(dtype))
    np.testing.assert_array_equal(storage.to_host(run(activation, form, dy, put)), np.where(x > 0, 3.0, 0.0))


def test_a_closed_gate_stays_closed_between_extremes(activation: CudaActivation, storage: CudaStorage) -> None:
    gate = storage.from_host(np.array([-1e30, -math.inf, 1e30, 0.0], np.float32))
    large = storage.full((4,), 1e30, dtype="float32")
    np.testing.assert_array_equal(storage.to_host(activation.gated_silu(gate, large)), [0, 0, math.inf, 0])
    dgate, dup = activation.gated_silu_vjp(large, gate, large)
    np.testing.assert_array_equal(storage.to_host(dgate), [0, 0, math.inf, math.inf])
    np.testing.assert_array_equal(storage.to_host(dup), [0, 0, math.inf, 0])


@pytest.mark.parametrize("dtype", list(UNIT))
def test_nan_stays(activation: CudaActivation, storage: CudaStorage, dtype: Any) -> None:
    x, one = (storage.full((3,), value, dtype=dtype) for value in (math.nan, 1.0))
    for form in FORMS:
        assert np.isnan(storage.to_host(run(activation, form, x))).all()
        assert np.isnan(storage.to_host(run(activation, form, one, x))).all()
        assert np.isnan(storage.to_host(run(activation, form, x, one))).all()
    assert np.isnan(storage.to_host(activation.gated_silu(one, x))).all()


def test_views_are_read_where_they_lie(activation: CudaActivation, storage: CudaStorage) -> None:
    import cupy

    host = drawn((6, 5, 8), "float32")
    x = storage.from_host(host, dtype="float32")
    gate, up = x[..., :4], x[..., 4:]
    sigmoid, slope = gate_and_slope("silu", host[..., :4])
    got = storage.to_host(activation.gated_silu(gate, up))
    np.testing.assert_allclose(got, host[..., :4] * sigmoid * host[..., 4:], 1e-5, 1e-6)
    dy = cupy.broadcast_to(storage.from_host(np.full((1, 1, 1), 2.0, np.float32)), (6, 5, 4))
    dgate, dup = activation.gated_silu_vjp(dy, gate, up)
    np.testing.assert_allclose(storage.to_host(dgate), 2 * host[..., 4:] * slope, 1e-5, 1e-6)
    np.testing.assert_allclose(storage.to_host(dup), 2 * host[..., :4] * sigmoid, 1e-5, 1e-6)
    for form in FORMS:
        _, slope = gate_and_slope(form, host[..., :4].transpose(1, 0, 2))
        got = storage.to_host(run(activation, form, dy.transpose(1, 0, 2), gate.transpose(1, 0, 2)))
        np.testing.assert_allclose(got, 2 * slope, 1e-5, 1e-6)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_any_shape_is_taken(activation: CudaActivation, storage: CudaStorage, shape: tuple[int, ...]) -> None:
    one = storage.from_host(np.ones(shape, np.float32))
    for got in (activation.silu(one), activation.gelu(one, form="erf"), *activation.gated_silu_vjp(one, one, one)):
        assert storage.to_host(got).shape == shape
