"""The calls that are timed: those of one training step of a small decoder, and of serving it.

Sizes: B 8, T 128, D 256, H 8, d 32, F 1024, V 512, L 4. `per_step` says how often a training step makes the call; calls
that it does not make count 0 there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turret.spi import Host, Toolset

B, T, D, H, HEAD, F, V, BLOCKS = 8, 128, 256, 8, 32, 1024, 512, 4
N = B * T
FLOAT_BYTES = 4
RNG_SEED = 7

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One timed call. flops and bytes: the least that any implementation has to do and to move."""

    name: str
    slot: str
    flops: float
    bytes: float
    per_step: int
    make: Callable[[Toolset[Any], Callable[..., Any]], Run]


def workloads() -> Iterator[Workload]:
    """All of them, slot by slot in the order of the interface."""
    yield from _required()
    yield from _layers()
    yield from _linear()
    yield from _attention()
    yield from _quantized()
    yield _adam()


def putter(tools: Toolset[Any]) -> Callable[..., Any]:
    """(shape) to normal float32 values on the device; (array) to that array."""
    rng = np.random.default_rng(RNG_SEED)

    def put(*shape: int, values: Host | None = None) -> Any:
        return tools.storage.from_host(rng.standard_normal(shape).astype(np.float32) if values is None else values)

    return put


def _of(
    name: str,
    slot: str,
    shapes: Sequence[tuple[int, ...]],
    call: Callable[..., Any],
    *,
    flops: float,
    moved: float,
    per_step: int = 0,
) -> Workload:
    """A call over normal arrays of the given shapes; `moved` counts floats."""

    def make(tools: Toolset[Any], put: Callable[..., Any]) -> Run:
        arrays = [put(*shape) for shape in shapes]
        return lambda: call(getattr(tools, slot), *arrays)

    return Workload(name=name, slot=slot, flops=flops, bytes=moved * FLOAT_BYTES, per_step=per_step, make=make)


def _required() -> Iterator[Workload]:
    big = (1024, 1024)
    count = 1024.0 * 1024
    yield _of(
        "matmul/512x512x512",
        "matmul",
        [(512, 512), (512, 512)],
        lambda s, a, b: s.matmul(a, b),
        flops=2 * 512.0**3,
        moved=3 * 512.0**2,
    )
    yield _of("elementwise/add", "elementwise", [big, big], lambda s, a, b: s.add(a, b), flops=count, moved=3 * count)
    yield _of("elementwise/exp", "elementwise", [big], lambda s, a: s.exp(a), flops=10 * count, moved=2 * count)
    yield _of("reduction/sum-rows", "reduction", [big], lambda s, a: s.sum(a, axis=-1), flops=count, moved=count)
    yield _of(
        "layout/concatenate",
        "layout",
        [big, big],
        lambda s, a, b: s.concatenate([a, b], axis=0),
        flops=0,
        moved=4 * count,
    )

    def gather(tools: Toolset[Any], put: Callable[..., Any]) -> Run:
        table, ids = put(V, D), put(values=_tokens(N))
        return lambda: tools.indexing.gather_rows(table, ids)

    def scatter(tools: Toolset[Any], put: Callable[..., Any]) -> Run:
        base, ids, rows = put(V, D), put(values=_tokens(N)), put(N, D)
        return lambda: tools.indexing.scatter_add_rows(base, ids, rows)

    moved = 2.0 * N * D * FLOAT_BYTES
    yield Workload(name="indexing/gather-rows", slot="indexing", flops=0, bytes=moved, per_step=1, make=gather)
    yield Workload(
        name="indexing/scatter-add-rows", slot="indexing", flops=1.0 * N * D, bytes=moved, per_step=1, make=scatter
    )


