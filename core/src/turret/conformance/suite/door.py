"""Cases of core's door: what operations refuse on tensors of the backend, and that a refusal changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from turret.spi import DTYPES, FLOATS, BackendMismatch, ConfigError, DType, DTypeError, ShapeError, TurretError
from turret.tensor import Tensor, ops, tensor

from ..bench import Bench
from ..case import Case
from ..given import Given
from ..instrument import uncounted
from .door_state import refused, state_cases


class Desk:
    """Tensors of the examined backend, made without a call that is counted; all must stay bit-equal."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.other = uncounted(bench.opened)

    def of(self, dtype: DType, *shape: int) -> Tensor:
        """Normal numbers; 0 and 1 where they are whole."""
        draw, size = self.bench.draw, math.prod(shape)
        flat = draw.normal(size, dtype=dtype) if dtype in FLOATS else draw.integers(size, low=0, high=2, dtype=dtype)
        given = Given(flat.host.reshape(shape), dtype)
        return Tensor(self.bench.put(given), self.bench.opened, dtype)

    def f(self, *shape: int) -> Tensor:
        return self.of("float32", *shape)

    def i(self, *shape: int) -> Tensor:
        return self.of("int32", *shape)

    def b(self, *shape: int) -> Tensor:
        return self.of("bool", *shape)

    def foreign(self, x: Tensor) -> Tensor:
        """The same array, held by a second backend over the same library."""
        return Tensor(x.value, self.other, x.dtype)


Violation = Callable[[Desk], object]

