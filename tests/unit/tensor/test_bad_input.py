"""What operations refuse, and that they say what they got and what they wanted."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.registry import OpenBackend, use_backend
from turret.spi import BackendMismatch, ConfigError, DTypeError, ShapeError, TurretError
from turret.tensor import Tensor, backward, ops, tensor

Make = Callable[..., OpenBackend]


def f(*shape: int) -> Tensor:
    return tensor(np.ones(shape, np.float32))


def i(*shape: int) -> Tensor:
    return tensor(np.zeros(shape, np.int32))


WRONG_SHAPES: dict[str, tuple[Callable[[], Any], type[TurretError], list[str]]] = {
    "add": (lambda: f(2, 3) + f(2, 4), ShapeError, ["(2, 3)", "(2, 4)"]),
    "subtract": (lambda: f(2, 3) - f(2), ShapeError, ["(2, 3)", "(2,)"]),
    "multiply": (lambda: f(3) * f(2), ShapeError, ["(3,)", "(2,)"]),
    "divide": (lambda: f(3) / f(2), ShapeError, ["(3,)", "(2,)"]),
    "maximum": (lambda: ops.maximum(f(3), f(2)), ShapeError, ["(3,)", "(2,)"]),
    "minimum": (lambda: ops.minimum(f(3), f(2)), ShapeError, ["(3,)", "(2,)"]),
    "equal": (lambda: ops.equal(f(3), f(2)), ShapeError, ["(3,)", "(2,)"]),
    "less": (lambda: ops.less(f(3), f(2)), ShapeError, ["(3,)", "(2,)"]),
    "less_equal": (lambda: ops.less_equal(f(3), f(2)), ShapeError, ["(3,)", "(2,)"]),
    "logical_and": (lambda: ops.logical_and(f(3).cast("bool"), f(2).cast("bool")), ShapeError, ["(3,)", "(2,)"]),
    "where": (lambda: ops.where(f(3).cast("bool"), f(2), f(2)), ShapeError, ["(3,)", "(2,)"]),
    "sum": (lambda: f(2, 3).sum(2), ShapeError, ["axis 2", "(2, 3)", "-2 <= axis < 2"]),
    "sum-twice": (lambda: f(2, 3).sum((1, -1)), ShapeError, ["(1, -1)", "once"]),
    "mean": (lambda: f(2, 3).mean(-3), ShapeError, ["axis -3", "(2, 3)"]),
    "max": (lambda: f(2, 3).max(5), ShapeError, ["axis 5"]),
    "max-empty": (lambda: f(2, 0).max(1), ShapeError, ["(2, 0)", "no greatest"]),
    "causal_mask": (lambda: ops.causal_mask(f(2), queries=3, keys=-1), ConfigError, ["-1 keys", ">= 0"]),
    "argmax": (lambda: ops.argmax(f(2, 3), 2), ShapeError, ["axis 2"]),
    "argmax-empty": (lambda: ops.argmax(f(2, 0)), ShapeError, ["(2, 0)"]),
    "reshape": (lambda: f(2, 3).reshape(4, 2), ShapeError, ["(2, 3)", "(4, 2)", "6 elements"]),
    "reshape-two-unknown": (lambda: f(2, 3).reshape(-1, -1), ShapeError, ["(-1, -1)", "one -1"]),
    "reshape-no-divisor": (lambda: f(2, 3).reshape(4, -1), ShapeError, ["(4, -1)"]),
    "reshape-negative": (lambda: f(2, 3).reshape(-2, -3), ShapeError, ["(-2, -3)"]),
    "transpose": (lambda: f(2, 3).transpose(0, 0), ShapeError, ["(2, 3)", "(0, 0)", "0..1"]),
    "transpose-outside": (lambda: f(2, 3).transpose(0, 2), ShapeError, ["(0, 2)"]),
    "slice": (lambda: ops.slice(f(4), (1,), (5,)), ShapeError, ["(4,)", "(5,)", "stop <= size"]),
    "slice-backwards": (lambda: ops.slice(f(4), (3,), (1,)), ShapeError, ["(3,)", "(1,)"]),
    "slice-step": (lambda: ops.slice(f(4), (0,), (4,), step=(0,)), ShapeError, ["step (0,)"]),
    "slice-axes": (lambda: ops.slice(f(4, 4), (0,), (4,)), ShapeError, ["(4, 4)", "one per axis"]),
    "index": (lambda: f(2, 3)[2], ShapeError, ["index 2", "(2, 3)", "-2 <= index < 2"]),
    "index-many": (lambda: f(2, 3)[0, 0, 0], ShapeError, ["3 entries", "(2, 3)"]),
    "index-dots": (lambda: f(2, 3)[..., ...], ShapeError, ["2 times", "once"]),
    "index-scalar": (lambda: f()[0], ShapeError, ["1 entries", "()"]),
    "concatenate": (lambda: ops.concatenate([f(2, 3), f(3, 3)], 1), ShapeError, ["(2, 3)", "(3, 3)"]),
    "concatenate-axis": (lambda: ops.concatenate([f(2, 3)], 2), ShapeError, ["axis 2", "-2 <= axis < 2"]),
    "concatenate-nothing": (lambda: ops.concatenate([], 0), ShapeError, ["at least one"]),
    "pad": (lambda: ops.pad(f(2, 3), [(1, 1)]), ShapeError, ["(2, 3)", "one pair"]),
    "pad-negative": (lambda: ops.pad(f(2), [(-1, 1)]), ShapeError, ["-1", ">= 0"]),
    "broadcast_to": (lambda: ops.broadcast_to(f(2, 3), (2, 4)), ShapeError, ["(2, 3)", "(2, 4)"]),
    "broadcast_to-smaller": (lambda: ops.broadcast_to(f(2, 3), (1, 3)), ShapeError, ["(2, 3)", "(1, 3)"]),
    "gather_rows": (lambda: ops.gather_rows(f(), i(2)), ShapeError, ["rank 0", "(R, ...)"]),
    "gather_last": (lambda: ops.gather_last(f(2, 3), i(3)), ShapeError, ["(2, 3)", "(3,)"]),
    "matmul": (lambda: f(2, 3) @ f(4, 2), ShapeError, ["(2, 3)", "(4, 2)", "3 and 4"]),
    "matmul-rank": (lambda: f(2, 3) @ f(3), ShapeError, ["(2, 3)", "(3,)", "rank >= 2"]),
    "matmul-batch": (lambda: f(2, 3, 4) @ f(3, 4, 3), ShapeError, ["(2, 3, 4)", "(3, 4, 3)"]),
    "matmul-flag": (
        lambda: ops.matmul(f(2, 3), f(4, 5), transpose_a=True),
        ShapeError,
        ["(2, 3) transposed", "2 and 4"],
    ),
    "linear": (lambda: ops.linear(f(2, 3), f(4, 2)), ShapeError, ["(2, 3)", "(4, 2)"]),
    "linear-bias": (lambda: ops.linear(f(2, 3), f(4, 3), f(3)), ShapeError, ["bias (3,)", "(4,)"]),
    "linears": (lambda: ops.linears(f(2, 3), (f(4, 3), None), (f(4, 2), None)), ShapeError, ["(2, 3)", "(4, 2)"]),
    "linears-bias": (lambda: ops.linears(f(2, 3), (f(4, 3), f(3))), ShapeError, ["bias (3,)", "(4,)"]),
    "linears-some-bias": (
        lambda: ops.linears(f(2, 3), (f(4, 3), f(4)), (f(4, 3), None)),
        ShapeError,
        ["2 weights and 1 biases", "for all or for none"],
    ),
    "linears-nothing": (lambda: ops.linears(f(2, 3)), ShapeError, ["no map", "(weight, bias)"]),
    "softmax": (lambda: ops.softmax(f()), ShapeError, ["()", "at least one"]),
    "log_softmax": (lambda: ops.log_softmax(f(2, 0)), ShapeError, ["(2, 0)"]),
    "gated_silu": (lambda: ops.gated_silu(f(2, 3), f(3)), ShapeError, ["(2, 3)", "(3,)"]),
    "layer_norm": (lambda: ops.layer_norm(f(2, 3), f(2), f(3)), ShapeError, ["(2, 3)", "(2,)", "(3,)"]),
    "layer_norm-empty": (lambda: ops.layer_norm(f(2, 0), f(0), f(0)), ShapeError, ["(2, 0)"]),
    "rms_norm": (lambda: ops.rms_norm(f(2, 3), f(3, 1)), ShapeError, ["(3, 1)", "(3,)"]),
    "cross_entropy": (lambda: ops.cross_entropy(f(2, 3), i(3)), ShapeError, ["(2, 3)", "(3,)"]),
    "cross_entropy-weights": (lambda: ops.cross_entropy(f(2, 3), i(2), f(3)), ShapeError, ["(3,)", "(2,)"]),
    "causal_attention": (
        lambda: ops.causal_attention(f(2, 3, 4, 5), f(2, 3, 4, 6), f(2, 3, 4, 6), scale=1.0),
        ShapeError,
        ["(2, 3, 4, 5)", "(2, 3, 4, 6)"],
    ),
    "causal_attention-heads": (
        lambda: ops.causal_attention(f(2, 3, 4, 5), f(2, 3, 3, 5), f(2, 3, 3, 5), scale=1.0),
        ShapeError,
        ["4 query heads", "3 key-value heads"],
    ),
    "causal_attention-keys": (
        lambda: ops.causal_attention(f(2, 3, 4, 5), f(2, 0, 4, 5), f(2, 0, 4, 5), scale=1.0),
        ShapeError,
        ["S >= 1"],
    ),
    "flash_attention-offset": (
        lambda: ops.flash_attention(f(2, 3, 4, 5), f(2, 3, 4, 5), f(2, 3, 4, 5), scale=1.0, offset=-1),
        ConfigError,
        ["offset -1", ">= 0"],
    ),
    "rope": (lambda: ops.rope(f(1, 2, 3, 5), f(2, 2), f(2, 2)), ShapeError, ["(1, 2, 3, 5)", "even"]),
    "rope-table": (lambda: ops.rope(f(1, 2, 3, 4), f(3, 2), f(3, 2)), ShapeError, ["(3, 2)", "(2, 2)"]),
    "gelu-form": (lambda: ops.gelu(f(2), form="quick"), ConfigError, ["'quick'", "'erf'"]),  # type: ignore[arg-type]
    "layer_norm-eps": (lambda: ops.layer_norm(f(3), f(3), f(3), eps=0.0), ConfigError, ["eps 0.0", "positive"]),
    "rms_norm-eps": (lambda: ops.rms_norm(f(3), f(3), eps=float("nan")), ConfigError, ["eps nan"]),
}

FLOAT_OPS: dict[str, Callable[[Any], Any]] = {
    **{n: getattr(ops, n) for n in ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "isfinite", "mean")},
    **{n: getattr(ops, n) for n in ("softmax", "log_softmax", "gelu", "silu")},
    "divide": lambda x: ops.divide(x, x),
    "gated_silu": lambda x: ops.gated_silu(x, x),
    "matmul": lambda x: ops.matmul(x, x),
    "linear": lambda x: ops.linear(x, x),
    "linears": lambda x: ops.linears(x, (x, None)),
    "layer_norm": lambda x: ops.layer_norm(x, x, x),
    "rms_norm": lambda x: ops.rms_norm(x, x),
    "cross_entropy": lambda x: ops.cross_entropy(x, i(2)),
    "causal_attention": lambda x: ops.causal_attention(x, x, x, scale=1.0),
    "flash_attention": lambda x: ops.flash_attention(x, x, x, scale=1.0),
    "rope": lambda x: ops.rope(x, x, x),
}
TENSOR_OPS: dict[str, Callable[[Any], Any]] = {
    **FLOAT_OPS,
    "negative": ops.negative,
    "sum": ops.sum,
    "max": ops.max,
    "argmax": ops.argmax,
    "logical_and": lambda x: ops.logical_and(x, x),
    "where": lambda x: ops.where(x, f(2, 2), f(2, 2)),
    "reshape": lambda x: ops.reshape(x, (4,)),
    "transpose": lambda x: ops.transpose(x),
    "slice": lambda x: ops.slice(x, (0, 0), (1, 1)),
    "index": lambda x: ops.index(x, 0),
    "concatenate": lambda x: ops.concatenate([x, x], 0),
    "pad": lambda x: ops.pad(x, [(0, 0), (0, 0)]),
    "broadcast_to": lambda x: ops.broadcast_to(x, (2, 2)),
    "cast": lambda x: ops.cast(x, "int32"),
    "gather_rows": lambda x: ops.gather_rows(x, i(2)),
    "gather_last": lambda x: ops.gather_last(x, i(2)),
}
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "equal", "less", "less_equal")
TWO_OPERANDS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    **{n: getattr(ops, n) for n in (*BINARY, "matmul", "linear", "gated_silu", "rms_norm")},
    "layer_norm": lambda a, b: ops.layer_norm(a, a, b),
    "where": lambda a, b: ops.where(ops.equal(a, a), a, b),
    "concatenate": lambda a, b: ops.concatenate([a, b], 0),
    "causal_attention": lambda a, b: ops.causal_attention(a, a, b, scale=1.0),
    "flash_attention": lambda a, b: ops.flash_attention(a, b, b, scale=1.0),
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_wrong_shapes_and_options_say_got_and_wanted(plain: OpenBackend, name: str) -> None:
    call, error, words = WRONG_SHAPES[name]
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", FLOAT_OPS)
@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_float_operations_refuse_whole_numbers(plain: OpenBackend, name: str, dtype: Any) -> None:
    with pytest.raises(DTypeError, match=rf"{dtype}.*wanted"):
        FLOAT_OPS[name](f(2, 2).cast(dtype))


@pytest.mark.parametrize("name", TENSOR_OPS)
@pytest.mark.parametrize(
    "value", [np.ones((2, 2), np.float32), [[1.0, 1.0]], 1.0, None], ids=["array", "list", "float", "none"]
)
def test_host_values_are_refused_with_the_way_to_wrap_them(plain: OpenBackend, name: str, value: Any) -> None:
    with pytest.raises(DTypeError, match=rf"{type(value).__name__}.*wanted.*turret\.tensor\("):
        TENSOR_OPS[name](value)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("value", [np.ones((2, 2), np.float32), np.float32(2), [1.0], "1", None], ids=str)
def test_binary_operations_refuse_host_values_on_either_side(plain: OpenBackend, name: str, value: Any) -> None:
    for operands in ((f(2, 2), value), (value, f(2, 2)), (value, value)):
        with pytest.raises(DTypeError, match=rf"{type(value).__name__}.*wanted"):
            getattr(ops, name)(*operands)


@pytest.mark.parametrize("name", TWO_OPERANDS)
def test_operands_of_two_dtypes_are_refused(plain: OpenBackend, name: str) -> None:
    with pytest.raises(DTypeError, match=r"float32.*float64|float64.*float32"):
        TWO_OPERANDS[name](f(2, 2), f(2, 2).cast("float64"))


@pytest.mark.parametrize("name", TWO_OPERANDS)
def test_operands_of_two_backends_are_refused(plain: OpenBackend, make_backend: Make, name: str) -> None:
    with use_backend(make_backend(name="other")):
        foreign = f(2, 2)
    with pytest.raises(BackendMismatch, match=r"plain.*other|other.*plain"):
        TWO_OPERANDS[name](f(2, 2), foreign)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.cross_entropy(f(2, 3), x),
        lambda x: ops.gather_rows(f(2, 3), x),
        lambda x: ops.gather_last(f(2, 3), x),
    ],
    ids=["cross_entropy", "gather_rows", "gather_last"],
)
def test_indices_must_be_int32_of_the_same_backend(plain: OpenBackend, make_backend: Make, call: Any) -> None:
    for dtype in ("float32", "int64", "uint8"):
        with pytest.raises(DTypeError, match=rf"{dtype}.*wanted int32"):
            call(i(2).cast(dtype))
    with use_backend(make_backend(name="other")):
        foreign = i(2)
    with pytest.raises(BackendMismatch, match=r"plain.*other"):
        call(foreign)


def test_numbers_must_fit_the_dtype_of_the_tensor(plain: OpenBackend) -> None:
    with pytest.raises(DTypeError, match=r"float 0\.5.*int32"):
        i(2) + 0.5
    with pytest.raises(DTypeError, match=r"4294967296.*int32"):
        i(2) + 2**32
    assert (i(2) + (2**31 - 1)).numpy().tolist() == [2**31 - 1] * 2
    assert (f(2) + 1).dtype == "float32"
    assert (f(2) * np.float64(0.5)).dtype == "float32"


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "minimum", "less", "less_equal"])
def test_arithmetic_on_bools_is_refused(plain: OpenBackend, name: str) -> None:
    yes = f(2).cast("bool")
    with pytest.raises(DTypeError, match=r"bool.*wanted numbers"):
        getattr(ops, name)(yes, yes)
    with pytest.raises(DTypeError, match=r"bool.*wanted numbers"):
        operator.neg(yes)


def test_where_refuses_a_condition_that_is_not_bool(plain: OpenBackend) -> None:
    with pytest.raises(DTypeError, match=r"float32.*wanted bool"):
        ops.where(f(2), f(2), f(2))
    with pytest.raises(DTypeError, match="wanted one Tensor or two"):
        ops.where(f(2).cast("bool"), 1.0, 2.0)


def test_unknown_dtypes_are_refused(plain: OpenBackend) -> None:
    with pytest.raises(DTypeError, match="float33"):
        f(2).cast("float33")  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [np.array([0, 1]), [0, 1], None, True, 1.0, "a", (0, np.array([1]))], ids=repr)
def test_index_refuses_what_is_no_integer_or_slice(plain: OpenBackend, key: Any) -> None:
    with pytest.raises(DTypeError, match=r"wanted an int or a slice.*gather_rows"):
        f(2, 3)[key]


def test_a_failed_operation_leaves_the_graph_as_it_was(plain: OpenBackend) -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    y = x * 3
    with pytest.raises(ShapeError):
        y + f(3)
    assert backward(y.sum())[x].numpy().tolist() == [3, 3]
