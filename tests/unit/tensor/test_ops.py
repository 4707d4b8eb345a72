"""Every operation against an independent float64 formula and its central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from turret.registry import OpenBackend
from turret.tensor import Tensor, backward, ops, tensor

Array = npt.NDArray[Any]
Differences = Callable[[Callable[..., Any], tuple[Array, ...], Array, int], Array]


def cotangent_of(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(7).uniform(-1, 1, shape)


def place(case: Any, dtype: str, *, graph: bool = True) -> tuple[Tensor, ...]:
    """float64 inputs become leaves of `dtype`, the others keep theirs."""
    return tuple(
        tensor(x, dtype=dtype, requires_grad=graph) if x.dtype == np.float64 else tensor(x) for x in case.inputs
    )


def gradients_of(case: Any, dtype: str, cotangent: Array) -> list[Array | None]:
    leaves = place(case, dtype)
    out = case.op(*leaves, **case.options)
    found = backward(out, tensor(cotangent, dtype=out.dtype))
    return [None if leaf not in found else found[leaf].numpy() for leaf in leaves]


def test_value_equals_the_float64_formula(backend: OpenBackend, op_case: Any) -> None:
    got = op_case.op(*place(op_case, "float32", graph=False), **op_case.options)
    want = np.asarray(op_case.formula(*op_case.inputs))
    assert got.shape == want.shape
    assert got.numpy().dtype == got.dtype
    np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=2e-6)


def test_gradient_equals_central_differences(
    backend: OpenBackend, gradient_case: Any, differences: Differences
) -> None:
    cotangent = cotangent_of(np.shape(gradient_case.formula(*gradient_case.inputs)))
    for which, got in enumerate(gradients_of(gradient_case, "float32", cotangent)):
        if gradient_case.inputs[which].dtype != np.float64:
            assert got is None
            continue
        want = differences(gradient_case.formula, gradient_case.inputs, cotangent, which)
        assert got is not None
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def test_gradient_equals_differences_of_the_operation_itself_in_float64(
    plain: OpenBackend, smooth_case: Any, differences: Differences
) -> None:
    def run(*inputs: Array) -> Array:
        constants = tuple(tensor(x) for x in inputs)
        return smooth_case.op(*constants, **smooth_case.options).numpy()

    cotangent = cotangent_of(np.shape(smooth_case.formula(*smooth_case.inputs)))
    for which, got in enumerate(gradients_of(smooth_case, "float64", cotangent)):
        if got is not None:
            want = differences(run, smooth_case.inputs, cotangent, which)
            # cross entropy sums its shares in float32 whatever the logits are
            loose = "cross_entropy" in smooth_case.id
            np.testing.assert_allclose(got, want, rtol=1e-6 if loose else 1e-7, atol=1e-6 if loose else 1e-8)


def test_every_exported_operation_has_a_case(covered: frozenset[str]) -> None:
    exported = {name for name, value in vars(ops).items() if callable(value) and not name.startswith("_")}
    assert exported
    assert exported - covered == set()
