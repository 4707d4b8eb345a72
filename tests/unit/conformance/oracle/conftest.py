from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

STEP = 1e-5
TOLERANCE = 1e-6


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.fixture
def normal(rng: np.random.Generator) -> Callable[..., Any]:
    return lambda *shape: np.asarray(rng.standard_normal(shape))


@pytest.fixture
def follows_differences() -> Callable[..., None]:
    """(function, inputs, dy, gradients): each is that of sum(function(*inputs) * dy), by centred differences."""

    def check(function: Callable[..., Any], inputs: Sequence[Any], dy: Any, gradients: Sequence[Any]) -> None:
        assert len(gradients) == len(inputs)
        points = [np.array(x, np.float64) for x in inputs]
        for x, gradient in zip(points, gradients, strict=True):
            assert gradient.shape == x.shape
            for at in np.ndindex(x.shape):
                kept = x[at]
                x[at] = kept + STEP
                above = function(*points)
                x[at] = kept - STEP
                below = function(*points)
                x[at] = kept
                slope = np.sum((above - below) * dy) / (2 * STEP)
                assert abs(gradient[at] - slope) <= TOLERANCE * (1 + abs(slope)), f"at {at}"

    return check
