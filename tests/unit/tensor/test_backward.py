"""The autograd contract: isolated, freed, stale, seeded, deep and small in memory."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.derived.linear import DerivedLinear
from turret.registry import OpenBackend, use_backend
from turret.spi import BackendMismatch, DTypeError, GraphError, ShapeError, StaleGraph
from turret.spi.array_api import required_from
from turret.tensor import Parameter, Tensor, backward, custom_gradient, enable_grad, no_grad, ops, tensor

Make = Callable[..., OpenBackend]


def parameter(*values: float) -> Parameter:
    return Parameter(np.array(values, np.float32))


def grad(p: Parameter) -> list[float]:
    assert p.grad is not None
    return p.grad.numpy().tolist()


class Boom(Exception):
    pass


def explosive(x: Tensor, fuse: list[bool]) -> Tensor:
    """x, whose vjp raises while the fuse burns."""

    def vjp(dy: Tensor) -> list[Tensor]:
        if fuse[0]:
            raise Boom
        return [dy]

    return custom_gradient(x, [x], vjp)


def test_a_vjp_that_raises_midway_leaves_gradients_and_graph_as_they_were(backend: OpenBackend) -> None:
    p, q, fuse = parameter(1, 2), parameter(3, 4), [True]
    p.grad = tensor([10.0, 20.0])
    loss = (explosive(p * 2, fuse) * q).sum()  # q's gradient is computed before the vjp raises
    with pytest.raises(Boom):
        loss.backward()
    assert grad(p) == [10, 20]
    assert q.grad is None
    fuse[0] = False
    loss.backward()
    assert grad(p) == [16, 28]
    assert grad(q) == [2, 4]


def test_a_sum_that_cannot_be_stored_leaves_gradients_and_graph_as_they_were(
    plain: OpenBackend, make_backend: Make
) -> None:
    p, q = parameter(1, 2), parameter(3, 4)
    loss = (p * q).sum()
    with use_backend(make_backend(name="other")):
        q.grad = tensor([0.0, 0.0])
    with pytest.raises(BackendMismatch, match=r"plain.*other.*wanted one backend"):
        loss.backward()
    assert p.grad is None
    q.grad = None
    loss.backward()
    assert (grad(p), grad(q)) == ([3, 4], [1, 2])


def test_a_freed_graph_is_refused_and_retain_keeps_it(plain: OpenBackend) -> None:
    p = parameter(1, 2)
    loss = (p * p).sum()
    loss.backward(retain=True)
    loss.backward()
    assert grad(p) == [4, 8]
    with pytest.raises(GraphError, match=r"freed by an earlier backward.*retain=True"):
        loss.backward()
    assert grad(p) == [4, 8]


def test_a_graph_that_shares_a_freed_part_is_refused(plain: OpenBackend) -> None:
    p = parameter(1, 2)
    shared = p * 3
    first, second = shared.sum(), shared.mean()
    first.backward()
    with pytest.raises(GraphError, match="freed"):
        second.backward()
    assert grad(p) == [3, 3]


def test_two_losses_add_up_and_a_second_backward_adds_again(backend: OpenBackend) -> None:
    p = parameter(1, 2)
    (p * 3).sum().backward()
    (p * p).sum().backward()
    assert grad(p) == [5, 7]


def test_backward_returns_gradients_and_touches_no_parameter(backend: OpenBackend) -> None:
    p, x = parameter(1, 2), tensor([3.0, 4.0], requires_grad=True)
    found = backward((p * x).sum())
    assert p.grad is None
    assert len(found) == 2
    assert {id(leaf) for leaf in found} == {id(p), id(x)}
    assert p in found
    assert found[p].numpy().tolist() == [3, 4]
    assert found[x].numpy().tolist() == [1, 2]
    stranger = parameter(0)
    assert stranger not in found
    assert found.get(stranger) is None
    with pytest.raises(GraphError, match=r"no gradient for Parameter\(shape=\(1,\)"):
        found[stranger]


@pytest.mark.parametrize("change", ["assign", "replace", "load", "move"])
def test_a_parameter_changed_since_the_forward_makes_the_graph_stale(
    plain: OpenBackend, make_backend: Make, change: str
) -> None:
    p, q = parameter(1, 2), parameter(3, 4)
    loss = ((p * 2) * q).sum()
    fresh = plain.tools.storage.from_host(np.zeros(2, np.float32))
    if change == "move":
        p.move(fresh, make_backend(name="other"), None)
    else:
        (p.replace if change == "replace" else p.assign)(fresh)
    with pytest.raises(StaleGraph, match=r"shape \(2,\) used by 'multiply'.*version 0, now 1.*run the forward again"):
        loss.backward()
    assert q.grad is None


def test_a_frozen_parameter_changed_since_the_forward_makes_the_graph_stale_too(plain: OpenBackend) -> None:
    p, q = parameter(1, 2), parameter(3, 4)
    p.trainable = False
    loss = (p * q).sum()
    p.assign(plain.tools.storage.from_host(np.zeros(2, np.float32)))
    with pytest.raises(StaleGraph):
        loss.backward()


def test_only_a_scalar_has_an_implicit_seed(plain: OpenBackend) -> None:
    p = parameter(1, 2)
    for out in (p * 2, (p * 2)[:1]):
        with pytest.raises(GraphError, match=r"shape \(\d,\) needs a seed.*\.mean\(\) or \.sum\(\)"):
            out.backward()
    out = p * 2
    out.backward(tensor([1.0, 10.0]))
    assert grad(p) == [2, 20]


def test_a_seed_must_have_shape_dtype_and_backend_of_the_tensor(plain: OpenBackend, make_backend: Make) -> None:
    out = parameter(1, 2) * 2
    with pytest.raises(ShapeError, match=r"\(3,\).*wanted.*\(2,\)"):
        out.backward(tensor([1.0, 1.0, 1.0]))
    with pytest.raises(DTypeError, match=r"float64.*wanted.*float32"):
        out.backward(tensor(np.ones(2)))
    with pytest.raises(BackendMismatch, match=r"plain.*other"):
        out.backward(tensor([1.0, 1.0], backend=make_backend(name="other")))
    with pytest.raises(DTypeError, match="ndarray; wanted a Tensor"):
        out.backward(np.ones(2, np.float32))  # type: ignore[arg-type]
    out.backward(tensor([1.0, 1.0]))  # the graph is still whole


def test_nothing_is_recorded_under_no_grad(plain: OpenBackend) -> None:
    p = parameter(1, 2)
    with no_grad():
        out = (p * 2).sum()
        with enable_grad():
            inner = (p * 3).sum()
    assert not out.requires_grad
    with pytest.raises(GraphError, match=r"without a graph.*no_grad"):
        out.backward()
    inner.backward()
    assert grad(p) == [3, 3]
    assert (p * 2).requires_grad


def test_no_grad_ends_with_its_block_even_on_an_error_and_is_of_one_thread(plain: OpenBackend) -> None:
    p = parameter(1)
    with pytest.raises(Boom), no_grad():
        raise Boom
    assert (p * 2).requires_grad
    seen: list[bool] = []
    with no_grad():
        thread = threading.Thread(target=lambda: seen.append((p * 2).requires_grad))
        thread.start()
        thread.join()
    assert seen == [True]


def test_constants_and_non_tensors_have_no_backward(plain: OpenBackend) -> None:
    with pytest.raises(GraphError, match="without a graph"):
        tensor(1.0).backward()
    with pytest.raises(DTypeError, match="float; wanted a Tensor"):
        backward(1.0)  # type: ignore[arg-type]


def test_a_leaf_is_its_own_gradient(plain: OpenBackend) -> None:
    p = Parameter(np.array(3, np.float32))
    p.backward()
    assert p.grad is not None
    assert p.grad.numpy() == 1


class Counting(DerivedLinear[Any]):
    """The derived slot, which counts its calls."""

    def __init__(self) -> None:
        super().__init__(required_from(np))
        self.calls: list[str] = []

    def linear_vjp_input(self, dy: Any, weight: Any, /) -> Any:
        self.calls.append("input")
        return super().linear_vjp_input(dy, weight)

    def linear_vjp_weight(self, dy: Any, x: Any, /) -> Any:
        self.calls.append("weight")
        return super().linear_vjp_weight(dy, x)


def test_a_frozen_weight_gets_no_gradient_and_costs_none(make_backend: Make) -> None:
    slot = Counting()
    with use_backend(make_backend(linear=slot)):
        x = tensor(np.ones((2, 3), np.float32))
        first, second = (Parameter(np.ones((3, 3), np.float32)) for _ in range(2))
        second.trainable = False
        assert not second.trainable
        loss = ops.linear(ops.linear(x, first), second).sum()
        loss.backward()
    assert slot.calls == ["input", "weight"]  # of the second layer the input only, of the first the weight only
    assert second.grad is None
    assert first.grad is not None


def test_an_operation_on_frozen_values_alone_records_nothing(plain: OpenBackend) -> None:
    p = parameter(1, 2)
    p.trainable = False
    out = p * 2
    assert not out.requires_grad
    assert out.node is None


def test_diamonds_add_every_path_once(backend: OpenBackend) -> None:
    p = parameter(2)
    y = p
    for _ in range(20):
        y = y + y  # 2^20 paths, 20 nodes
    y.sum().backward()
    assert grad(p) == [2.0**20]


def test_a_side_branch_that_the_loss_does_not_use_is_left_alone(plain: OpenBackend) -> None:
    p, q = parameter(1), parameter(2)
    shared = p * 2
    side = shared * q
    (shared * 3).sum().backward()
    assert grad(p) == [6]
    assert q.grad is None
    assert side.node is not None
    assert side.node.vjp is not None


def test_a_chain_of_20000_nodes_is_walked_and_deleted_without_recursion(plain: OpenBackend) -> None:
    p = parameter(1)
    for ending in ("backward", "retain", "deletion"):
        y: Tensor = p
        for _ in range(20_000):
            y = y + 0.0
        if ending != "deletion":
            backward(y.sum(), retain=ending == "retain")
        del y
        gc.collect()


def alive(refs: list[weakref.ref[Any]]) -> int:
    return sum(ref() is not None for ref in refs)


def test_values_that_no_vjp_needs_are_released_at_once(plain: OpenBackend) -> None:
    p = Parameter(np.ones((8, 8), np.float32))
    refs: list[weakref.ref[Any]] = []

    def seen(t: Tensor) -> Tensor:
        refs.append(weakref.ref(t.value))
        return t

    gc.disable()
    try:
        hidden = seen(seen(p * 1.0) + seen(p - 2.0))  # sums and products by a number need no operand
        logits = seen(ops.reshape(hidden, (64, 1)) * 2.0)
        loss = ops.cross_entropy(logits, tensor(np.zeros(64, np.int32)))
        del hidden, logits
        assert alive(refs) == 0
        assert loss.node is not None
        loss.backward()
    finally:
        gc.enable()


def test_backward_releases_every_saved_value_without_the_collector(plain: OpenBackend) -> None:
    p = Parameter(np.ones((8, 8), np.float32))
    gc.disable()
    try:
        first = ops.exp(p * p)
        second = ops.softmax(ops.gelu(first) @ first)
        refs = [weakref.ref(first.value), weakref.ref(second.value)]
        loss = (second * second).sum()
        del first, second
        assert alive(refs) == 2
        loss.backward()
        assert alive(refs) == 0
        again = (ops.exp(p) * 2.0).sum()
        node = weakref.ref(again)
        del again
        assert node() is None  # an abandoned graph is no cycle
    finally:
        gc.enable()


def test_a_freed_graph_lets_go_of_its_leaves(plain: OpenBackend) -> None:
    leaf = tensor([1.0, 2.0], requires_grad=True)
    gone, loss = weakref.ref(leaf), (leaf * 2.0).sum()
    loss.backward()
    del leaf
    assert gone() is None
    assert loss.node is not None


def test_gradients_stay_on_their_backend_when_the_parameter_moves(plain: OpenBackend, make_backend: Make) -> None:
    p = parameter(1, 2)
    found = backward((p * p).sum())
    other = make_backend(name="other")
    p.move(other.tools.storage.from_host(np.ones(2, np.float32)), other, None)
    assert found[p].backend is plain
    with pytest.raises(BackendMismatch, match=r"plain.*other"):
        found.add_to_parameters()
    assert p.grad is None


def test_two_threads_build_and_walk_their_own_graphs(plain: OpenBackend) -> None:
    p = parameter(1, 2)
    results: list[list[float]] = []

    def work(factor: float) -> None:
        for _ in range(50):
            y: Tensor = p * factor
            for _ in range(20):
                y = y * 1.0
            results.append(backward(y.sum())[p].numpy().tolist())

    threads = [threading.Thread(target=work, args=(f,)) for f in (2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [[2.0, 2.0]] * 50 + [[3.0, 3.0]] * 50