WRONG_SHAPES: dict[str, Violation] = {
    "add/unequal": lambda d: d.f(2, 3) + d.f(2, 4),
    "subtract/aligned-left": lambda d: d.f(2, 3) - d.f(2),
    "multiply/unequal": lambda d: d.f(3) * d.f(2),
    "divide/unequal": lambda d: d.f(3) / d.f(2),
    "add/empty-beside-two": lambda d: d.f(0, 3) + d.f(2, 3),
    "maximum/unequal": lambda d: ops.maximum(d.f(3), d.f(2)),
    "minimum/unequal": lambda d: ops.minimum(d.f(3), d.f(2)),
    "equal/unequal": lambda d: ops.equal(d.f(3), d.f(2)),
    "less/unequal": lambda d: ops.less(d.f(3), d.f(2)),
    "less_equal/unequal": lambda d: ops.less_equal(d.f(3), d.f(2)),
    "logical_and/unequal": lambda d: ops.logical_and(d.b(3), d.b(2)),
    "where/condition": lambda d: ops.where(d.b(3), d.f(2), d.f(2)),
    "where/operands": lambda d: ops.where(d.b(3), d.f(3), d.f(2)),
    "sum/axis": lambda d: d.f(2, 3).sum(2),
    "sum/axis-twice": lambda d: d.f(2, 3).sum((1, -1)),
    "mean/axis": lambda d: d.f(2, 3).mean(-3),
    "max/axis": lambda d: d.f(2, 3).max(5),
    "max/empty": lambda d: d.f(2, 0).max(1),
    "argmax/axis": lambda d: ops.argmax(d.f(2, 3), 2),
    "argmax/empty": lambda d: ops.argmax(d.f(2, 0)),
    "reshape/size": lambda d: d.f(2, 3).reshape(4, 2),
    "reshape/two-unknown": lambda d: d.f(2, 3).reshape(-1, -1),
    "reshape/no-divisor": lambda d: d.f(2, 3).reshape(4, -1),
    "reshape/negative": lambda d: d.f(2, 3).reshape(-2, -3),
    "transpose/twice": lambda d: d.f(2, 3).transpose(0, 0),
    "transpose/outside": lambda d: d.f(2, 3).transpose(0, 2),
    "slice/past-the-end": lambda d: ops.slice(d.f(4), (1,), (5,)),
    "slice/backwards": lambda d: ops.slice(d.f(4), (3,), (1,)),
    "slice/step": lambda d: ops.slice(d.f(4), (0,), (4,), step=(0,)),
    "slice/axes": lambda d: ops.slice(d.f(4, 4), (0,), (4,)),
    "index/outside": lambda d: d.f(2, 3)[2],
    "index/rank": lambda d: d.f(2, 3)[0, 0, 0],
    "index/rank-0": lambda d: d.f()[0],
    "concatenate/unequal": lambda d: ops.concatenate([d.f(2, 3), d.f(3, 3)], 1),
    "concatenate/axis": lambda d: ops.concatenate([d.f(2, 3)], 2),
    "concatenate/nothing": lambda d: ops.concatenate([], 0),
    "pad/pairs": lambda d: ops.pad(d.f(2, 3), [(1, 1)]),
    "pad/negative": lambda d: ops.pad(d.f(2), [(-1, 1)]),
    "broadcast_to/unequal": lambda d: ops.broadcast_to(d.f(2, 3), (2, 4)),
    "broadcast_to/smaller": lambda d: ops.broadcast_to(d.f(2, 3), (1, 3)),
    "gather_rows/rank-0": lambda d: ops.gather_rows(d.f(), d.i(2)),
    "gather_last/unequal": lambda d: ops.gather_last(d.f(2, 3), d.i(3)),
    "matmul/inner": lambda d: d.f(2, 3) @ d.f(4, 2),
    "matmul/rank": lambda d: d.f(2, 3) @ d.f(3),
    "matmul/batch": lambda d: d.f(2, 3, 4) @ d.f(3, 4, 3),
    "matmul/transposed": lambda d: ops.matmul(d.f(2, 3), d.f(4, 5), transpose_a=True),
    "linear/inner": lambda d: ops.linear(d.f(2, 3), d.f(4, 2)),
    "linear/bias": lambda d: ops.linear(d.f(2, 3), d.f(4, 3), d.f(3)),
    "linears/inner": lambda d: ops.linears(d.f(2, 3), (d.f(4, 3), None), (d.f(4, 2), None)),
    "linears/some-bias": lambda d: ops.linears(d.f(2, 3), (d.f(4, 3), d.f(4)), (d.f(4, 3), None)),
    "softmax/rank-0": lambda d: ops.softmax(d.f()),
    "log_softmax/empty": lambda d: ops.log_softmax(d.f(2, 0)),
    "gated_silu/unequal": lambda d: ops.gated_silu(d.f(2, 3), d.f(3)),
    "layer_norm/weight": lambda d: ops.layer_norm(d.f(2, 3), d.f(2), d.f(3)),
    "layer_norm/bias": lambda d: ops.layer_norm(d.f(2, 3), d.f(3), d.f(1)),
    "layer_norm/empty": lambda d: ops.layer_norm(d.f(2, 0), d.f(0), d.f(0)),
    "rms_norm/weight": lambda d: ops.rms_norm(d.f(2, 3), d.f(3, 1)),
    "cross_entropy/targets": lambda d: ops.cross_entropy(d.f(2, 3), d.i(3)),
    "cross_entropy/weights": lambda d: ops.cross_entropy(d.f(2, 3), d.i(2), d.f(3)),
    "cross_entropy/no-class": lambda d: ops.cross_entropy(d.f(2, 0), d.i(2)),
    "causal_attention/head-size": lambda d: _attend(d, (2, 3, 4, 5), (2, 3, 4, 6), (2, 3, 4, 6)),
    "causal_attention/heads": lambda d: _attend(d, (2, 3, 4, 5), (2, 3, 3, 5), (2, 3, 3, 5)),
    "causal_attention/no-key": lambda d: _attend(d, (2, 3, 4, 5), (2, 0, 4, 5), (2, 0, 4, 5)),
    "causal_attention/values": lambda d: _attend(d, (2, 3, 4, 5), (2, 3, 4, 5), (2, 4, 4, 5)),
    "flash_attention/batch": lambda d: ops.flash_attention(d.f(2, 3, 4, 5), d.f(1, 3, 4, 5), d.f(1, 3, 4, 5), scale=1),
    "rope/odd": lambda d: ops.rope(d.f(1, 2, 3, 5), d.f(2, 2), d.f(2, 2)),
    "rope/table": lambda d: ops.rope(d.f(1, 2, 3, 4), d.f(3, 2), d.f(3, 2)),
}  # fmt: skip

WRONG_OPTIONS: dict[str, Violation] = {
    "gelu/form": lambda d: ops.gelu(d.f(2), form="quick"),  # type: ignore[arg-type]
    "layer_norm/eps-0": lambda d: ops.layer_norm(d.f(3), d.f(3), d.f(3), eps=0.0),
    "rms_norm/eps-nan": lambda d: ops.rms_norm(d.f(3), d.f(3), eps=float("nan")),
    "causal_attention/offset": lambda d: ops.causal_attention(d.f(1, 2, 2, 4), d.f(1, 2, 2, 4), d.f(1, 2, 2, 4),
                                                              scale=1.0, offset=-1),
}  # fmt: skip

