"""The affine map of a packed weight: values, gradients, what it keeps, and what it refuses."""

from __future__ import annotations

import functools
import tracemalloc
from collections.abc import Callable
from types import FunctionType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from turret.registry import OpenBackend, open_backend, use_backend
from turret.spi import BackendMismatch, ConfigError, DType, DTypeError, Packed, ShapeError, StaleGraph
from turret.tensor import Parameter, Tensor, backward, capture, checkpoint, no_grad, ops, tensor
from turret.tensor.graph import Node
from turret.tensor.ops.quantized import native_packed, packed_layout

RANDOM = np.random.default_rng(20261130)
SCALES = ("float32", "dynamic", "linear")


def packed_of(weight: Any, *, block: int = 32, scales: Any = "float32") -> tuple[Packed[Tensor], Any]:
    """A packed weight on the current backend, and the float64 values that it stands for."""
    put = tensor(weight.astype(np.float32))
    slot = put.backend.tools.quantized_linear
    made = slot.pack(put.value, block=block, scales=scales)
    kind: DType = "float32" if scales == "float32" else "uint8"
    packed = Packed(
        Tensor(made.codes, put.backend, "uint8"),
        Tensor(made.scales, put.backend, kind),
        None if made.group_scales is None else Tensor(made.group_scales, put.backend, "float32"),
        None if made.offset is None else Tensor(made.offset, put.backend, "float32"),
        weight.shape,
        block,
        scales,
    )
    return packed, put.backend.tools.storage.to_host(slot.unpack(native_packed(packed))).astype(np.float64)


@pytest.fixture
def case(backend: OpenBackend) -> tuple[Packed[Tensor], Any]:
    return packed_of(RANDOM.normal(size=(9, 35)), scales="linear")


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("lead", [(), (1,), (4,), (2, 3), (40,)], ids=str)
def test_it_is_the_map_of_the_unpacked_weight(backend: OpenBackend, lead: tuple[int, ...], scales: str) -> None:
    packed, weight = packed_of(RANDOM.normal(size=(9, 35)), scales=scales)
    x, bias = RANDOM.normal(size=(*lead, 35)), RANDOM.normal(size=9)
    put, shift = (tensor(v.astype(np.float32), requires_grad=True) for v in (x, bias))
    out = ops.quantized_linear(put, packed, shift)
    assert (out.shape, out.dtype) == ((*lead, 9), "float32")
    np.testing.assert_allclose(out.numpy(), x @ weight.T + bias, rtol=1e-4, atol=2e-4)
    dy = RANDOM.normal(size=out.shape)
    found = backward(out, tensor(dy.astype(np.float32)))
    np.testing.assert_allclose(found[put].numpy(), dy @ weight, rtol=1e-4, atol=2e-4)
    np.testing.assert_allclose(found[shift].numpy(), dy.reshape(-1, 9).sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ops.quantized_linear(put, packed).numpy(), x @ weight.T, rtol=1e-4, atol=2e-4)


def test_gradients_are_central_differences(backend: OpenBackend, differences: Any) -> None:
    packed, weight = packed_of(RANDOM.normal(size=(4, 33)))
    x, bias, dy = RANDOM.normal(size=(3, 33)), RANDOM.normal(size=4), RANDOM.normal(size=(3, 4))
    put, shift = tensor(x, requires_grad=True), tensor(bias, requires_grad=True)
    found = backward(ops.quantized_linear(put, packed, shift), tensor(dy))
    for i, leaf in enumerate((put, shift)):
        want = differences(lambda x, b: x @ weight.T + b, (x, bias), dy, i)
        np.testing.assert_allclose(found[leaf].numpy(), want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_it_computes_in_the_dtype_of_x(backend: OpenBackend, dtype: Any) -> None:
    if dtype not in backend.tools.storage.device().dtypes:
        pytest.skip(f"{backend.spec} has no {dtype}")
    packed, weight = packed_of(RANDOM.normal(size=(8, 64)))
    host = RANDOM.normal(size=(3, 64)).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).astype(np.float64)
    x = tensor(host, dtype=dtype, requires_grad=True)
    out = ops.quantized_linear(x, packed)
    found = backward(out, tensor(np.ones((3, 8)), dtype=dtype))[x]
    assert (out.dtype, found.dtype) == (dtype, dtype)
    close = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(out.numpy(), host @ weight.T, rtol=close, atol=10 * close)
    np.testing.assert_allclose(found.numpy(), np.ones((3, 8)) @ weight, rtol=close, atol=10 * close)


def test_only_what_wants_a_gradient_gets_one(case: Any) -> None:
    packed, weight = case
    x, bias = tensor(np.ones((2, 35), np.float32)), Parameter(np.zeros(9, np.float32))
    out = ops.quantized_linear(x, packed, bias)
    assert backward(out.sum())[bias].numpy().tolist() == [2.0] * 9
    bias.trainable = False
    assert not ops.quantized_linear(x, packed, bias).requires_grad
    assert not ops.quantized_linear(x, packed).requires_grad
    learning = tensor(np.ones((2, 35), np.float32), requires_grad=True)
    found = backward(ops.quantized_linear(learning, packed, bias).sum())
    np.testing.assert_allclose(found[learning].numpy(), np.tile(weight.sum(0), (2, 1)), rtol=1e-4, atol=1e-4)
    with no_grad():
        silent = ops.quantized_linear(learning, packed, bias)
    assert not silent.requires_grad
    assert silent.numpy().tobytes() == ops.quantized_linear(x, packed, bias).numpy().tobytes()


