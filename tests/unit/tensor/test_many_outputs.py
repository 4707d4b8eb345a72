"""Operations with several outputs: one VJP whatever the outputs are used for, and the promises of every other node."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret.registry import OpenBackend
from turret.spi import GraphError, StaleGraph
from turret.tensor import Parameter, Tensor, backward, checkpoint, ops, tensor
from turret.tensor.value import record_many

Array = npt.NDArray[Any]
DRAW = np.random.default_rng(5)
X, W, V = (DRAW.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (2, 4), (5, 4)))


class Doubled:
    """x -> (2 x, 3 x) that notes each gradient its VJP is handed."""

    def __init__(self) -> None:
        self.seen: list[list[Array | None]] = []

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        tools = x.backend.tools

        def vjp(parts: list[Any], needs: tuple[bool, ...]) -> tuple[Any, ...]:
            self.seen.append([None if p is None else np.asarray(p) for p in parts])
            scaled = [tools.elementwise.multiply(p, f) for p, f in zip(parts, (2.0, 3.0), strict=True) if p is not None]
            return (scaled[0] if len(scaled) == 1 else tools.elementwise.add(*scaled),)

        return record_many("doubled", [tools.elementwise.multiply(x.value, f) for f in (2.0, 3.0)], x, (x,), vjp)


def leaf(value: Array = X) -> Tensor:
    return tensor(value, requires_grad=True)


def test_all_uses_of_all_outputs_reach_the_vjp_in_one_call(backend: OpenBackend) -> None:
    doubled, x = Doubled(), leaf()
    two, three = doubled(x)
    gradients = backward((two + three * two + three).sum())
    np.testing.assert_allclose(gradients[x].numpy(), 5 + 12 * X, rtol=1e-6)
    assert len(doubled.seen) == 1


@pytest.mark.parametrize(("used", "slope"), [(0, 2.0), (1, 3.0)])
def test_an_unused_output_has_no_gradient(backend: OpenBackend, used: int, slope: float) -> None:
    doubled, x = Doubled(), leaf()
    assert (backward(doubled(x)[used].sum())[x].numpy() == slope).all()
    assert [part is None for part in doubled.seen[0]] == [used != 0, used != 1]


def test_one_output_can_be_differentiated_with_a_seed(backend: OpenBackend) -> None:
    doubled, x = Doubled(), leaf()
    assert np.array_equal(backward(doubled(x)[1], tensor(X))[x].numpy(), 3 * X)


def test_a_retained_graph_gives_the_same_again_and_a_freed_one_is_refused(backend: OpenBackend) -> None:
    x = leaf()
    two, three = Doubled()(x)
    loss = (two * three).sum()
    first = backward(loss, retain=True)[x].numpy()
    assert np.array_equal(backward(loss)[x].numpy(), first)
    with pytest.raises(GraphError, match="freed by an earlier backward"):
        backward(three.sum())


def test_constants_get_no_graph(backend: OpenBackend) -> None:
    assert [out.requires_grad for out in Doubled()(tensor(X))] == [False, False]
    assert [out.node for out in ops.linears(tensor(X), (tensor(W), None), (tensor(V), None))] == [None, None]


def test_joined_maps_equal_single_ones_and_frozen_weights_get_nothing(backend: OpenBackend) -> None:
    x, w, v = leaf(), tensor(W), leaf(V)
    first, second = ops.linears(x, (w, None), (v, None))
    np.testing.assert_allclose(first.numpy(), X @ W.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(second.numpy(), X @ V.T, rtol=1e-5, atol=1e-6)
    gradients = backward(first.sum() + second.sum())
    assert w not in gradients
    np.testing.assert_allclose(gradients[v].numpy(), np.tile(X.sum(0), (5, 1)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradients[x].numpy(), np.tile(W.sum(0) + V.sum(0), (3, 1)), rtol=1e-5, atol=1e-6)


def test_a_weight_given_twice_gets_the_sum(backend: OpenBackend) -> None:
    w = leaf(W)
    first, second = ops.linears(tensor(X), (w, None), (w, None))
    gradient = backward(first.sum() + 2 * second.sum())[w].numpy()
    np.testing.assert_allclose(gradient, np.tile(3 * X.sum(0), (2, 1)), rtol=1e-5, atol=1e-6)


def test_a_weight_that_changed_after_the_forward_is_stale(backend: OpenBackend) -> None:
    w = Parameter(W)
    loss = ops.linears(tensor(X), (w, None))[0].sum()
    w.assign(tensor(W + 1).value)
    with pytest.raises(StaleGraph, match="linears"):
        backward(loss)


def test_outputs_cross_a_checkpoint(backend: OpenBackend) -> None:
    x, w = leaf(), Parameter(W)

    def inside(y: Tensor) -> Tensor:
        first, second = ops.linears(y, (w, None), (w, None))
        return first * second

    kept, plain = backward(checkpoint(inside, x).sum()), backward(inside(x).sum())
    for at in (x, w):
        assert np.array_equal(kept[at].numpy(), plain[at].numpy())
