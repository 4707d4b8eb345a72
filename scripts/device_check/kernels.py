"""The calls that are timed, large enough that neither caches nor the launching host decide what they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from turret.spi import DType, Host, Toolset

Call = Callable[[], Any]
Make = Callable[["Toolset[Any]", "Put"], Call]
RNG_SEED = 7
PATTERN = 1 << 18
"""Random values that are repeated: drawing as many as a large array holds would take longer than the measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """rows x width: the wide arrays; vocabulary x width: tables; (batch, length, heads, head): attention."""

    rows: int
    width: int
    vocabulary: int
    batch: int
    length: int
    heads: int
    head: int
    tensors: int


LARGE = Sizes(rows=1 << 16, width=1024, vocabulary=1 << 15, batch=8, length=1024, heads=12, head=64, tensors=16)
MEDIUM = Sizes(rows=1 << 14, width=1024, vocabulary=1 << 13, batch=4, length=1024, heads=12, head=64, tensors=4)
TINY = Sizes(rows=64, width=64, vocabulary=96, batch=2, length=16, heads=2, head=8, tensors=2)
ROOM = 12 << 30
"""Bytes of device memory for the large sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One timed call. flops and bytes: the least that any implementation has to do and to move."""

    name: str
    slot: str
    dtype: DType
    flops: float
    bytes: float
    make: Make


class Put:
    """Arrays on the device, of normal values in one dtype."""

    def __init__(self, tools: Toolset[Any], dtype: DType) -> None:
        self._storage, self.dtype = tools.storage, dtype
        self._pattern = np.random.default_rng(RNG_SEED).standard_normal(PATTERN).astype(np.float32)

    def __call__(self, *shape: int, dtype: DType | None = None) -> Any:
        values = np.resize(self._pattern, shape)
        return self._storage.from_host(values, dtype=dtype or self.dtype)

    def ids(self, below: int, count: int) -> Any:
        """int32 row numbers."""
        return self.host(np.random.default_rng(RNG_SEED).integers(0, below, count).astype(np.int32))

    def host(self, values: Host) -> Any:
        return self._storage.from_host(values)


