"""checkpoint: the inside graph is dropped and rebuilt, and nobody can tell from the gradients."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from turret.registry import OpenBackend, use_backend
from turret.spi import DTypeError, GraphError, StaleGraph
from turret.tensor import Parameter, Tensor, backward, capture, checkpoint, no_grad, ops, tensor


def matrix(seed: int) -> Parameter:
    return Parameter(np.random.default_rng(seed).normal(size=(6, 6)).astype(np.float32))


class Layer:
    def __init__(self, seed: int) -> None:
        self.weights, self.runs = (matrix(seed), matrix(seed + 1)), 0

    def __call__(self, x: Tensor) -> Tensor:
        self.runs += 1
        return x + ops.linear(ops.gelu(ops.linear(x, self.weights[0])), self.weights[1])


def bits(gradients: list[Tensor]) -> list[bytes]:
    return [g.numpy().tobytes() for g in gradients]


@pytest.mark.parametrize("nested", [False, True])
def test_gradients_are_bit_equal_to_the_plain_ones(backend: OpenBackend, nested: bool) -> None:
    layers = [Layer(0), Layer(10), Layer(20)]
    x = tensor(np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32), requires_grad=True)
    leaves = [x, *(w for layer in layers for w in layer.weights)]

    def plain_run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    def light_run(x: Tensor) -> Tensor:
        for layer in layers:
            x = checkpoint(layer, x)
        return x

    want, expected = backward(plain_run(x).sum()), plain_run(x)
    out = checkpoint(light_run, x) if nested else light_run(x)
    assert out.numpy().tobytes() == expected.numpy().tobytes()
    found = backward(out.sum())
    assert bits([found[leaf] for leaf in leaves]) == bits([want[leaf] for leaf in leaves])
    assert {layer.runs for layer in layers} == {5 if nested else 4}  # two plain, one forward, one or two rebuilds


def test_inside_values_are_dropped_between_forward_and_backward(plain: OpenBackend) -> None:
    p, refs = matrix(0), []

    def fn(x: Tensor) -> Tensor:
        hidden = ops.exp(ops.linear(x, p))
        refs.append(weakref.ref(hidden.value))
        return ops.linear(hidden, p)

    gc.disable()
    try:
        loss = checkpoint(fn, tensor(np.ones((2, 6), np.float32))).sum()
        assert refs[0]() is None
        loss.backward()
        assert refs[1]() is None
    finally:
        gc.enable()
    assert p.grad is not None


def test_under_no_grad_it_is_the_plain_call(plain: OpenBackend) -> None:
    layer = Layer(0)
    with no_grad():
        out = checkpoint(layer, tensor(np.ones((2, 6), np.float32)))
    assert not out.requires_grad
    assert layer.runs == 1


def test_backward_may_run_under_no_grad(plain: OpenBackend) -> None:
    layer = Layer(0)
    out = checkpoint(layer, tensor(np.ones((2, 6), np.float32))).sum()
    with no_grad():
        out.backward()
    assert layer.weights[0].grad is not None


def test_a_graph_from_outside_must_come_in_as_an_input(plain: OpenBackend) -> None:
    p = matrix(0)
    outside = p * 2.0
    leaf = tensor([1.0] * 6, requires_grad=True)
    with pytest.raises(
        GraphError, match=r"closes over the result of 'multiply' from outside; pass that tensor as an input"
    ):
        checkpoint(lambda x: x + outside, p)
    with pytest.raises(GraphError, match="closes over the result of 'multiply'"):
        checkpoint(lambda x: outside, p)
    with pytest.raises(GraphError, match=r"closes over a tensor that requires a gradient; pass it as an input"):
        checkpoint(lambda x: x + leaf, p)
    checkpoint(lambda x: x + outside.detach(), p)
    found = backward(checkpoint(lambda x, y: x * y, p, outside).sum())
    np.testing.assert_array_equal(found[p].numpy(), 4 * p.numpy())


def test_inputs_returned_as_they_are_keep_their_graph(plain: OpenBackend) -> None:
    p = matrix(0)
    x = p * 3.0
    assert backward(checkpoint(lambda a, b: b, p, x).sum())[p].numpy().tolist() == np.full((6, 6), 3.0).tolist()
    assert backward(checkpoint(lambda a: a, p).sum())[p].numpy().tolist() == np.ones((6, 6)).tolist()
    assert checkpoint(lambda a: p, x) is p


def test_the_same_tensor_may_come_in_twice(plain: OpenBackend) -> None:
    p = matrix(0)
    found = backward(checkpoint(lambda a, b: a * b * p, p, p).sum())
    np.testing.assert_allclose(found[p].numpy(), 3 * p.numpy() ** 2, rtol=1e-6)


def test_inputs_without_gradient_may_be_indices(plain: OpenBackend) -> None:
    table = matrix(0)
    out = checkpoint(lambda ids: ops.gather_rows(table, ids), tensor([0, 0, 2]))
    assert backward(out.sum())[table].numpy()[:, 0].tolist() == [2, 0, 1, 0, 0, 0]
    assert not checkpoint(lambda x: x * 2.0, tensor([1.0])).requires_grad


def test_a_function_that_changes_between_its_runs_is_refused(plain: OpenBackend) -> None:
    p, q, x = matrix(0), matrix(1), tensor(np.ones((2, 6), np.float32))
    turns = iter([p, q, p, p])
    out = checkpoint(lambda x: ops.linear(x, next(turns)), x).sum()
    with pytest.raises(GraphError, match=r"used other parameters when it ran again.*deterministic"):
        out.backward()
    sizes = iter([2, 1])
    out = checkpoint(lambda x: ops.linear(x, p)[: next(sizes)], x).sum()
    with pytest.raises(GraphError, match=r"gave shape \(1, 6\), .* when it ran again and \(2, 6\), .* at first"):
        out.backward()
    assert p.grad is None
    assert q.grad is None


def test_parameters_inside_are_watched(plain: OpenBackend) -> None:
    p = matrix(0)
    out = checkpoint(lambda x: ops.linear(x, p), tensor(np.ones((2, 6), np.float32))).sum()
    p.assign(plain.tools.storage.from_host(np.zeros((6, 6), np.float32)))
    with pytest.raises(StaleGraph):
        out.backward()


def test_a_frozen_parameter_inside_gets_no_gradient(plain: OpenBackend) -> None:
    p, q = matrix(0), matrix(1)
    q.trainable = False
    out = checkpoint(lambda x: ops.linear(ops.linear(x, p), q), tensor(np.ones((2, 6), np.float32)))
    assert list(backward(out.sum())) == [p]


@pytest.mark.parametrize("value", [np.ones(3), 1.0, None])
def test_inputs_and_result_must_be_tensors(plain: OpenBackend, value: Any) -> None:
    with pytest.raises(DTypeError, match=rf"checkpoint got {type(value).__name__}; wanted a Tensor"):
        checkpoint(lambda x: x, value)
    with pytest.raises(GraphError, match=rf"fn returned {type(value).__name__}; wanted one Tensor"):
        checkpoint(lambda x: value, tensor([1.0], requires_grad=True))


def test_another_dtype_the_second_time_is_refused(plain: OpenBackend) -> None:
    runs: list[int] = []

    def changing(x: Tensor) -> Tensor:
        runs.append(1)
        return x * 2.0 if len(runs) == 1 else (x * 2.0).cast("float16")

    y = checkpoint(changing, Parameter(np.ones(3, np.float32)))
    with pytest.raises(GraphError, match=r"float16 when it ran again and .*float32"):
        backward(y.sum())


def test_a_result_without_a_graph_the_second_time_is_refused(plain: OpenBackend) -> None:
    runs: list[int] = []

    def changing(x: Tensor) -> Tensor:
        runs.append(1)
        return x * 2.0 if len(runs) == 1 else (x * 2.0).detach()

    y = checkpoint(changing, Parameter(np.ones(3, np.float32)))
    with pytest.raises(GraphError, match="without a graph when it ran again"):
        backward(y.sum())


def test_what_is_no_function_is_refused(plain: OpenBackend) -> None:
    with pytest.raises(GraphError, match="checkpoint got int; wanted a function"):
        checkpoint(3, Parameter(np.ones(3, np.float32)))  # type: ignore[arg-type]
    with no_grad(), pytest.raises(GraphError, match="wanted one Tensor"):
        checkpoint(lambda x: (x, x), Parameter(np.ones(3, np.float32)))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("spec", ["metal:cpu", "tpu:cpu"])
def test_a_gradient_that_is_not_finite_stays_where_it_is_in_a_captured_step(spec: str) -> None:
    def step(x: Tensor, keep: Tensor, dy: Tensor) -> Tensor:
        return backward(checkpoint(lambda z: z * z, ops.where(keep, x, 0.0)), dy)[x]

    with use_backend(spec):
        x = tensor(np.ones(4, np.float32), requires_grad=True)
        keep, dy = tensor(np.array([False, True, True, True])), tensor(np.array([np.nan, 1, 1, 1], np.float32))
        np.testing.assert_array_equal(capture(step)(x, keep, dy).numpy(), [0, 2, 2, 2])
