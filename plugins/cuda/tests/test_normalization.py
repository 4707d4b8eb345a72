"""Layer norm and RMS norm against float64 formulas, whatever the size of a row and the number of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret.spi import DType
from turret_cuda import normalization, rows
from turret_cuda.normalization import CudaNormalization
from turret_cuda.place import Place
from turret_cuda.storage import CudaStorage

X = npt.NDArray[Any]
UNIT: dict[DType, float] = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SIZES = [1, 31, 32, 33, 255, 1025, 4099]
DTYPES: list[DType] = ["float32", "float64", "float16", "bfloat16"]
CENTRED = {"layer_norm": True, "rms_norm": False}
EPS = 1e-5


def normed(x: X, centred: bool, eps: float) -> tuple[X, X, X]:
    """n, mean, rstd of rows; the mean counts as 0 where they are not centred."""
    mean = x.mean(axis=-1, keepdims=True) * centred
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + eps)
    return (x - mean) * rstd, mean, rstd


def gradients(dy: X, n: X, weight: X, rstd: X, centred: bool) -> list[X]:
    g = dy * weight
    dx = rstd * (g - g.mean(axis=-1, keepdims=True) * centred - n * (g * n).mean(axis=-1, keepdims=True))
    over = tuple(range(dy.ndim - 1))
    return [dx, (dy * n).sum(axis=over), dy.sum(axis=over)][: 3 if centred else 2]


def magnitudes(dy: X, n: X, weight: X, mean: X, rstd: X) -> list[X]:
    """What the gradients would be if nothing cancelled."""
    dy, n = np.abs(dy), np.abs(n) + np.abs(mean) * rstd
    g, over = dy * np.abs(weight), tuple(range(dy.ndim - 1))
    dx = rstd * (g + g.mean(axis=-1, keepdims=True) + n * (g * n).mean(axis=-1, keepdims=True))
    return [dx, (dy * n).sum(axis=over), dy.sum(axis=over)]


class Bench:
    """The slot, fed from the host. Results come back as float64."""

    def __init__(self, place: Place) -> None:
        self.slot, self.storage = CudaNormalization(place), CudaStorage(place)

    def put(self, host: X, dtype: DType = "float32") -> Any:
        return self.storage.from_host(host, dtype=dtype)

    def get(self, x: Any) -> X:
        return self.storage.to_host(x).astype(np.float64)

    def drawn(self, shape: tuple[int, ...], dtype: DType, mean: float = 0.7) -> tuple[Any, Any, Any, Any]:
        """x, weight, bias, dy on the device."""
        rng, size = np.random.default_rng(sum(shape)), shape[-1:]
        hosts = rng.standard_normal(shape) * 2 + mean, rng.standard_normal(size) * 3, rng.standard_normal(size) * 9
        x, weight, bias = (self.put(each, dtype) for each in hosts)
        return x, weight, bias, self.put(rng.standard_normal(shape) + 0.3, dtype)

    def forward(self, name: str, x: Any, weight: Any, bias: Any, eps: float = EPS) -> list[Any]:
        rest = (bias,) if CENTRED[name] else ()
        return list(getattr(self.slot, name)(x, weight, *rest, eps=eps))

    def check(self, name: str, x: Any, weight: Any, bias: Any, dy: Any, dtype: DType) -> None:
        """Results and gradients agree with the formulas at what the device was given."""
        kept: DType = "float64" if dtype == "float64" else "float32"
        centred = CENTRED[name]
        out, *statistics = self.forward(name, x, weight, bias)
        n, mean, rstd = normed(self.get(x), centred, EPS)
        shift = self.get(bias) if centred else np.zeros(())
        size = (np.abs(n) + np.abs(mean) * rstd) * np.abs(self.get(weight)) + np.abs(shift)
        close(self.get(out), n * self.get(weight) + shift, size, dtype)
        assert self.storage.dtype_of(out) == dtype and self.storage.dtype_of(statistics[-1]) == kept
        for got, want in zip(statistics, [mean, rstd] if centred else [rstd], strict=True):
            close(self.get(got), want, np.abs(want) + np.abs(self.get(x)).max(initial=0.0) * centred, kept)
        results = getattr(self.slot, f"{name}_vjp")(dy, x, weight, *statistics)
        wanted = gradients(self.get(dy), n, self.get(weight), rstd, centred)
        sizes = magnitudes(self.get(dy), n, self.get(weight), mean, rstd)
        for got, want, about in zip(results, wanted, sizes[: len(wanted)], strict=True):
            assert self.storage.dtype_of(got) == dtype
            close(self.get(got), want, about, dtype)


def close(got: X, want: X, size: X | float, dtype: DType) -> None:
    """Within one rounding to the dtype, beside roundings of numbers as large as `size` in what is computed in."""
    assert got.shape == want.shape
    computed = UNIT["float64"] if dtype == "float64" else UNIT["float32"]
    smallest = 2.0**-25 if dtype == "float16" else 0.0
    assert (np.abs(got - want) <= 1.01 * UNIT[dtype] * np.abs(want) + 64 * computed * size + smallest).all()


@pytest.fixture
def bench(place: Place) -> Bench:
    return Bench(place)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CENTRED)
def test_rows_of_any_size_and_their_gradients(bench: Bench, name: str, dtype: DType, size: int) -> None:
    bench.check(name, *bench.drawn((2, 3, size), dtype), dtype)


@pytest.mark.parametrize("shape", [(1,), (7,), (1, 65), (300, 5), (3, 90, 34)])
@pytest.mark.parametrize("name", CENTRED)
def test_one_row_and_many(bench: Bench, name: str, shape: tuple[int, ...]) -> None:
    bench.check(name, *bench.drawn(shape, "float32"), "float32")


@pytest.mark.parametrize("name", CENTRED)
def test_blocks_and_chunks_go_on_to_further_rows(bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_BLOCKS", 3)
    monkeypatch.setattr(normalization, "MOST_CHUNKS", 3)
    bench.check(name, *bench.drawn((250, 9), "float64"), "float64")
    bench.check(name, *bench.drawn((11, 1030), "float64"), "float64")


@pytest.mark.parametrize("name", CENTRED)
def test_without_rows_the_gradients_of_the_weights_are_zero(bench: Bench, name: str) -> None:
    x, weight, bias, dy = bench.drawn((2, 0, 7), "float32")
    out, *statistics = bench.forward(name, x, weight, bias)
    assert [each.shape for each in (out, *statistics)] == [(2, 0, 7), *[(2, 0, 1)] * len(statistics)]
    dx, *sums = getattr(bench.slot, f"{name}_vjp")(dy, x, weight, *statistics)
    assert dx.shape == (2, 0, 7)
    for each in sums:
        np.testing.assert_array_equal(bench.get(each), np.zeros(7))


@pytest.mark.parametrize("name", CENTRED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_view_has_the_bits_of_its_copy(bench: Bench, name: str, dtype: DType) -> None:
    x, weight, bias, dy = bench.drawn((6, 70), dtype)
    views = x[::2, 3:], weight[3:], bias[3:]
    out, *statistics = bench.forward(name, *views)
    for got, want in zip([out, *statistics], bench.forward(name, *map(bench.storage.copy, views)), strict=True):
        np.testing.assert_array_equal(bench.get(got), bench.get(want))
    operands = dy[::2, 3:], views[0], weight[3:], *statistics
    backward = getattr(bench.slot, f"{name}_vjp")
    for got, want in zip(backward(*operands), backward(*map(bench.storage.copy, operands)), strict=True):
        np.testing.assert_array_equal(bench.get(got), bench.get(want))


@pytest.mark.parametrize("mean", [1e4, -3e5])
def test_a_mean_far_above_the_spread_costs_no_more_than_its_rounding(bench: Bench, mean: float) -> None:
    x, weight, bias, _ = bench.drawn((5, 1300), "float32", mean)
    out, _, rstd = bench.forward("layer_norm", x, weight, bias)
    n, _, want = normed(bench.get(x), True, EPS)
    rounding = 4 * UNIT["float32"] * abs(mean) * want.max()
    np.testing.assert_allclose(bench.get(rstd), want, rtol=1e-5 + rounding**2)
    off = np.abs(bench.get(out) - n * bench.get(weight) - bench.get(bias))
    assert off.max() <= rounding * np.abs(bench.get(weight)).max()


@pytest.mark.parametrize("name", CENTRED)
@pytest.mark.parametrize(
    "values", [np.zeros((3, 65)), np.full((3, 65), 3.0), np.eye(3, 65) * 1e15, np.eye(3, 65) * 1e-6]
)
def test_rows_that_are_alike_large_or_tiny(bench: Bench, name: str, values: X) -> None:
    x, (_, weight, bias, dy) = bench.put(values), bench.drawn((3, 65), "float32")
    bench.check(name, x, weight, bias, dy, "float32")


@pytest.mark.parametrize("eps", [0.0, 1e-12, 0.1])
@pytest.mark.parametrize("name", CENTRED)
def test_eps_is_added_to_the_mean_square(bench: Bench, name: str, eps: float) -> None:
    x, weight, bias, _ = bench.drawn((4, 65), "float64")
    *_, rstd = bench.forward(name, x, weight, bias, eps)
    np.testing.assert_allclose(bench.get(rstd), normed(bench.get(x), CENTRED[name], eps)[2], rtol=1e-13)


@pytest.mark.parametrize("name", CENTRED)
def test_halves_are_summed_in_float32(bench: Bench, name: str) -> None:
    x = bench.put(np.random.default_rng(6).uniform(280.0, 320.0, (3, 1000)), "float16")
    _, weight, bias, dy = bench.drawn((3, 1000), "float16")
    bench.check(name, x, weight, bias, dy, "float16")
    ones, one, zero = bench.put(np.ones((3000, 4)), "float16"), np.ones((3000, 1)), np.zeros((3000, 1))
    statistics = [bench.put(each) for each in ((zero, one) if CENTRED[name] else (one,))]
    _, *sums = getattr(bench.slot, f"{name}_vjp")(ones, ones, bench.put(np.ones(4), "float16"), *statistics)
    for each in sums:
        np.testing.assert_array_equal(bench.get(each), np.full(4, 3000.0))


@pytest.mark.parametrize("name", CENTRED)
def test_not_a_number_stays_in_its_row_and_its_column(bench: Bench, name: str) -> None:
    x, weight, bias, dy = bench.drawn((4, 65), "float32")
    spoilt = bench.get(dy)
    spoilt[2, 0] = np.nan
    _, *statistics = bench.forward(name, x, weight, bias)
    dx, *sums = getattr(bench.slot, f"{name}_vjp")(bench.put(spoilt), x, weight, *statistics)
    np.testing.assert_array_equal(np.isnan(bench.get(dx)).all(axis=1), np.arange(4) == 2)
    np.testing.assert_array_equal(np.isnan(bench.get(dx)).any(axis=1), np.arange(4) == 2)
    for each in sums:
        np.testing.assert_array_equal(np.isnan(bench.get(each)), np.arange(65) == 0)
