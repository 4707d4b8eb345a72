"""The update against the paper's equations, and its promise to change all or nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret.spi import Adapted
from turret_cpu.backend import CpuBackend

X = npt.NDArray[Any]
SIZES = [(3,), (130, 65), (1,), (4096,), (9000,)]


def scalar(x: float) -> X:
    return np.asarray(x, np.float32)


def tensors(seed: int) -> list[X]:
    draw = np.random.default_rng(seed)
    return [draw.standard_normal(shape).astype(np.float32) for shape in SIZES]


def update(backend: CpuBackend, p: Any, g: Any, m: Any, v: Any, *, step: int = 3, **given: Any) -> Adapted[X]:
    slot = backend.capabilities().adam
    assert slot is not None
    options: dict[str, Any] = {"decay": (0.1,) * len(p), "max_norm": 1.0, "donate": False} | given
    options |= {"correction1": scalar(1 - 0.9**step), "correction2": scalar(1 - 0.99**step)}
    return slot.update(p, g, m, v, lr=scalar(1e-2), betas=(0.9, 0.99), eps=1e-8, **options)


@pytest.fixture(params=[False, True], ids=["kept", "donated"])
def donate(request: pytest.FixtureRequest) -> bool:
    """Whether old arrays are given away."""
    return bool(request.param)


@pytest.mark.parametrize("size", [1.0, 1e-4, 1e30])
def test_one_step_follows_the_equations(backend: CpuBackend, donate: bool, size: float) -> None:
    p, g, m, v = tensors(1), [x * np.float32(size) for x in tensors(2)], tensors(3), [x * x for x in tensors(4)]
    norm = np.sqrt(sum(float((x.astype(np.float64) ** 2).sum()) for x in g))
    before = [x.copy() for x in (*p, *m, *v)]
    want = []
    for a, b, c, d in zip(p, g, m, v, strict=True):
        b = b.astype(np.float64) * min(1.0, 1.0 / norm)
        first, second = 0.9 * c.astype(np.float64) + 0.1 * b, 0.99 * d.astype(np.float64) + 0.01 * b * b
        move = first / (1 - 0.9**3) / (np.sqrt(second / (1 - 0.99**3)) + 1e-8) + 0.1 * a
        want.append((a - 1e-2 * move, first, second))
    done = update(backend, p, g, m, v, donate=donate)
    assert done.finite
    assert abs(float(done.norm) / norm - 1) < 1e-6
    for got, wanted in zip(zip(done.params, done.first, done.second, strict=True), want, strict=True):
        for x, y in zip(got, wanted, strict=True):
            assert np.abs(x - y).max() <= 2e-6 * np.abs(y).max()
    if donate:
        assert all(a is b for a, b in zip(done.params, p, strict=True))
    else:
        assert all(np.array_equal(a, b) for a, b in zip(before, (*p, *m, *v), strict=True))


@pytest.mark.parametrize("where", ["gradient", "parameter", "moment"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [(0, 0), (4, 0), (4, 8999)])
def test_one_bad_value_in_any_tensor_changes_nothing(
    backend: CpuBackend, donate: bool, where: str, value: float, place: tuple[int, int]
) -> None:
    p, g, m, v = tensors(1), tensors(2), tensors(3), [x * x for x in tensors(4)]
    {"gradient": g, "parameter": p, "moment": v}[where][place[0]][place[1]] = value
    before = [x.tobytes() for x in (*p, *m, *v)]
    done = update(backend, p, g, m, v, donate=donate)
    assert not done.finite
    assert before == [x.tobytes() for x in (*p, *m, *v)]
    assert before == [x.tobytes() for x in (*done.params, *done.first, *done.second)]


def test_an_overflow_inside_the_update_changes_nothing(backend: CpuBackend) -> None:
    p, g, zero = [np.ones(5, np.float32)], [np.full(5, 1e25, np.float32)], [np.zeros(5, np.float32)]
    done = update(backend, p, g, zero, zero, max_norm=np.inf)
    assert not done.finite
    assert np.array_equal(done.params[0], p[0])


def test_no_gradient_at_all_neither_divides_by_zero_nor_moves(backend: CpuBackend) -> None:
    zero = [np.zeros(5, np.float32)]
    done = update(backend, [np.ones(5, np.float32)], zero, zero, zero, decay=(0.0,))
    assert done.finite
    assert done.norm == 0
    assert done.params[0].tolist() == [1] * 5


def test_pages_of_4096_give_the_same_bits_as_whole_tensors(backend: CpuBackend) -> None:
    draw = np.random.default_rng(5)
    whole = [[draw.standard_normal(20_001).astype(np.float32)] for _ in range(3)]
    whole.append([whole[0][0] ** 2])
    pages = [[x[0][i : i + 4096].copy() for i in range(0, 20_001, 4096)] for x in whole]
    a, b = update(backend, *whole), update(backend, *pages)
    assert a.norm == b.norm
    for x, y in ((a.params, b.params), (a.first, b.first), (a.second, b.second)):
        assert np.array_equal(x[0], np.concatenate(y))


def test_half_precision_parameters_keep_float32_moments(backend: CpuBackend) -> None:
    p, g = [np.ones(4, np.float16)], [np.ones(4, np.float16)]
    done = update(backend, p, g, [np.zeros(4, np.float32)], [np.zeros(4, np.float32)], step=1)
    assert done.params[0].dtype == np.float16
    assert done.first[0].dtype == np.float32