def kernels(s: Sizes, dtype: DType) -> Iterator[Kernel]:
    """Forward and backward of every layer, the loss, rows of tables and the update."""
    item = {"float32": 4, "bfloat16": 2}[dtype]
    n, d, v = s.rows, s.width, s.vocabulary
    wide = float(n * d)

    def plain(
        name: str, slot: str, shapes: Sequence[tuple[int, ...]], call: Callable[..., Any], flops: float, floats: float
    ) -> Kernel:
        def make(tools: Toolset[Any], put: Put) -> Call:
            arrays = [put(*shape) for shape in shapes]
            return lambda: call(getattr(tools, slot), *arrays)

        size = "x".join(map(str, shapes[0]))
        return Kernel(name=f"{name} {size}", slot=slot, dtype=dtype, flops=flops, bytes=floats * item, make=make)

    row, big = (d,), (n, d)
    yield plain(
        "layer_norm",
        "normalization",
        [big, row, row],
        lambda t, x, w, b: t.layer_norm(x, w, b, eps=1e-5),
        8 * wide,
        2 * wide,
    )
    yield Kernel(
        name=f"layer_norm_vjp {n}x{d}",
        slot="normalization",
        dtype=dtype,
        flops=14 * wide,
        bytes=3 * wide * item,
        make=lambda tools, put: _norm_vjp(tools, put, s),
    )
    yield plain("softmax", "softmax", [big], lambda t, x: t.softmax(x), 15 * wide, 2 * wide)
    yield Kernel(
        name=f"cross_entropy_grad {n * d // v}x{v}",
        slot="loss",
        dtype=dtype,
        flops=18 * wide,
        bytes=2.0 * (n * d // v) * v * item,
        make=lambda tools, put: _loss(tools, put, s),
    )
    yield plain("gelu", "activation", [big], lambda t, x: t.gelu(x, form="erf"), 15 * wide, 2 * wide)
    yield plain(
        "gelu_vjp", "activation", [big, big], lambda t, dy, x: t.gelu_vjp(dy, x, form="erf"), 25 * wide, 3 * wide
    )
    yield plain("gated_silu", "activation", [big, big], lambda t, g, u: t.gated_silu(g, u), 10 * wide, 3 * wide)
    yield plain(
        "gated_silu_vjp",
        "activation",
        [big, big, big],
        lambda t, dy, g, u: t.gated_silu_vjp(dy, g, u),
        20 * wide,
        5 * wide,
    )
    yield Kernel(
        name=f"rope {s.batch}x{n // s.batch}x{d // s.head}x{s.head}",
        slot="rope",
        dtype=dtype,
        flops=3 * wide,
        bytes=2 * wide * item,
        make=lambda tools, put: _rope(tools, put, s),
    )
    yield from _rows(s, dtype, item)
    yield from _attention(s, dtype, item)
    rows = max(16, n // 8)
    flops, floats = 2.0 * rows * d * 4 * d, 1.0 * rows * 5 * d + 4 * d * d
    yield plain(
        "linear", "linear", [(rows, d), (4 * d, d), (4 * d,)], lambda t, x, w, b: t.linear(x, w, b), flops, floats
    )
    yield plain(
        "linear_vjp_input",
        "linear",
        [(rows, 4 * d), (4 * d, d)],
        lambda t, dy, w: t.linear_vjp_input(dy, w),
        flops,
        floats,
    )
    yield plain(
        "linear_vjp_weight",
        "linear",
        [(rows, 4 * d), (rows, d)],
        lambda t, dy, x: t.linear_vjp_weight(dy, x),
        flops,
        floats,
    )
    if dtype == "float32":
        yield _adam(s)


def _norm_vjp(tools: Toolset[Any], put: Put, s: Sizes) -> Call:
    dy, x, weight = put(s.rows, s.width), put(s.rows, s.width), put(s.width)
    normed = tools.normalization.layer_norm(x, weight, weight, eps=1e-5)
    return lambda: tools.normalization.layer_norm_vjp(dy, x, weight, normed.mean, normed.rstd)


def _loss(tools: Toolset[Any], put: Put, s: Sizes) -> Call:
    rows = s.rows * s.width // s.vocabulary
    logits, targets = put(rows, s.vocabulary), put.ids(s.vocabulary, rows)
    return lambda: tools.loss.cross_entropy_grad(logits, targets, None, ignore=-1)


def _rope(tools: Toolset[Any], put: Put, s: Sizes) -> Call:
    length = s.rows // s.batch
    x = put(s.batch, length, s.width // s.head, s.head)
    cos, sin = (put(length, s.head // 2, dtype="float32") for _ in range(2))
    return lambda: tools.rope.rope(x, cos, sin, interleaved=False)


def _rows(s: Sizes, dtype: DType, item: int) -> Iterator[Kernel]:
    n, d, v = s.rows, s.width, s.vocabulary
    wide, ids = float(n * d), 4.0 * n

    def gather(tools: Toolset[Any], put: Put) -> Call:
        table, rows = put(v, d), put.ids(v, n)
        return lambda: tools.indexing.gather_rows(table, rows)

    def scatter(tools: Toolset[Any], put: Put) -> Call:
        base, numbers, rows = put(v, d), put.ids(v, n), put(n, d)
        return lambda: tools.indexing.scatter_add_rows(base, numbers, rows)

    # every row of the table is read once at least, whichever of them are asked for again
    touched = min(wide, float(v * d))
    yield Kernel(
        name=f"gather_rows {v}x{d} by {n}",
        slot="indexing",
        dtype=dtype,
        flops=0.0,
        bytes=(touched + wide) * item + ids,
        make=gather,
    )
    yield Kernel(
        name=f"scatter_add_rows {v}x{d} by {n}",
        slot="indexing",
        dtype=dtype,
        flops=wide,
        bytes=(2.0 * v * d + wide) * item + ids,
        make=scatter,
    )


def _attention(s: Sizes, dtype: DType, item: int) -> Iterator[Kernel]:
    shape = (s.batch, s.length, s.heads, s.head)
    floats, pairs = float(math.prod(shape)), s.batch * s.heads * s.length * (s.length + 1) / 2.0
    whole = 4.0 * s.batch * s.heads * s.length * s.length  # probabilities are float32, zeros included
    scale, size = s.head**-0.5, "x".join(map(str, shape))

    def attend(tools: Toolset[Any], put: Put) -> Call:
        q, k, v = (put(*shape) for _ in range(3))
        return lambda: tools.causal_attention.attend(q, k, v, scale=scale, offset=0)

    def vjp(tools: Toolset[Any], put: Put) -> Call:
        dy, q, k, v = (put(*shape) for _ in range(4))
        _, probabilities = tools.causal_attention.attend(q, k, v, scale=scale, offset=0)
        return lambda: tools.causal_attention.attend_vjp(dy, q, k, v, probabilities, scale=scale)

    yield Kernel(
        name=f"attend {size}",
        slot="causal_attention",
        dtype=dtype,
        flops=pairs * (4 * s.head + 10),
        bytes=4 * floats * item + whole,
        make=attend,
    )
    yield Kernel(
        name=f"attend_vjp {size}",
        slot="causal_attention",
        dtype=dtype,
        flops=pairs * (8 * s.head + 6),
        bytes=7 * floats * item + 4 * pairs,
        make=vjp,
    )


def _adam(s: Sizes) -> Kernel:
    shape = (s.rows * s.width // s.tensors // 64, 64)
    floats = float(math.prod(shape) * s.tensors)

    def make(tools: Toolset[Any], put: Put) -> Call:
        params, grads, first = ([put(*shape) for _ in range(s.tensors)] for _ in range(3))
        second = [put.host(np.ones(shape, np.float32)) for _ in range(s.tensors)]
        lr, one, two = (put.host(np.array(x, np.float32)) for x in (1e-3, 0.1, 0.001))
        return lambda: tools.adam.update(
            params,
            grads,
            first,
            second,
            lr=lr,
            correction1=one,
            correction2=two,
            betas=(0.9, 0.999),
            eps=1e-8,
            decay=[0.0] * s.tensors,
            max_norm=1.0,
            donate=False,
        )

    return Kernel(
        name=f"adam {s.tensors} of {shape[0] * shape[1]}",
        slot="adam",
        dtype="float32",
        flops=15 * floats,
        bytes=7 * floats * 4,
        make=make,
    )
