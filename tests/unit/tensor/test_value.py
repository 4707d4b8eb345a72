"""Tensors and parameters as values: how they are made, read, refused and replaced."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.registry import OpenBackend, use_backend
from turret.spi import DTypeError, GraphError, ShapeError
from turret.tensor import Parameter, Tensor, tensor

Make = Callable[..., OpenBackend]


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1.5, "float32"),
        (3, "int32"),
        (True, "bool"),
        ([[1.0, 2.0]], "float32"),
        ([1, 2], "int32"),
        ([True, False], "bool"),
        ([], "float32"),
        (np.ones(2, np.float32), "float32"),
        (np.ones(2, np.int32), "int32"),
        (np.ones(2, np.uint8), "uint8"),
        (np.float32(1), "float32"),
    ],
)
def test_python_values_get_the_default_dtypes_and_arrays_keep_theirs(
    backend: OpenBackend, data: Any, dtype: str
) -> None:
    made = tensor(data)
    assert made.dtype == dtype
    assert made.backend is backend
    assert made.shape == np.shape(data)
    assert made.numpy().tolist() == np.asarray(data).tolist()
    assert made.numpy().dtype == dtype


def test_a_tensor_is_a_private_copy_both_ways(backend: OpenBackend) -> None:
    host = np.ones(3, np.float32)
    made = tensor(host)
    host[0] = 7
    copy = made.numpy()
    copy[1] = 7
    assert made.numpy().tolist() == [1, 1, 1]


def test_dtype_and_backend_can_be_chosen(plain: OpenBackend, make_backend: Make) -> None:
    other = make_backend(name="other")
    made = tensor([1, 2], dtype="float32", backend=other)
    assert (made.dtype, made.backend) == ("float32", other)
    assert repr(made) == "Tensor(shape=(2,), dtype=float32, backend=other)"
    assert repr(tensor([1.0], requires_grad=True)).endswith("requires_grad)")


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([[1.0], [1.0, 2.0]], ShapeError, "equal length"),
        ("text", DTypeError, "str.*wanted numbers"),
        (None, DTypeError, "NoneType.*wanted numbers"),
        ([None, 1], DTypeError, "list.*wanted numbers"),
        (1j, DTypeError, "complex"),
        (np.array(["a"]), DTypeError, "ndarray.*wanted numbers"),
        ([2**40], DTypeError, r"1099511627776.*wanted.*int32"),
        ([2**70], DTypeError, "wanted numbers"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(
    plain: OpenBackend, data: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tensor(data)


def test_whole_numbers_are_never_wrapped_silently(plain: OpenBackend) -> None:
    with pytest.raises(DTypeError, match=r"-1.*wanted 0 to 255.*uint8"):
        tensor([-1, 3], dtype="uint8")
    with pytest.raises(DTypeError, match=r"2147483648.*int32"):
        tensor(np.array([2**31]), dtype="int32")
    assert tensor(np.array([2**31 - 1]), dtype="int32").item() == 2**31 - 1


def test_other_wrong_requests_are_refused(plain: OpenBackend) -> None:
    with pytest.raises(DTypeError, match=r"tensor\(\) of Tensor\(shape=\(1,\).*\.detach\(\)"):
        tensor(tensor([1.0]))
    with pytest.raises(DTypeError, match=r"int32 cannot require a gradient; wanted one of"):
        tensor([1], requires_grad=True)
    with pytest.raises(DTypeError, match="float33"):
        tensor([1.0], dtype="float33")  # type: ignore[arg-type]


def test_item_len_iteration_and_truth(plain: OpenBackend) -> None:
    assert tensor([[2.5]]).item() == 2.5
    assert tensor(3).item() == 3
    assert tensor(True).item() is True
    with pytest.raises(ShapeError, match=r"\(2,\).*one element"):
        tensor([1.0, 2.0]).item()
    rows = tensor([[1.0, 2.0], [3.0, 4.0]])
    assert len(rows) == 2
    assert [row.numpy().tolist() for row in rows] == [[1, 2], [3, 4]]
    first, second = rows
    assert (first.shape, second.shape) == ((2,), (2,))
    for call in (len, list):
        with pytest.raises(ShapeError, match="rank 0"):
            call(tensor(1.0))
    with pytest.raises(GraphError, match=r"no truth value.*\.item\(\)"):
        bool(tensor(1.0))


OPERATORS: list[Callable[[Any, Any], Any]] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.matmul,
]


@pytest.mark.parametrize("apply", OPERATORS)
@pytest.mark.parametrize(
    "host", [np.ones((2, 2), np.float32), np.float32(2), np.array(2.0)], ids=["array", "scalar", "rank0"]
)
def test_operators_refuse_numpy_values_on_either_side(plain: OpenBackend, apply: Any, host: Any) -> None:
    x = tensor(np.ones((2, 2), np.float32))
    for operands in ((x, host), (host, x)):
        with pytest.raises(DTypeError, match=rf"{type(host).__name__}.*wanted a Tensor.*turret\.tensor\("):
            apply(*operands)


@pytest.mark.parametrize("apply", OPERATORS[:4])
def test_operators_take_python_numbers_on_either_side(backend: OpenBackend, apply: Any) -> None:
    x = np.array([1.0, 2.0], np.float32)
    assert apply(tensor(x), 4).numpy().tolist() == apply(x, 4).tolist()
    assert apply(4.0, tensor(x)).numpy().tolist() == apply(4.0, x).tolist()


def test_numpy_functions_are_sent_to_the_host_copy(plain: OpenBackend) -> None:
    x = tensor([1.0, 2.0])
    with pytest.raises(DTypeError, match=r"shape=\(2,\).*use \.numpy\(\)"):
        np.asarray(x)
    with pytest.raises(TypeError, match="ufunc"):
        np.add(x, np.ones(2))
    with pytest.raises(DTypeError, match=r"use \.numpy\(\)"):
        tensor([x, x])


def test_methods_are_the_operations(backend: OpenBackend) -> None:
    host = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = tensor(host)
    assert (-x).numpy().tolist() == (-host).tolist()
    assert x.reshape(3, -1).numpy().tolist() == host.reshape(3, 2).tolist()
    assert x.transpose().numpy().tolist() == host.T.tolist()
    assert x.transpose(1, 0).numpy().tolist() == host.T.tolist()
    assert x.sum(0).numpy().tolist() == host.sum(0).tolist()
    assert x.mean(1, keepdims=True).numpy().tolist() == host.mean(1, keepdims=True).tolist()
    assert x.max().item() == 5
    assert x.cast("int32").dtype == "int32"
    assert (x @ x.transpose()).numpy().tolist() == (host @ host.T).tolist()
    assert x.ndim == 2


def test_detach_leaves_the_graph(plain: OpenBackend) -> None:
    p = Parameter(np.ones(2, np.float32))
    y = (p * 2).detach()
    assert not y.requires_grad
    assert y.numpy().tolist() == [2, 2]


def test_a_parameter_is_a_private_float_copy(plain: OpenBackend) -> None:
    host = np.ones(2, np.float32)
    p = Parameter(host)
    host[0] = 9
    assert p.numpy().tolist() == [1, 1]
    assert (p.trainable, p.requires_grad, p.grad, p.version, p.owned) == (True, True, None, 0, False)
    assert not Parameter(host, trainable=False).requires_grad
    for wrong in (np.ones(2, np.int32), np.ones(2, bool)):
        with pytest.raises(DTypeError, match=rf"{wrong.dtype.name}; wanted one of"):
            Parameter(wrong)
    with pytest.raises(DTypeError, match=r"list; wanted a NumPy array"):
        Parameter([1.0])  # type: ignore[arg-type]


def test_assign_takes_the_same_shape_and_dtype_or_nothing(plain: OpenBackend) -> None:
    p = Parameter(np.ones(2, np.float32))
    put = plain.tools.storage.from_host
    with pytest.raises(ShapeError, match=r"\(2,\).*\(3,\)"):
        p.assign(put(np.ones(3, np.float32)))
    with pytest.raises(DTypeError, match=r"float32.*float64"):
        p.assign(put(np.ones(2)))
    assert (p.version, p.numpy().tolist()) == (0, [1, 1])
    p.assign(put(np.zeros(2, np.float32)))
    assert (p.version, p.numpy().tolist()) == (1, [0, 0])


def test_a_parameter_lives_on_the_current_backend_or_the_given_one(plain: OpenBackend, make_backend: Make) -> None:
    other = make_backend(name="other")
    assert Parameter(np.ones(1, np.float32)).backend is plain
    assert Parameter(np.ones(1, np.float32), backend=other).backend is other
    with use_backend(other):
        assert tensor([1.0]).backend is other


def test_tensors_compare_by_identity_and_can_be_keys(plain: OpenBackend) -> None:
    x, y = tensor([1.0]), tensor([1.0])
    assert x != y
    assert {x: 1, y: 2}[x] == 1
    assert isinstance(x, Tensor)
