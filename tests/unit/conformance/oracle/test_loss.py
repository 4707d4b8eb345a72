from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special

from turret.conformance.oracle import loss as oracle

IGNORE = -100


def targets(*values: int) -> Any:
    return np.array(values, np.int32)


def test_the_loss_is_the_weighted_mean_surprise() -> None:
    logits = np.log(np.array([[1.0, 3.0], [4.0, 1.0], [1.0, 1.0]]))  # shares 1/4 3/4, 4/5 1/5, 1/2 1/2
    got = oracle.cross_entropy(logits, targets(1, 1, 0), None, ignore=IGNORE)
    assert got == pytest.approx((math.log(4 / 3) + math.log(5) + math.log(2)) / 3, rel=1e-14)
    got = oracle.cross_entropy(logits, targets(1, 1, 0), np.array([2.0, 0.0, 1.0]), ignore=IGNORE)
    assert got == pytest.approx((2 * math.log(4 / 3) + math.log(2)) / 3, rel=1e-14)


@pytest.mark.parametrize("ignore", [IGNORE, -1, 0, 2, 10**6])
def test_an_ignored_row_counts_nowhere(normal: Any, ignore: int) -> None:
    logits, weights = normal(4, 5), np.array([1.0, 2.0, 0.5, 4.0])
    got, gradient = oracle.cross_entropy_grad(logits, targets(3, ignore, 4, 3), weights, ignore=ignore)
    kept = [0, 2, 3]
    surprise = -scipy.special.log_softmax(logits, axis=-1)[kept, [3, 4, 3]]
    assert got == pytest.approx(np.average(surprise, weights=weights[kept]), rel=1e-13)
    assert not gradient[1].any() and gradient[kept].all()


@pytest.mark.parametrize("weights", [None, np.zeros(2)])
def test_nothing_to_count_gives_zeros(normal: Any, weights: Any) -> None:
    given = targets(IGNORE, IGNORE) if weights is None else targets(0, 1)
    loss, gradient = oracle.cross_entropy_grad(normal(2, 3), given, weights, ignore=IGNORE)
    assert loss == 0 and loss.shape == () and gradient.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_no_rows_give_a_zero_loss() -> None:
    loss, gradient = oracle.cross_entropy_grad(np.zeros((0, 3)), targets(), None, ignore=IGNORE)
    assert isinstance(loss, np.ndarray) and loss.shape == () and loss == 0 and gradient.shape == (0, 3)


def test_large_logits_do_not_overflow() -> None:
    loss, gradient = oracle.cross_entropy_grad(np.array([[1e4, -1e4]]), targets(1), None, ignore=IGNORE)
    assert loss == 2e4 and gradient.tolist() == [[1, -1]]


@pytest.mark.parametrize("weights", [None, np.array([0.5, 3.0, 0.0, 2.0])])
def test_the_gradient_follows_differences(normal: Any, follows_differences: Any, weights: Any) -> None:
    logits, given = 2 * normal(4, 3), targets(2, 0, 1, -7)

    def loss(logits: Any) -> Any:
        return oracle.cross_entropy(logits, given, weights, ignore=-7)

    value, gradient = oracle.cross_entropy_grad(logits, given, weights, ignore=-7)
    assert value == loss(logits)
    follows_differences(loss, [logits], 1.0, [gradient])
