"""Affine maps against float64 formulas: rows of any number of axes, one rounding, gradients of weight and bias."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cupy import emulated

from turret.spi import DType
from turret_cuda.linear import MOST_PARTS, ROWS_OF_A_PART, CudaLinear
from turret_cuda.place import Place
from turret_cuda.storage import CudaStorage

X = npt.NDArray[Any]
UNITS: dict[DType, float] = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LEADS: tuple[tuple[int, ...], ...] = ((), (1,), (7,), (2, 3), (4, 1, 3), (2, 0), (0,))


class Arrays:
    """Random values as the device has them, on the device and in float64."""

    def __init__(self, place: Place, dtype: DType = "float32", seed: int = 1) -> None:
        self.storage, self.slot = CudaStorage(place), CudaLinear(place)
        self.dtype, self._draw = dtype, np.random.default_rng(seed)

    def made(self, *shape: int) -> tuple[Any, X]:
        array = self.storage.from_host(self._draw.standard_normal(shape), dtype=self.dtype)
        return array, self.exact(array)

    def exact(self, array: Any) -> X:
        return self.storage.to_host(array).astype(np.float64)

    def close(self, got: Any, want: X, size: X, terms: int) -> None:
        """Within the roundings of a sum whose terms are as large as `size` together, and one of the result."""
        assert self.storage.dtype_of(got) == self.dtype
        summed = UNITS["float64" if self.dtype == "float64" else "float32"]
        allowed = (terms + 3) * summed * size + UNITS[self.dtype] * np.abs(want) + 1e-7 * (self.dtype == "float16")
        assert got.shape == want.shape
        assert (np.abs(self.exact(got) - want) <= allowed).all()


@pytest.mark.parametrize("dtype", sorted(UNITS))
@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("biased", [True, False])
def test_every_row_is_mapped_and_rounded_once(place: Place, lead: tuple[int, ...], dtype: DType, biased: bool) -> None:
    do = Arrays(place, dtype)
    (x, wx), (weight, ww), (bias, wb) = do.made(*lead, 65), do.made(33, 65), do.made(33)
    wb = wb * biased
    got = do.slot.linear(x, weight, bias if biased else None)
    do.close(got, wx @ ww.T + wb, np.abs(wx) @ np.abs(ww.T) + np.abs(wb), 65)


@pytest.mark.parametrize("dtype", sorted(UNITS))
@pytest.mark.parametrize("lead", LEADS)
def test_gradients_follow_the_formulas(place: Place, lead: tuple[int, ...], dtype: DType) -> None:
    do = Arrays(place, dtype)
    (dy, wdy), (x, wx), (weight, ww) = do.made(*lead, 33), do.made(*lead, 65), do.made(33, 65)
    do.close(do.slot.linear_vjp_input(dy, weight), wdy @ ww, np.abs(wdy) @ np.abs(ww), 33)
    dweight, dbias = do.slot.linear_vjp_weight(dy, x)
    rows, others = wdy.reshape(-1, 33), wx.reshape(-1, 65)
    do.close(dweight, rows.T @ others, np.abs(rows.T) @ np.abs(others), len(rows))
    do.close(dbias, rows.sum(0), np.abs(rows).sum(0), len(rows))


@pytest.mark.parametrize("rows", [1, 7, 8, 255, 256, 257, 2049, ROWS_OF_A_PART * MOST_PARTS + 300])
@pytest.mark.parametrize("columns", [1, 31, 32, 33, 70])
def test_a_bias_gradient_counts_every_row_once(place: Place, rows: int, columns: int) -> None:
    storage = CudaStorage(place)
    values = np.arange(rows * columns).reshape(rows, columns) % 11 - 5.0  # sums of whole numbers are exact
    x = storage.from_host(values.astype(np.float32))
    _, got = CudaLinear(place).linear_vjp_weight(x, storage.full((rows, 1), 1.0, dtype="float32"))
    assert (storage.to_host(got) == values.sum(0)).all()


def test_a_bias_gradient_of_halves_is_summed_in_float32(place: Place) -> None:
    storage = CudaStorage(place)
    ones = storage.full((5000, 2), 1.0, dtype="bfloat16")
    _, got = CudaLinear(place).linear_vjp_weight(ones, ones)
    assert (storage.to_host(got) == 4992.0).all()  # the nearest to 5000 that has 8 binary digits


def test_gradients_have_the_same_bits_at_every_run(place: Place) -> None:
    do = Arrays(place)
    (dy, _), (x, _) = do.made(3000, 40), do.made(3000, 5)
    first, second = (tuple(do.storage.to_host(g).tobytes() for g in do.slot.linear_vjp_weight(dy, x)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    "cut", [np.s_[:, :, 3:36], np.s_[:, 1:3, :33], np.s_[:, ::2, 7:], np.s_[::-1, :, 7:], np.s_[:, :, 7::1]]
)
def test_views_are_mapped_like_their_copies(place: Place, cut: tuple[slice, ...]) -> None:
    do = Arrays(place)
    (whole, exact), (weight, ww), (bias, wb) = do.made(2, 6, 40), do.made(40, 70), do.made(70, 3)
    x, wx, turned, wide = whole[cut], exact[cut], weight[7:].transpose((1, 0)), ww[7:].T
    got = do.slot.linear(x, turned, bias[:, 1])
    do.close(got, wx @ wide.T + wb[:, 1], np.abs(wx) @ np.abs(wide.T) + np.abs(wb[:, 1]), 33)
    (dy, wdy), rows = do.made(70, *wx.shape[:2]), wx.reshape(-1, 33)
    dy, wdy = dy.transpose((1, 2, 0)), wdy.transpose((1, 2, 0))
    do.close(do.slot.linear_vjp_input(dy, turned), wdy @ wide, np.abs(wdy) @ np.abs(wide), 70)
    dweight, dbias = do.slot.linear_vjp_weight(dy, x)
    flat = wdy.reshape(-1, 70)
    do.close(dweight, flat.T @ rows, np.abs(flat.T) @ np.abs(rows), len(rows))
    do.close(dbias, flat.sum(0), np.abs(flat).sum(0), len(rows))


def test_rows_of_a_joint_projection_are_not_copied(place: Place) -> None:
    do = Arrays(place)
    (whole, exact), (weight, ww) = do.made(2, 6, 99), do.made(20, 33)
    place.wait("a test")
    before = dict(emulated.launches)
    got = do.slot.linear(whole[:, :, 33:66], weight, None)
    place.wait("a test")
    assert dict(emulated.launches) == before
    want = exact[:, :, 33:66]
    do.close(got, want @ ww.T, np.abs(want) @ np.abs(ww.T), 33)


def test_no_inputs_leave_the_bias(place: Place) -> None:
    do = Arrays(place)
    bias, wb = do.made(4)
    x, weight = (do.storage.full(shape, 1.0, dtype="float32") for shape in ((3, 0), (4, 0)))
    assert (do.exact(do.slot.linear(x, weight, bias)) == wb).all()
    assert not do.exact(do.slot.linear(x, weight, None)).any()


def test_nan_and_infinities_reach_their_row_or_column(place: Place) -> None:
    do = Arrays(place)
    x, weight, bias = (np.ones(shape, np.float32) for shape in ((6, 5), (7, 5), (7,)))
    x[1, 4], weight[3, 0], bias[5], bias[6] = np.nan, np.inf, np.nan, -np.inf
    got = do.exact(do.slot.linear(*(do.storage.from_host(each) for each in (x, weight, bias))))
    with np.errstate(all="ignore"):
        want = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
    assert np.array_equal(got, want, equal_nan=True)
