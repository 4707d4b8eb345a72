"""Learning rates at known points."""

from __future__ import annotations

import math
from typing import Any

import pytest

from turret.optim import constant, warmup_cosine
from turret.spi import ConfigError


def test_constant_is_constant_after_a_linear_rise() -> None:
    assert [constant(0.5)(step) for step in (1, 10, 10**6)] == [0.5, 0.5, 0.5]
    risen = constant(1.0, warmup=4)
    assert [risen(step) for step in (1, 2, 3, 4, 5, 100)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_passes_its_known_points() -> None:
    rate = warmup_cosine(1e-3, min_lr=1e-4, warmup=100, steps=2100)
    assert rate(1) == pytest.approx(1e-5)
    assert rate(50) == pytest.approx(5e-4)
    assert rate(100) == pytest.approx(1e-3)
    assert rate(1100) == pytest.approx(5.5e-4)  # half way: the mean of both ends
    assert rate(100 + 500) == pytest.approx(1e-4 + 9e-4 * (1 + math.sqrt(0.5)) / 2)
    assert rate(2100) == pytest.approx(1e-4)
    assert rate(9999) == pytest.approx(1e-4)
    falling = [rate(step) for step in range(100, 2101)]
    assert falling == sorted(falling, reverse=True)


def test_cosine_without_warmup_starts_at_the_top() -> None:
    rate = warmup_cosine(2.0, min_lr=0.0, warmup=0, steps=10)
    assert rate(0) == 2.0
    assert rate(5) == pytest.approx(1.0)
    assert rate(10) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: constant(0.0), "lr 0.0"),
        (lambda: constant(math.inf), "lr inf"),
        (lambda: constant(math.nan), "lr nan"),
        (lambda: constant(1.0, warmup=-1), "warmup -1"),
        (lambda: warmup_cosine(1.0, min_lr=2.0, warmup=0, steps=10), "min_lr 2.0 with lr 1.0"),
        (lambda: warmup_cosine(1.0, min_lr=-1.0, warmup=0, steps=10), "min_lr -1.0"),
        (lambda: warmup_cosine(1.0, min_lr=0.0, warmup=10, steps=10), "10 steps with a warmup of 10"),
        (lambda: warmup_cosine(-1.0, min_lr=0.0, warmup=0, steps=10), "lr -1.0"),
    ],
)
def test_impossible_schedules_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
