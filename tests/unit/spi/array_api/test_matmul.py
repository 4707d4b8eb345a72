from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.spi.array_api import Hooks, required_from


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_products_transpose_what_is_flagged(space: Any, normal: Any, leading: Any, flags: tuple[bool, bool]) -> None:
    a, b = normal(*leading, 3, 5), normal(*leading, 5, 4)
    given = [x.swapaxes(-1, -2) if flag else x for x, flag in zip((a, b), flags, strict=True)]
    got = space.matmul.matmul(*map(space.put, given), transpose_a=flags[0], transpose_b=flags[1])
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    space.close(got, want)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (63, 65, 1), (0, 3, 2), (2, 3, 0)])
def test_awkward_sizes_pass(eager_space: Any, normal: Any, m: int, k: int, n: int) -> None:
    a, b = normal(m, k), normal(k, n)
    eager_space.close(eager_space.matmul.matmul(eager_space.put(a), eager_space.put(b)), a @ b, 2e-5)


def test_an_empty_contraction_gives_zeros(space: Any) -> None:
    a, b = space.put(np.zeros((2, 0), np.float32)), space.put(np.zeros((0, 3), np.float32))
    space.same(space.matmul.matmul(a, b), np.zeros((2, 3), np.float32))


def test_halves_accumulate_in_float32(space: Any) -> None:
    for dtype in space.storage.device().dtypes & {"float16", "bfloat16"}:
        a = space.put(np.ones((1, 4096), np.float32), dtype)
        got = space.matmul.matmul(a, a, transpose_b=True)
        assert space.storage.dtype_of(got) == dtype and space.get(got).tolist() == [[4096]]


def test_float64_stays_float64(eager_space: Any, rng: Any) -> None:
    a = rng.standard_normal((3, 3))
    eager_space.close(eager_space.matmul.matmul(eager_space.put(a), eager_space.put(a)), a @ a, 1e-14)


def test_an_overflowing_product_is_silent(eager_space: Any) -> None:
    a = eager_space.put(np.full((1, 2), 1e30, np.float32))
    eager_space.same(eager_space.matmul.matmul(a, a, transpose_b=True), np.full((1, 1), np.inf, np.float32))


def test_the_accumulation_is_what_the_backend_states() -> None:
    assert required_from(np).matmul.accumulation("float32") == "unstated"
    assert required_from(np, accumulation="tf32").matmul.accumulation("float32") == "tf32"


def test_a_hook_makes_the_product() -> None:
    given: list[str] = []

    def product(a: Any, b: Any) -> Any:
        given.extend((a.dtype.name, b.dtype.name))
        return np.matmul(a, b) + 1

    made = required_from(np, hooks=Hooks(matmul=product)).matmul
    for dtype in ("float16", "float32", "float64"):
        got = made.matmul(np.ones((1, 2), dtype), np.ones((2, 1), dtype))
        assert got.tolist() == [[3]] and got.dtype == dtype
    assert given == ["float32"] * 4 + ["float64"] * 2  # halves come widened