def test_a_bias_that_changed_since_is_noticed(case: Any) -> None:
    bias = Parameter(np.zeros(9, np.float32))
    out = ops.quantized_linear(tensor(np.ones((2, 35), np.float32)), case[0], bias).sum()
    bias.assign(tensor(np.ones(9, np.float32)).value)
    with pytest.raises(StaleGraph):
        backward(out)


def test_checkpointing_gives_the_same_bits(case: Any) -> None:
    x = tensor(RANDOM.normal(size=(4, 35)).astype(np.float32), requires_grad=True)

    def fn(x: Tensor) -> Tensor:
        return ops.gelu(ops.quantized_linear(x, case[0]))

    plain, again = (backward(out.sum())[x].numpy().tobytes() for out in (fn(x), checkpoint(fn, x)))
    assert plain == again


def saved_bytes(out: Tensor) -> int:
    """Bytes of every array that the graph behind `out` keeps for backward."""
    total, seen = 0, set()
    stack: list[Any] = [out.node]
    while stack:
        each = stack.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            total += each.nbytes
        elif isinstance(each, Node):
            stack += [each.vjp, *each.parents]
        elif isinstance(each, FunctionType):
            stack += [cell.cell_contents for cell in each.__closure__ or ()]
        elif isinstance(each, functools.partial):
            stack += [each.func, *each.args, *each.keywords.values()]
        elif isinstance(each, Packed):
            stack += [each.codes, each.scales, each.group_scales, each.offset]
        elif isinstance(each, Tensor):
            stack += [each.value, each.node]
        elif isinstance(each, (tuple, list)):
            stack += each
    return total


def test_the_graph_keeps_the_packed_weight_and_nothing_else(backend: OpenBackend) -> None:
    weight = RANDOM.normal(size=(512, 512)).astype(np.float32)
    packed, _ = packed_of(weight, block=64)
    x = tensor(np.ones((2, 512), np.float32), requires_grad=True)
    own = packed.codes.numpy().nbytes + packed.scales.numpy().nbytes
    out = ops.quantized_linear(ops.quantized_linear(x, packed, tensor(np.ones(512, np.float32))), packed)
    assert own <= saved_bytes(out) <= own + 2 * x.numpy().nbytes
    assert saved_bytes(ops.linear(x, tensor(weight))) >= weight.nbytes  # the measure sees a weight that is kept


def test_training_through_a_frozen_weight_holds_no_float_copy_of_it(plain: OpenBackend) -> None:
    """Four layers: their float weights would be 16 MB; between forward and backward a part of one is too much."""
    packed, _ = packed_of(RANDOM.normal(size=(1024, 1024)).astype(np.float32), block=64)
    x = tensor(np.ones((2, 1024), np.float32), requires_grad=True)
    tracemalloc.start()
    try:
        out = x
        for _ in range(4):
            out = ops.quantized_linear(out, packed)
        kept, _ = tracemalloc.get_traced_memory()
        backward(out.sum())
    finally:
        tracemalloc.stop()
    assert kept < 100_000


@pytest.mark.parametrize("scales", [*(pytest.param(each, marks=pytest.mark.slow) for each in SCALES[:2]), SCALES[2]])
def test_a_captured_step_is_the_same_map(scales: str) -> None:
    with use_backend("tpu:cpu"):
        packed, _ = packed_of(RANDOM.normal(size=(9, 35)), scales=scales)
        packed_scales = packed.scale_code
        x = tensor(RANDOM.normal(size=(4, 35)).astype(np.float32), requires_grad=True)
        bias = tensor(RANDOM.normal(size=9).astype(np.float32), requires_grad=True)

        def step(x: Tensor, bias: Tensor, packed: list[Any]) -> tuple[Tensor, ...]:
            codes, levels, group_scales, offset = packed
            weight = Packed(codes, levels, group_scales, offset, (9, 35), 32, packed_scales)
            out = ops.quantized_linear(x, weight, bias)
            found = backward((out * out).sum())
            return out, found[x], found[bias]

        arrays = [packed.codes, packed.scales, packed.group_scales, packed.offset]
        run = capture(step)
        first, again, want = (f(x, bias, arrays) for f in (run, run, step))
        assert run.compiles == 1
        for one, two, eager in zip(first, again, want, strict=True):
            assert one.numpy().tobytes() == two.numpy().tobytes()
            np.testing.assert_allclose(one.numpy(), eager.numpy(), rtol=1e-4, atol=1e-4)


