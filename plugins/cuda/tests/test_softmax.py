"""Softmax and log-softmax against float64 formulas, whatever the size of a row and wherever it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret.spi import DType
from turret_cuda import rows
from turret_cuda.place import Place
from turret_cuda.softmax import CudaSoftmax
from turret_cuda.storage import CudaStorage

X = npt.NDArray[Any]
UNIT: dict[DType, float] = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SIZES = [1, 31, 32, 33, 255, 1025, 4099]
DTYPES: list[DType] = ["float32", "float64", "float16", "bfloat16"]


def softmax(x: X) -> X:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def log_softmax(x: X) -> X:
    shifted = x - x.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def softmax_vjp(dy: X, y: X) -> X:
    return np.asarray(y * (dy - (y * dy).sum(axis=-1, keepdims=True)))


def log_softmax_vjp(dy: X, y: X) -> X:
    return np.asarray(dy - np.exp(y) * dy.sum(axis=-1, keepdims=True))


FORWARD = {"softmax": softmax, "log_softmax": log_softmax}
BACKWARD = {"softmax": softmax_vjp, "log_softmax": log_softmax_vjp}


class Bench:
    """The slot, fed from the host; what the device was given is what `exact` says."""

    def __init__(self, place: Place) -> None:
        self.slot, self.storage = CudaSoftmax(place), CudaStorage(place)

    def put(self, host: X, dtype: DType) -> Any:
        return self.storage.from_host(host, dtype=dtype)

    def get(self, x: Any) -> X:
        return self.storage.to_host(x).astype(np.float64)


@pytest.fixture
def bench(place: Place) -> Bench:
    return Bench(place)


def close(got: X, want: X, dtype: DType, terms: float = 1.0) -> None:
    """Within one rounding to the dtype and some in what the device computes in, beside `terms` that were added up."""
    assert got.shape == want.shape
    computed = UNIT["float64"] if dtype == "float64" else UNIT["float32"]
    allowed = (UNIT[dtype] * 1.01 + 64 * computed) * (np.abs(want) + terms * 1e-2) + (dtype == "float16") * 2.0**-25
    assert (np.abs(got - want) <= allowed).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORWARD)
def test_rows_of_any_size_and_their_gradients(bench: Bench, name: str, dtype: DType, size: int) -> None:
    rng = np.random.default_rng(size)
    x, dy = (bench.put(rng.standard_normal((2, 3, size)) * 2, dtype) for _ in range(2))
    y = getattr(bench.slot, name)(x)
    assert bench.storage.dtype_of(y) == dtype
    close(bench.get(y), FORWARD[name](bench.get(x)), dtype)
    got = bench.get(getattr(bench.slot, f"{name}_vjp")(dy, y))
    want = BACKWARD[name](bench.get(dy), bench.get(y))
    close(got, want, dtype, terms=float(np.abs(bench.get(dy)).max()) * size)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 3), (3, 0), (1,), (4,)])
@pytest.mark.parametrize("name", FORWARD)
def test_no_rows_one_row_and_empty_rows(bench: Bench, name: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape)
    y = getattr(bench.slot, name)(bench.put(x, "float64"))
    assert y.shape == shape
    assert getattr(bench.slot, f"{name}_vjp")(y, y).shape == shape
    if x.size:
        close(bench.get(y), FORWARD[name](x), "float64")


@pytest.mark.parametrize("size", [7, 1025])
@pytest.mark.parametrize("name", FORWARD)
def test_blocks_go_on_to_further_rows(bench: Bench, name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_BLOCKS", 3)
    x, dy = np.random.default_rng(2).standard_normal((2, 61, size))
    y = getattr(bench.slot, name)(bench.put(x, "float64"))
    close(bench.get(y), FORWARD[name](x), "float64")
    got = bench.get(getattr(bench.slot, f"{name}_vjp")(bench.put(dy, "float64"), y))
    close(got, BACKWARD[name](dy, FORWARD[name](x)), "float64", terms=size)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.transpose(1, 0),
    "strided": lambda x: x[:, ::2],
    "cut out": lambda x: x[1:3, 1:],
    "from an odd place": lambda x: x.reshape(x.size)[3:],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORWARD)
def test_a_view_has_the_bits_of_its_copy(bench: Bench, name: str, dtype: DType, view: str) -> None:
    x = VIEWS[view](bench.put(np.random.default_rng(3).standard_normal((4, 70)), dtype))
    dense = bench.storage.copy(x)
    forward, backward = getattr(bench.slot, name), getattr(bench.slot, f"{name}_vjp")
    np.testing.assert_array_equal(bench.get(forward(x)), bench.get(forward(dense)))
    np.testing.assert_array_equal(bench.get(backward(x, x)), bench.get(backward(dense, dense)))
    close(bench.get(forward(x)), FORWARD[name](bench.get(dense)), dtype)


def one_finite() -> X:
    x = np.full((4, 65), -np.inf)
    x[[0, 1, 2, 3], [0, 17, 63, 64]] = -3.0, 0.0, 1e30, -1e30
    return x


EXTREMES: dict[str, X] = {
    "one finite": one_finite(),
    "masked": np.where(np.arange(2050) <= np.array([[0], [3], [1500]]), 1.5, -np.inf),
    "alike": np.repeat([[0.0], [1e30], [-3e38], [-3.4028234663852886e38]], 65, axis=1),
    "far apart": np.where(np.arange(65) % 2, [[1e30], [3e38]], [[-1e30], [-3e38]]),
    "up and down": np.stack([np.linspace(-40, 40, 4099), np.linspace(40, -40, 4099)]),
}


@pytest.mark.parametrize("values", EXTREMES)
@pytest.mark.parametrize("name", FORWARD)
def test_rows_that_overflow_without_the_shift(bench: Bench, name: str, values: str) -> None:
    x = bench.put(EXTREMES[values], "float32")
    got = bench.get(getattr(bench.slot, name)(x))
    with np.errstate(all="ignore"):
        want = FORWARD[name](bench.get(x)).astype(np.float32).astype(np.float64)
        near = np.abs(got - want) <= 4e-5 * np.abs(want) + 1e-35
    assert (near | (got == want)).all()


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("size", [65, 1100])
def test_rows_without_a_softmax_leave_their_neighbours_alone(bench: Bench, name: str, size: int) -> None:
    x = np.random.default_rng(4).standard_normal((7, size))
    x[1], x[3, -1], x[5, 2] = -np.inf, np.inf, np.nan
    got = bench.get(getattr(bench.slot, name)(bench.put(x, "float64")))
    close(got[::2], FORWARD[name](x[::2]), "float64")
    assert np.isnan(got[5]).all()