WRONG_DTYPES: dict[str, Violation] = {
    "add/float-with-integers": lambda d: d.i(2) + 0.5,
    "add/too-large-a-number": lambda d: d.i(2) + 2**32,
    "add/bools": lambda d: d.b(2) + d.b(2),
    "less/bools": lambda d: ops.less(d.b(2), d.b(2)),
    "negative/bools": lambda d: -d.b(2),
    "sum/bools": lambda d: d.b(2).sum(),
    "max/bytes": lambda d: d.of("uint8", 2).max(),
    "argmax/bools": lambda d: ops.argmax(d.b(2)),
    "logical_and/floats": lambda d: ops.logical_and(d.f(2), d.f(2)),
    "where/condition": lambda d: ops.where(d.f(2), d.f(2), d.f(2)),
    "where/operands": lambda d: ops.where(d.b(2), d.f(2), d.i(2)),
    "where/two-numbers": lambda d: ops.where(d.b(2), 1.0, 2.0),
    "index/by-list": lambda d: d.f(2, 3)[[0, 1]],
    "index/by-bool": lambda d: d.f(2, 3)[True],
    "cross_entropy/weights": lambda d: ops.cross_entropy(d.f(2, 3), d.i(2), d.i(2)),
    "rope/integer-table": lambda d: ops.rope(d.f(1, 2, 3, 4), d.i(2, 2), d.i(2, 2)),
}

WRONG_BACKENDS: dict[str, Violation] = {
    "where-condition": lambda d: ops.where(d.foreign(d.b(2)), d.f(2), d.f(2)),
    "where-operand": lambda d: ops.where(d.b(2), d.f(2), d.foreign(d.f(2))),
    "logical_and": lambda d: ops.logical_and(d.b(2), d.foreign(d.b(2))),
    "linear-bias": lambda d: ops.linear(d.f(2, 3), d.f(4, 3), d.foreign(d.f(4))),
    "rope-table": lambda d: ops.rope(d.f(1, 2, 3, 4), d.f(2, 2), d.foreign(d.f(2, 2))),
    "cross_entropy-weights": lambda d: ops.cross_entropy(d.f(2, 3), d.i(2), d.foreign(d.f(2))),
}

FLOATS_ONLY: dict[str, Callable[[Tensor], object]] = {
    **{n: getattr(ops, n) for n in ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "isfinite", "mean")},
    **{n: getattr(ops, n) for n in ("softmax", "log_softmax", "gelu", "silu")},
    "divide": lambda x: ops.divide(x, x),
    "gated_silu": lambda x: ops.gated_silu(x, x),
    "matmul": lambda x: ops.matmul(x, x),
    "linear": lambda x: ops.linear(x, x),
    "linears": lambda x: ops.linears(x, (x, None)),
    "layer_norm": lambda x: ops.layer_norm(x, x, x),
    "rms_norm": lambda x: ops.rms_norm(x, x),
    "causal_attention": lambda x: ops.causal_attention(x, x, x, scale=1.0),
    "flash_attention": lambda x: ops.flash_attention(x, x, x, scale=1.0),
}
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "equal", "less", "less_equal")
TWO_OPERANDS: dict[str, Callable[[Tensor, Tensor], object]] = {
    **{n: getattr(ops, n) for n in (*BINARY, "matmul", "linear", "gated_silu", "rms_norm")},
    "layer_norm": lambda a, b: ops.layer_norm(a, a, b),
    "concatenate": lambda a, b: ops.concatenate([a, b], 0),
    "causal_attention": lambda a, b: ops.causal_attention(a, a, b, scale=1.0),
    "flash_attention": lambda a, b: ops.flash_attention(a, b, b, scale=1.0),
}
BY_INDEX: dict[str, Callable[[Tensor, Tensor], object]] = {
    "cross_entropy": lambda x, ids: ops.cross_entropy(x, ids),
    "gather_rows": ops.gather_rows,
    "gather_last": ops.gather_last,
}
NOT_TENSORS: dict[str, object] = {"array": np.ones((2, 2), np.float32), "list": [[1.0, 1.0]], "none": None}