def _layers() -> Iterator[Workload]:
    wide, narrow = float(N * F), float(N * D)
    norms = 2 * BLOCKS + 1
    yield _of(
        "activation/gelu",
        "activation",
        [(N, F)],
        lambda s, x: s.gelu(x, form="erf"),
        flops=15 * wide,
        moved=2 * wide,
        per_step=BLOCKS,
    )
    yield _of(
        "activation/gelu-vjp",
        "activation",
        [(N, F), (N, F)],
        lambda s, dy, x: s.gelu_vjp(dy, x, form="erf"),
        flops=25 * wide,
        moved=3 * wide,
        per_step=BLOCKS,
    )
    yield _of("softmax/softmax", "softmax", [(N, V)], lambda s, x: s.softmax(x), flops=15.0 * N * V, moved=2.0 * N * V)
    yield _of(
        "normalization/layer-norm",
        "normalization",
        [(N, D), (D,), (D,)],
        lambda s, x, w, b: s.layer_norm(x, w, b, eps=1e-5),
        flops=8 * narrow,
        moved=2 * narrow,
        per_step=norms,
    )

    def norm_vjp(tools: Toolset[Any], put: Callable[..., Any]) -> Run:
        dy, x, weight = put(N, D), put(N, D), put(D)
        normed = tools.normalization.layer_norm(x, weight, weight, eps=1e-5)
        return lambda: tools.normalization.layer_norm_vjp(dy, x, weight, normed.mean, normed.rstd)

    def loss(tools: Toolset[Any], put: Callable[..., Any]) -> Run:
        logits, targets = put(N, V), put(values=_tokens(N))
        return lambda: tools.loss.cross_entropy_grad(logits, targets, None, ignore=-1)

    def rope(tools: Toolset[Any], put: Callable[..., Any]) -> Run:
        x, cos, sin = put(B, T, H, HEAD), put(T, HEAD // 2), put(T, HEAD // 2)
        return lambda: tools.rope.rope(x, cos, sin, interleaved=False)

    yield Workload(
        name="normalization/layer-norm-vjp",
        slot="normalization",
        flops=14 * narrow,
        bytes=3 * narrow * FLOAT_BYTES,
        per_step=norms,
        make=norm_vjp,
    )
    yield Workload(
        name="loss/cross-entropy-grad",
        slot="loss",
        flops=18.0 * N * V,
        bytes=2.0 * N * V * FLOAT_BYTES,
        per_step=1,
        make=loss,
    )
    yield Workload(
        name="rope/rope", slot="rope", flops=6 * narrow, bytes=2 * narrow * FLOAT_BYTES, per_step=0, make=rope
    )


def _linear() -> Iterator[Workload]:
    for what, i, o, count in (
        ("joint-qkv", D, 3 * D, BLOCKS),
        ("output", D, D, BLOCKS),
        ("expand", D, F, BLOCKS),
        ("contract", F, D, BLOCKS),
        ("head", D, V, 1),
    ):
        flops, moved = 2.0 * N * i * o, 1.0 * N * (i + o) + i * o
        yield _of(
            f"linear/{what}",
            "linear",
            [(N, i), (o, i), (o,)],
            lambda s, x, w, b: s.linear(x, w, b),
            flops=flops,
            moved=moved,
            per_step=count,
        )
        yield _of(
            f"linear/{what}-vjp-input",
            "linear",
            [(N, o), (o, i)],
            lambda s, dy, w: s.linear_vjp_input(dy, w),
            flops=flops,
            moved=moved,
            per_step=count,
        )
        yield _of(
            f"linear/{what}-vjp-weight",
            "linear",
            [(N, o), (N, i)],
            lambda s, dy, x: s.linear_vjp_weight(dy, x),
            flops=flops,
            moved=moved,
            per_step=count,
        )


def _attention() -> Iterator[Workload]:
    heads, pairs = (B, T, H, HEAD), B * H * T * (T + 1) / 2.0
    scale, floats = HEAD**-0.5, float(N * D)
    yield _of(
        "causal-attention/attend",
        "causal_attention",
        [heads] * 3,
        lambda s, q, k, v: s.attend(q, k, v, scale=scale, offset=0),
        flops=pairs * (4 * HEAD + 10),
        moved=4 * floats + pairs,
        per_step=BLOCKS,
    )

    def causal_vjp(tools: Toolset[Any], put: Callable[..., Any]) -> Run:
        dy, q, k, v = (put(*heads) for _ in range(4))
        _, probabilities = tools.causal_attention.attend(q, k, v, scale=scale, offset=0)
        return lambda: tools.causal_attention.attend_vjp(dy, q, k, v, probabilities, scale=scale)

    yield Workload(
        name="causal-attention/attend-vjp",
        slot="causal_attention",
        flops=pairs * (8 * HEAD + 6),
        bytes=(7 * floats + pairs) * FLOAT_BYTES,
        per_step=BLOCKS,
        make=causal_vjp,
    )
    yield _of(
        "flash-attention/attend",
        "flash_attention",
        [heads] * 3,
        lambda s, q, k, v: s.attend(q, k, v, scale=scale, offset=0),
        flops=pairs * (4 * HEAD + 10),
        moved=4 * floats,
    )

    def paged(tools: Toolset[Any], put: Callable[..., Any]) -> Run:
        page, requests = 16, 8
        pages = T // page
        k, v, q = (
            put((requests * pages + 1) * page, H, HEAD),
            put((requests * pages + 1) * page, H, HEAD),
            put(requests, 1, H, HEAD),
        )
        table = put(values=(np.arange(requests * pages, dtype=np.int32) + 1).reshape(requests, pages))
        starts = put(values=np.full(requests, T - 1, np.int32))
        return lambda: tools.paged_attention.attend(q, k, v, table, starts, page=page, scale=scale)

    yield Workload(
        name="paged-attention/decode",
        slot="paged_attention",
        flops=8.0 * T * D * 4,
        bytes=8.0 * T * D * 2 * FLOAT_BYTES,
        per_step=0,
        make=paged,
    )


def _quantized() -> Iterator[Workload]:
    def packed(rows: int) -> Callable[[Toolset[Any], Callable[..., Any]], Run]:
        def make(tools: Toolset[Any], put: Callable[..., Any]) -> Run:
            x, weight = put(rows, F), tools.quantized_linear.pack(put(F, F), block=64, scales="float32")
            return lambda: tools.quantized_linear.linear(x, weight, None)

        return make

    for rows in (1, 256):
        moved = F * F * 0.5625 + 2.0 * rows * F * FLOAT_BYTES
        yield Workload(
            name=f"quantized-linear/batch-{rows}",
            slot="quantized_linear",
            flops=2.0 * rows * F * F,
            bytes=moved,
            per_step=0,
            make=packed(rows),
        )


def _adam() -> Workload:
    shapes = [(V, D), (T, D), *[(3 * D, D), (D, D), (F, D), (D, F), (D,), (D,)] * BLOCKS]
    floats = float(sum(int(np.prod(shape)) for shape in shapes))

    def make(tools: Toolset[Any], put: Callable[..., Any]) -> Run:
        params, grads, first = ([put(*shape) for shape in shapes] for _ in range(3))
        second = [put(values=np.ones(shape, np.float32)) for shape in shapes]
        lr, one, two = (put(values=np.array(x, np.float32)) for x in (1e-3, 0.1, 0.001))
        decay = [0.0] * len(shapes)
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
            decay=decay,
            max_norm=1.0,
            donate=False,
        )

    return Workload(
        name="adam/update", slot="adam", flops=15 * floats, bytes=7 * floats * FLOAT_BYTES, per_step=1, make=make
    )


def _tokens(count: int) -> Host:
    return np.random.default_rng(RNG_SEED).integers(0, V, count).astype(np.int32)