def test_x_and_bias_that_do_not_fit_are_refused(case: Any) -> None:
    packed = case[0]
    x = tensor(np.ones((2, 35), np.float32))
    inputs: list[tuple[int, ...]] = [(2, 36), (35, 2), ()]
    biases: list[tuple[int, ...]] = [(8,), (1, 9), ()]
    for shape in inputs:
        with pytest.raises(ShapeError, match=r"got x \(.*packed weight \(9, 35\); wanted x \(..., I\)"):
            ops.quantized_linear(tensor(np.ones(shape, np.float32)), packed)
    for shape in biases:
        with pytest.raises(ShapeError, match=r"got bias \(.*wanted \(9,\)"):
            ops.quantized_linear(x, packed, tensor(np.ones(shape, np.float32)))
    with pytest.raises(DTypeError, match="got dtypes float32 and int32"):
        ops.quantized_linear(x, packed, tensor(np.ones(9, np.int32)))
    with pytest.raises(DTypeError, match="quantized_linear got dtype int32"):
        ops.quantized_linear(tensor(np.ones((2, 35), np.int32)), packed)
    with pytest.raises(DTypeError, match="got ndarray; wanted a Tensor"):
        ops.quantized_linear(np.ones((2, 35)), packed)  # type: ignore[arg-type]


def test_other_weights_are_refused(case: Any) -> None:
    x = tensor(np.ones((2, 35), np.float32))
    for weight in (x, None, np.ones((9, 35))):
        with pytest.raises(DTypeError, match=r"for the packed weight; wanted a turret.spi.Packed of tensors"):
            ops.quantized_linear(x, weight)  # type: ignore[arg-type]


def test_weights_of_another_rank_are_refused(backend: OpenBackend) -> None:
    packed, _ = packed_of(RANDOM.normal(size=(3, 3, 35)))
    with pytest.raises(ShapeError, match=r"packed weight \(3, 3, 35\); wanted .*weight \(O, I\)"):
        ops.quantized_linear(tensor(np.ones((2, 35), np.float32)), packed)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"block": 48}, ConfigError, "blocks of 48; wanted one of 32, 64"),
        ({"block": 64.0}, ConfigError, "blocks of 64.0"),
        ({"block": 64}, ShapeError, r"got scales uint8 \(10,\); wanted a Tensor of uint8 \(5,\)"),
        ({"shape": (9, 37)}, ShapeError, r"got codes uint8 \(158,\); wanted a Tensor of uint8 \(167,\)"),
        ({"shape": (9, 0)}, ShapeError, r"got shape \(9, 0\); wanted 1 to 8 whole numbers above 0"),
        ({"shape": (1,) * 7 + (9, 35)}, ShapeError, "wanted 1 to 8 whole numbers"),
        ({"shape": (2**32, 2**31)}, ShapeError, r"product is below 2\^63"),
        ({"shape": (10**5000,)}, ShapeError, r"got shape tuple \(a number of too many digits\)"),
        ({"shape": (10**4000, 10**4000)}, ShapeError, r"got shape \(10{78}; wanted"),
        ({"shape": None}, ShapeError, "got shape None"),
        ({"block": 10**5000}, ConfigError, r"blocks of int \(a number of too many digits\)"),
        ({"scale_code": "float32"}, DTypeError, r"got scales uint8 \(10,\); wanted a Tensor of float32 \(10,\)"),
        ({"scale_code": "exact"}, ConfigError, "scales 'exact'; wanted one of float32, dynamic, linear"),
        ({"offset": None}, DTypeError, r"got offset NoneType; wanted a Tensor of float32 \(\)"),
        ({"group_scales": 1.0}, DTypeError, r"got group_scales float; wanted a Tensor of float32 \(1,\)"),
    ],
)
def test_a_packed_weight_that_contradicts_itself_is_refused(
    case: Any, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    names = ("codes", "scales", "group_scales", "offset", "shape", "block", "scale_code")
    given = {**{name: getattr(case[0], name) for name in names}, **fields}
    with pytest.raises(error, match=message):
        ops.quantized_linear(tensor(np.ones((2, 35), np.float32)), Packed(**given))


def test_sizes_past_32_bits_are_counted(backend: OpenBackend) -> None:
    layout = packed_layout((2**17, 2**17 + 1), 64, "dynamic")
    count = 2**34 + 2**17
    assert {name: shape for name, (_, shape) in layout.items()} == {
        "codes": (count // 2,),
        "scales": (count // 64,),
        "group_scales": (count // 2**14,),
        "offset": (),
    }


def test_two_backends_are_refused(case: Any, backend: OpenBackend, make_backend: Callable[[], OpenBackend]) -> None:
    other = make_backend()
    with pytest.raises(BackendMismatch, match=r"quantized_linear got operands on plain, .*wanted one backend"):
        ops.quantized_linear(tensor(np.ones((2, 35), np.float32), backend=other), case[0])


def test_backends_agree() -> None:
    weight, x = RANDOM.normal(size=(33, 70)), RANDOM.normal(size=(5, 70)).astype(np.float32)
    found = []
    for spec in ("cpu", "minimal", "metal:cpu", "tpu:cpu"):
        with use_backend(open_backend(spec)):
            found.append(ops.quantized_linear(tensor(x), packed_of(weight)[0]).numpy())
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], rtol=1e-4, atol=2e-4)