def cases() -> Iterator[Case]:
    """Wrong shapes, options, dtypes and backends, one operation at a time, and what a refusal must leave alone."""
    for name, call in WRONG_SHAPES.items():
        yield _refused(f"door/shape/{name.replace('/', '-')}", call, ShapeError)
    for name, call in WRONG_OPTIONS.items():
        yield _refused(f"door/option/{name.replace('/', '-')}", call, ConfigError)
    for name, call in WRONG_DTYPES.items():
        yield _refused(f"door/dtype/{name.replace('/', '-')}", call, DTypeError)
    for name, call in WRONG_BACKENDS.items():
        yield _refused(f"door/backend/{name}", call, BackendMismatch)
    for name, one in FLOATS_ONLY.items():
        yield _door(f"door/dtype/{name}-of-no-floats", partial(_no_floats, call=one))
    for name, two in TWO_OPERANDS.items():
        yield _door(f"door/mixed-dtypes/{name}", partial(_mixed_dtypes, call=two))
        yield _door(f"door/backend/{name}", partial(_mixed_backends, call=two))
    for name, by_index in BY_INDEX.items():
        yield _door(f"door/indices/{name}", partial(_indices, call=by_index))
    for name, value in NOT_TENSORS.items():
        yield _door(f"door/host-value/{name}", partial(_host_value, value=value))
    yield _door("door/device-dtype/what-the-device-lacks", _lacking)
    yield from state_cases()


def _door(name: str, check: Callable[[Desk], None]) -> Case:
    return Case(id=name, body=lambda bench: check(Desk(bench)), kind="door")


def _refused(name: str, call: Violation, error: type[TurretError]) -> Case:
    return _door(name, lambda desk: refused(desk.bench, error, lambda: call(desk)))


def _attend(desk: Desk, *shapes: tuple[int, ...]) -> Tensor:
    q, k, v = (desk.f(*shape) for shape in shapes)
    return ops.causal_attention(q, k, v, scale=1.0)


def _no_floats(desk: Desk, call: Callable[[Tensor], object]) -> None:
    for dtype in ("int32", "uint8", "bool"):
        x = desk.of(dtype, 2, 2)
        refused(desk.bench, DTypeError, partial(call, x))


def _mixed_dtypes(desk: Desk, call: Callable[[Tensor, Tensor], object]) -> None:
    narrow = [d for d in ("float16", "bfloat16", "float64") if d in desk.bench.device.dtypes]
    for dtype in ("int32", *narrow):
        a, b = desk.f(2, 2), desk.of(dtype, 2, 2)  # type: ignore[arg-type]
        for pair in ((a, b), (b, a)):
            refused(desk.bench, DTypeError, partial(call, *pair))


def _mixed_backends(desk: Desk, call: Callable[[Tensor, Tensor], object]) -> None:
    a = desk.f(2, 2)
    b = desk.foreign(a)
    for pair in ((a, b), (b, a)):
        refused(desk.bench, BackendMismatch, partial(call, *pair))


def _indices(desk: Desk, call: Callable[[Tensor, Tensor], object]) -> None:
    x, bench = desk.f(2, 3), desk.bench
    wide: list[DType] = ["int64"] if "int64" in bench.device.dtypes else []
    for dtype in ("float32", "uint8", "bool", *wide):
        ids = desk.of(dtype, 2)
        refused(bench, DTypeError, partial(call, x, ids))
    foreign = desk.foreign(desk.i(2))
    refused(bench, BackendMismatch, partial(call, x, foreign))


def _host_value(desk: Desk, value: Any) -> None:
    x = desk.f(2, 2)
    for name in BINARY:
        for pair in ((x, value), (value, x)):
            refused(desk.bench, DTypeError, partial(getattr(ops, name), *pair))
    for call in FLOATS_ONLY.values():
        refused(desk.bench, DTypeError, partial(call, value))
    for two in TWO_OPERANDS.values():
        refused(desk.bench, DTypeError, partial(two, value, value))


def _lacking(desk: Desk) -> None:
    """Here the plugin itself has to refuse: only it knows its device."""
    bench = desk.bench
    lacking = [dtype for dtype in DTYPES if dtype not in bench.device.dtypes]
    if not lacking:
        bench.skip("the device has every dtype there is")
    x = desk.f(2, 2)
    for dtype in lacking:
        bench.context = dtype
        bench.refuses(DTypeError, partial(x.cast, dtype))
        bench.refuses(DTypeError, partial(tensor, [[1.0]], dtype=dtype))
        bench.refuses(DTypeError, partial(bench.tools.storage.full, (2,), 1.0, dtype=dtype))
