"""Cross entropy and its gradient against float64 formulas: sizes, dtypes, what is ignored, weights, views."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret.spi import DType
from turret_cuda import rows
from turret_cuda.loss import CudaLoss
from turret_cuda.place import Place
from turret_cuda.storage import CudaStorage

X = npt.NDArray[Any]
UNIT: dict[DType, float] = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
DTYPES: list[DType] = ["float32", "float64", "float16", "bfloat16"]


def truth(logits: X, targets: X, weights: X | None, ignore: int) -> tuple[float, X]:
    """sum(w nll) / sum(w) over rows that count, and (softmax - onehot) w / sum(w)."""
    n, classes = logits.shape
    w = np.where(targets != ignore, 1.0 if weights is None else weights.astype(np.float64), 0.0)
    share = w / w.sum() if w.sum() > 0 else w
    safe = np.where(targets != ignore, targets, 0)
    shifted = logits - logits.max(axis=1, keepdims=True)
    p = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
    nll = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(n), safe]
    gradient = (p - (np.arange(classes) == safe[:, None])) * share[:, None]
    return float((share * nll).sum()), gradient


class Bench:
    """The slot, fed from the host. Results come back as float64."""

    def __init__(self, place: Place) -> None:
        self.slot, self.storage = CudaLoss(place), CudaStorage(place)

    def put(self, logits: X, targets: X, weights: X | None, dtype: DType) -> tuple[Any, Any, Any]:
        on_device = None if weights is None else self.storage.from_host(weights, dtype="float32")
        from_host = self.storage.from_host
        return from_host(logits, dtype=dtype), from_host(targets, dtype="int32"), on_device

    def get(self, x: Any) -> X:
        return self.storage.to_host(x).astype(np.float64)

    def check(self, logits: X, targets: X, weights: X | None, ignore: int, dtype: DType = "float32") -> None:
        """Both methods agree with the truth at what the device was given."""
        given = x, _, w = self.put(logits, targets, weights, dtype)
        alone = self.slot.cross_entropy(*given, ignore=ignore)
        along, gradient = self.slot.cross_entropy_grad(*given, ignore=ignore)
        kept: DType = "float64" if dtype == "float64" else "float32"
        assert [self.storage.dtype_of(each) for each in (alone, along, gradient)] == [kept, kept, dtype]
        assert alone.shape == along.shape == () and gradient.shape == logits.shape
        want, slope = truth(self.get(x), targets, None if w is None else self.get(w), ignore)
        few = 64 * UNIT[kept]
        assert abs(float(self.get(alone)) - want) <= few * (abs(want) + 1)
        assert float(self.get(alone)) == float(self.get(along))
        off = np.abs(self.get(gradient) - slope)
        smallest = 2.0**-25 if dtype == "float16" else 0.0
        assert (
            off <= (1.01 * UNIT[dtype] + few) * np.abs(slope) + few * np.abs(slope).max(initial=0.0) + smallest
        ).all()


@pytest.fixture
def bench(place: Place) -> Bench:
    return Bench(place)


def drawn(rows: int, classes: int, ignore: int | None = None) -> tuple[X, X, X]:
    rng = np.random.default_rng(rows * 10_000 + classes)
    targets, weights = rng.integers(0, classes, rows), rng.uniform(0.2, 3.0, rows)
    targets[1:3] = np.array([classes - 1, 0])[: max(0, rows - 1)]
    weights[1::5] = 0.0
    if ignore is not None:
        targets[[0, rows // 2, -1]] = ignore
    return rng.standard_normal((rows, classes)) * 2 + 1, targets, weights


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (70, 31), (9, 32), (9, 33), (7, 255), (3, 1025), (3, 4099)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_size_in_any_dtype(bench: Bench, dtype: DType, shape: tuple[int, int]) -> None:
    logits, targets, _ = drawn(*shape)
    bench.check(logits, targets, None, -100, dtype)
    if shape[0] > 5:
        logits, targets, weights = drawn(*shape, ignore=-100)
        bench.check(logits, targets, weights, -100, dtype)


def test_no_rows_cost_nothing(bench: Bench) -> None:
    bench.check(np.zeros((0, 5)), np.zeros(0, np.int32), None, -1)


def test_more_rows_than_threads_that_add_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_BLOCKS", 3)
    bench.check(*drawn(2500, 2, ignore=-1), -1)


@pytest.mark.parametrize("ignore", [-1, 0, 32, -(2**31), 2**31 - 1])
def test_a_target_of_any_value_is_ignored(bench: Bench, ignore: int) -> None:
    logits, targets, weights = drawn(9, 33, ignore)
    bench.check(logits, targets, weights, ignore)
    bench.check(logits, targets, None, ignore)


@pytest.mark.parametrize("ignore", [2**31, 2**32 + 3, -(2**32) + 3, 2**64 + 3, -(2**70)])
def test_what_int32_cannot_hold_ignores_nothing(bench: Bench, ignore: int) -> None:
    bench.check(*drawn(9, 33), ignore)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 0.1, 1e12])
def test_only_the_ratio_of_weights_matters(bench: Bench, scale: float) -> None:
    logits, targets, weights = drawn(7, 33)
    bench.check(logits, targets, weights * scale, -1)


def test_uneven_weights(bench: Bench) -> None:
    logits, targets, _ = drawn(7, 33)
    bench.check(logits, targets, np.array([1e-6, 1e3, 1.0, 0.0, 20.0, 1e-3, 1.0]), -1)


NOTHING: dict[str, tuple[X, X | None]] = {
    "all ignored": (np.full(5, -1), None),
    "all ignored with weights": (np.full(5, -1), np.ones(5)),
    "all without weight": (np.arange(5), np.zeros(5)),
    "weight only where ignored": (np.array([-1, 2, -1, 3, -1]), np.array([2.0, 0.0, 1.0, 0.0, 0.5])),
}


@pytest.mark.parametrize("word", NOTHING)
@pytest.mark.parametrize("classes", [33, 1030])
def test_a_loss_of_nothing_is_zero_with_a_zero_gradient(bench: Bench, word: str, classes: int) -> None:
    logits = np.random.default_rng(0).standard_normal((5, classes)) * 10
    given = bench.put(logits, *NOTHING[word], "float32")
    loss, gradient = bench.slot.cross_entropy_grad(*given, ignore=-1)
    assert bench.get(bench.slot.cross_entropy(*given, ignore=-1)) == 0.0
    assert bench.get(loss) == 0.0 and not bench.get(gradient).any()


@pytest.mark.parametrize("spoilt", [np.where(np.arange(65) % 2, 3e38, -3e38), np.full(65, np.nan), np.full(65, np.inf)])
def test_rows_that_count_for_nothing_spoil_nothing(bench: Bench, spoilt: X) -> None:
    logits, targets, weights = drawn(9, 65, ignore=-1)
    bad = logits.copy()
    bad[[0, 1, 6, 8]] = spoilt  # ignored, and without a weight
    results = []
    for each in (logits, bad):
        loss, gradient = bench.slot.cross_entropy_grad(*bench.put(each, targets, weights, "float32"), ignore=-1)
        results.append((bench.get(loss), bench.get(gradient)))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_logits_far_apart_and_far_from_zero(bench: Bench) -> None:
    logits = np.random.default_rng(5).standard_normal((6, 65))
    logits[0, 3], logits[1, 64], logits[2, 7] = 1e4, 1e4, -1e4
    logits[3] += 1e4
    logits[4] -= 1e30
    logits[5, 0] = 50.0
    bench.check(logits, np.array([3, 0, 7, 64, 1, 0]), None, -1)


def test_a_target_that_is_no_class_makes_the_loss_nan(bench: Bench) -> None:
    for target in (5, -2):
        given = bench.put(np.zeros((2, 5)), np.array([1, target]), None, "float32")
        assert np.isnan(bench.get(bench.slot.cross_entropy(*given, ignore=-1)))


def test_views_are_read_where_they_lie(bench: Bench) -> None:
    logits, targets, weights = drawn(12, 12)
    x, t, w = bench.put(logits, targets, weights, "float64")
    host = logits.T[::2], targets[::2], bench.get(w)[::2]
    loss, gradient = bench.slot.cross_entropy_grad(x.transpose(1, 0)[::2], t[::2], w[::2], ignore=3)
    want, slope = truth(*host, 3)
    np.testing.assert_allclose(bench.get(loss), want, rtol=1e-14)
    np.testing.assert_allclose(bench.get(gradient), slope, atol=1e-15)


def test_the_gradient_is_the_slope_of_the_loss(bench: Bench) -> None:
    logits, targets, weights = drawn(6, 5, ignore=-1)
    _, gradient = bench.slot.cross_entropy_grad(*bench.put(logits, targets, weights, "float64"), ignore=-1)

    def loss(x: X) -> float:
        return float(bench.get(bench.slot.cross_entropy(*bench.put(x, targets, weights, "float64"), ignore=-1)))

    step, slope = 1e-6, np.zeros_like(logits)
    for at in np.ndindex(logits.shape):
        moved = np.zeros_like(logits)
        moved[at] = step
        slope[at] = (loss(logits + moved) - loss(logits - moved)) / (2 * step)
    np.testing.assert_allclose(bench.get(gradient), slope, atol=1e-8)
