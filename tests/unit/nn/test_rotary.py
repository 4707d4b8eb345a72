"""Tables of rotary angles: exact, and made without several times their own memory."""

from __future__ import annotations

import tracemalloc

import numpy as np

from turret.nn import RopeScaling, Rotary
from turret.registry import use_backend


def test_tables_are_those_of_the_formula_for_every_position() -> None:
    """Su et al. 2021, eq. 15, with all positions at once in float64; the tables are made some rows at a time."""
    context, size = 10_000, 6
    yarn = RopeScaling(kind="yarn", factor=2.0, original_context=64, attention=1.5)
    turns = 500.0 ** (-np.arange(0, size, 2) / size)
    with use_backend("cpu"):
        plain = Rotary(context, size, theta=500.0)
        scaled = Rotary(context, size, theta=500.0, scaling=yarn)
    angles = np.outer(np.arange(context), turns)
    np.testing.assert_array_equal(plain.cos.numpy(), np.cos(angles).astype(np.float32))
    np.testing.assert_array_equal(plain.sin.numpy(), np.sin(angles).astype(np.float32))
    magnitude = np.hypot(scaled.cos.numpy(), scaled.sin.numpy())
    np.testing.assert_allclose(magnitude, 1.5, rtol=1e-6)


def test_long_tables_take_little_more_than_themselves_and_a_copy() -> None:
    context, size = 100_000, 64
    with use_backend("cpu"):
        Rotary(8, size)
        tracemalloc.start()
        try:
            Rotary(context, size)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 3 * (2 * context * size // 2 * 4)
