from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest


def cross_entropy(logits: Any, targets: Any, weights: Any, ignore: int) -> Any:
    """Sum(w * -log softmax(logits)[target]) / sum(w) over the rows kept; 0 where they weigh nothing."""
    total = mass = 0.0
    for row, target, weight in zip(np.asarray(logits, np.float64), targets, weights, strict=True):
        if target != ignore and weight > 0:
            top = row.max()
            total += weight * (top + math.log(np.exp(row - top).sum()) - row[target])
            mass += weight
    return np.float64(total / mass if mass else 0.0)


TARGETS = np.array([2, 0, 6, 3, 2], np.int32)
WEIGHTS = np.array([0.5, 2.0, 0.0, 1.0, 0.25], np.float32)


@pytest.mark.parametrize("ignore", [-100, 2, -1, 2**40, -(2**31)])
def test_loss_and_gradient_follow_the_formula(eager_bench: Any, differences: Any, normal: Any, ignore: int) -> None:
    bench, slot, logits = eager_bench, eager_bench.tools.loss, normal(5, 7) * 3
    targets = TARGETS.copy()
    targets[3] = ignore if -(2**31) <= ignore < 2**31 else 3
    ones = np.ones(5, np.float32)
    for weights, used in ((bench.put(WEIGHTS), WEIGHTS), (None, ones)):
        loss, gradient = slot.cross_entropy_grad(bench.put(logits), bench.put(targets), weights, ignore=ignore)
        want = cross_entropy(logits, targets, used, ignore)
        bench.close(loss, want)
        bench.close(slot.cross_entropy(bench.put(logits), bench.put(targets), weights, ignore=ignore), want)
        (expected,) = differences(lambda x, w=used: cross_entropy(x, targets, w, ignore), [logits], 1.0)
        bench.close(gradient, expected, 1e-6)


def test_a_traced_loss_with_an_ignored_row_follows_the_formula(bench: Any, differences: Any, normal: Any) -> None:
    logits, targets = normal(5, 7) * 3, np.array([2, -100, 6, 3, 2], np.int32)
    placed = bench.put(logits), bench.put(targets), bench.put(WEIGHTS)
    loss, gradient = bench.tools.loss.cross_entropy_grad(*placed, ignore=-100)
    bench.close(loss, cross_entropy(logits, targets, WEIGHTS, -100))
    bench.close(gradient, differences(lambda x: cross_entropy(x, targets, WEIGHTS, -100), [logits], 1.0)[0], 1e-6)


def test_nothing_to_learn_from_is_a_zero_loss_with_a_zero_gradient(eager_bench: Any, normal: Any) -> None:
    bench, slot = eager_bench, eager_bench.tools.loss
    logits, ignored = bench.put(normal(5, 7) * 1e4), bench.put(np.full(5, -100, np.int32))
    weightless = bench.put(np.zeros(5, np.float32))
    for targets, weights in ((ignored, None), (ignored, weightless), (bench.put(TARGETS), weightless)):
        loss, gradient = slot.cross_entropy_grad(logits, targets, weights, ignore=-100)
        assert bench.get(loss) == 0 and not bench.get(gradient).any()


def test_a_row_that_counts_for_nothing_brings_no_infinity(eager_bench: Any) -> None:
    logits = np.array([[3e38, -3e38], [0, 0]], np.float32)
    placed = (
        eager_bench.put(logits),
        eager_bench.put(np.array([1, 1], np.int32)),
        eager_bench.put(np.array([0, 1], np.float32)),
    )
    loss, gradient = eager_bench.tools.loss.cross_entropy_grad(*placed, ignore=-100)
    eager_bench.close(loss, np.float64(math.log(2)))
    eager_bench.close(gradient, [[0, 0], [0.5, -0.5]])


@pytest.mark.parametrize("scale", [1e-35, 1e-6, 1e30])
def test_only_the_proportions_of_weights_matter(eager_bench: Any, normal: Any, scale: float) -> None:
    bench, logits = eager_bench, normal(5, 7)
    weights = (WEIGHTS * scale).astype(np.float32)
    loss = bench.tools.loss.cross_entropy(bench.put(logits), bench.put(TARGETS), bench.put(weights), ignore=-100)
    bench.close(loss, cross_entropy(logits, TARGETS, WEIGHTS, -100))


def test_extreme_logits_give_the_margin(eager_bench: Any) -> None:
    logits = eager_bench.put(np.array([[1e30, 0], [0, 1e4]], np.float32))
    targets = eager_bench.put(np.array([0, 0], np.int32))
    loss, gradient = eager_bench.tools.loss.cross_entropy_grad(logits, targets, None, ignore=-100)
    assert eager_bench.get(loss) == 5e3
    assert eager_bench.get(gradient).tolist() == [[0, 0], [-0.5, 0.5]]


def test_no_rows_at_all_are_a_zero_loss(eager_bench: Any) -> None:
    logits, targets = eager_bench.put(np.zeros((0, 4), np.float32)), eager_bench.put(np.zeros(0, np.int32))
    loss, gradient = eager_bench.tools.loss.cross_entropy_grad(logits, targets, None, ignore=0)
    assert eager_bench.get(loss) == 0 and eager_bench.get(gradient).shape == (0, 4)


def test_halves_give_a_float32_loss_and_a_gradient_in_their_dtype(bench: Any, normal: Any) -> None:
    for dtype in bench.halves:
        logits = bench.put(normal(5, 7), dtype)
        targets = bench.put(TARGETS)
        loss, gradient = bench.tools.loss.cross_entropy_grad(logits, targets, None, ignore=-100)
        dtype_of = bench.tools.storage.dtype_of
        assert (dtype_of(loss), dtype_of(gradient)) == ("float32", dtype)
        bench.close(loss, cross_entropy(bench.get(logits), TARGETS, np.ones(5), -100))
