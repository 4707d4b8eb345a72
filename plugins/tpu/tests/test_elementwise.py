"""What XLA would make of operations otherwise than the contract says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret_tpu.backend import TpuBackend

LARGE = np.array([[3e38, 1e38], [2e38, -3e38]], np.float32)


@pytest.mark.parametrize("shape", [(2, 2), (2, 1), (2,), (1,), (), None], ids=str)
@pytest.mark.parametrize("divisor", [3e38, -2e38, 1e-30, 7.0])
def test_a_quotient_by_one_number_for_many_is_rounded_once(
    backend: TpuBackend, shape: tuple[int, ...] | None, divisor: float
) -> None:
    required = backend.capabilities().required
    put, get = required.storage.from_host, required.storage.to_host
    other: Any = divisor if shape is None else put(np.full(shape, divisor, np.float32))
    with np.errstate(over="ignore"):
        want = LARGE / np.float32(divisor)
    np.testing.assert_array_equal(get(required.elementwise.divide(put(LARGE), other)), want)


def test_a_quotient_inside_a_program_is_the_same(backend: TpuBackend) -> None:
    table = backend.capabilities()
    assert table.compile is not None
    storage, divide = table.required.storage, table.required.elementwise.divide
    run = table.compile.compile(lambda x, y: (divide(x, y),), donate=())
    (got,) = run(storage.from_host(LARGE), storage.from_host(np.full((2, 1), 3e38, np.float32)))
    np.testing.assert_array_equal(storage.to_host(got), LARGE / np.float32(3e38))
