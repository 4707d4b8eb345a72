from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import rope as oracle


def angles(rng: Any, *shape: int) -> tuple[Any, Any]:
    turns = rng.uniform(-4, 4, shape)
    return np.cos(turns), np.sin(turns)


@pytest.mark.parametrize(("interleaved", "want"), [(True, [-2, 1, 3, 4]), (False, [-3, 2, 1, 4])])
def test_a_quarter_turn_of_the_first_pair(interleaved: bool, want: list[float]) -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4)
    got = oracle.rope(x, np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]), interleaved=interleaved)
    assert got.reshape(4).tolist() == want


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("interleaved", [True, False])
def test_pairs_turn_as_complex_numbers(rng: Any, normal: Any, batch: tuple[int, ...], interleaved: bool) -> None:
    x, (cos, sin) = normal(2, 3, 4, 6), angles(rng, *batch, 3, 3)
    real, imaginary = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, 3), slice(3, 6))
    got = oracle.rope(x, cos, sin, interleaved=interleaved)
    for b, t, h in np.ndindex(2, 3, 4):
        turn = (cos[b, t] + 1j * sin[b, t]) if batch else (cos[t] + 1j * sin[t])
        pairs = (x[b, t, h, real] + 1j * x[b, t, h, imaginary]) * turn
        assert got[b, t, h, real] == pytest.approx(pairs.real, rel=1e-13)
        assert got[b, t, h, imaginary] == pytest.approx(pairs.imag, rel=1e-13)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("interleaved", [True, False])
def test_gradients_follow_differences(
    rng: Any, normal: Any, follows_differences: Any, batch: tuple[int, ...], interleaved: bool
) -> None:
    x, dy, (cos, sin) = normal(2, 3, 2, 4), normal(2, 3, 2, 4), angles(rng, *batch, 3, 2)
    gradient = oracle.rope_vjp(dy, cos, sin, interleaved=interleaved)
    follows_differences(lambda x: oracle.rope(x, cos, sin, interleaved=interleaved), [x], dy, [gradient])


@pytest.mark.parametrize("interleaved", [True, False])
def test_no_positions_give_an_empty_result(interleaved: bool) -> None:
    empty = np.zeros((0, 2))
    assert oracle.rope(np.zeros((2, 0, 3, 4)), empty, empty, interleaved=interleaved).shape == (2, 0, 3, 4)
