"""custom_gradient: results with a gradient of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.registry import OpenBackend, use_backend
from turret.spi import BackendMismatch, DTypeError, GraphError, ShapeError, StaleGraph
from turret.tensor import Parameter, Tensor, backward, custom_gradient, tensor

Make = Callable[..., OpenBackend]


def leaf(*values: float) -> Tensor:
    return tensor([float(v) for v in values], requires_grad=True)


def test_the_given_gradient_replaces_that_of_the_value(backend: OpenBackend) -> None:
    x, y = leaf(1, 2), leaf(3, 4)
    out = custom_gradient(x * y, [x, y], lambda dy: [dy * 5, dy * 7])
    assert out.numpy().tolist() == [3, 8]
    found = backward(out.sum())
    assert (found[x].numpy().tolist(), found[y].numpy().tolist()) == ([5, 5], [7, 7])


def test_the_vjp_gets_the_gradient_of_the_output_and_records_nothing(plain: OpenBackend) -> None:
    x, p = leaf(1, 2), Parameter(np.ones(2, np.float32))
    seen: list[Tensor] = []

    def vjp(dy: Tensor) -> list[Tensor]:
        seen.append(dy)
        product = dy * p
        assert not product.requires_grad
        return [product]

    backward((custom_gradient(x.detach(), [x], vjp) * 3).sum())
    assert seen[0].numpy().tolist() == [3, 3]
    assert p.grad is None


def test_constants_get_no_gradient_and_outputs_of_constants_no_graph(plain: OpenBackend) -> None:
    x, constant = leaf(1, 2), tensor([3.0, 4.0])
    out = custom_gradient(x * constant, [x, constant], lambda dy: (dy, dy))
    assert list(backward(out.sum())) == [x]
    assert not custom_gradient(constant, [constant], lambda dy: [dy]).requires_grad


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (lambda dy: [dy], GraphError, r"gave 1 gradients; wanted 2, one per input"),
        (lambda dy: [dy, dy, dy], GraphError, r"gave 3 gradients; wanted 2"),
        (lambda dy: dy, GraphError, r"gave one Tensor; wanted a sequence of 2"),
        (lambda dy: [dy, dy[:1]], ShapeError, r"gradient 1 of shape \(1,\); wanted \(2,\)"),
        (lambda dy: [dy.cast("float64"), dy], DTypeError, r"gradient 0 of dtype float64; wanted float32"),
        (lambda dy: [dy, dy.numpy()], DTypeError, r"gradient 1, got ndarray; wanted a Tensor"),
        (lambda dy: [dy, None], DTypeError, r"gradient 1, got NoneType; wanted a Tensor"),
    ],
)
def test_a_broken_promise_is_named_and_changes_nothing(
    plain: OpenBackend, answer: Any, error: type[Exception], message: str
) -> None:
    p = Parameter(np.ones(2, np.float32))
    x = leaf(1, 2)
    out = custom_gradient(x.detach(), [p, x], answer, name="mine").sum()
    for _ in range(2):  # the graph is not freed by the failure
        with pytest.raises(error, match=r"the vjp of mine.*" + message):
            out.backward()
    assert p.grad is None


def test_a_gradient_of_another_backend_is_refused(plain: OpenBackend, make_backend: Make) -> None:
    x = leaf(1, 2)
    with use_backend(make_backend(name="other")):
        foreign = tensor([1.0, 1.0])
    out = custom_gradient(x.detach(), [x], lambda dy: [foreign])
    with pytest.raises(BackendMismatch, match=r"gradient 0 on other; wanted plain"):
        out.sum().backward()
    with pytest.raises(BackendMismatch, match=r"plain.*other"):
        custom_gradient(x, [foreign], lambda dy: [dy])


def test_an_output_needs_inputs_and_both_must_be_tensors(plain: OpenBackend) -> None:
    with pytest.raises(GraphError, match="at least one input"):
        custom_gradient(tensor([1.0]), [], lambda dy: [])
    with pytest.raises(DTypeError, match="ndarray; wanted a Tensor"):
        custom_gradient(np.ones(1), [leaf(1)], lambda dy: [dy])  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="float; wanted a Tensor"):
        custom_gradient(leaf(1), [1.0], lambda dy: [dy])  # type: ignore[list-item]


def test_a_parameter_among_the_inputs_is_watched(plain: OpenBackend) -> None:
    p = Parameter(np.ones(2, np.float32))
    out = custom_gradient(p.detach(), [p], lambda dy: [dy]).sum()
    p.assign(plain.tools.storage.from_host(np.zeros(2, np.float32)))
    with pytest.raises(StaleGraph):
        out.backward()
