"""Matrix products and the affine map of layers."""

from __future__ import annotations

from turret.spi import Layout, ShapeError

from ..graph import Native
from ..value import Tensor, record, record_many, same_floats


def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """op(a) @ op(b) over the last two axes, where op swaps them if its flag is set.

    a: (..., M, N), b: (..., N, P) after op; equal rank >= 2 and equal leading axes; returns (..., M, P).
    """
    backend = same_floats("matmul", a, b)
    sa, sb = a.shape, b.shape
    if len(sa) != len(sb) or len(sa) < 2 or sa[:-2] != sb[:-2]:
        raise ShapeError(f"matmul got shapes {sa} and {sb}; wanted equal rank >= 2 and equal leading axes")
    inner_a, inner_b = sa[-2 if transpose_a else -1], sb[-1 if transpose_b else -2]
    if inner_a != inner_b:
        raise ShapeError(
            f"matmul got shapes {sa}{' transposed' if transpose_a else ''} and {sb}"
            f"{' transposed' if transpose_b else ''}; wanted equal inner sizes, not {inner_a} and {inner_b}"
        )
    product, x, y = backend.tools.matmul.matmul, a.value, b.value

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        da = db = None
        if needs[0]:
            da = (
                product(y, dy, transpose_a=transpose_b, transpose_b=True)
                if transpose_a
                else product(dy, y, transpose_b=not transpose_b)
            )
        if needs[1]:
            db = (
                product(dy, x, transpose_a=True, transpose_b=transpose_a)
                if transpose_b
                else product(x, dy, transpose_a=not transpose_a)
            )
        return da, db

    return record("matmul", product(x, y, transpose_a=transpose_a, transpose_b=transpose_b), a, (a, b), vjp)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The map x @ weight^T + bias. x: (..., I), weight: (O, I), bias: (O,); returns (..., O)."""
    inputs = (x, weight) if bias is None else (x, weight, bias)
    backend = same_floats("linear", *inputs)
    _check_affine("linear", x, weight, bias)
    slot, xv, wv = backend.tools.linear, x.value, weight.value

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        dx = slot.linear_vjp_input(dy, wv) if needs[0] else None
        if not any(needs[1:]):
            return (dx, None, None)[: len(needs)]
        dw, db = slot.linear_vjp_weight(dy, xv)
        return (dx, dw, db)[: len(needs)]

    return record("linear", slot.linear(xv, wv, None if bias is None else bias.value), x, inputs, vjp)


def _check_affine(name: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    sx, sw = x.value.shape, weight.value.shape
    if len(sw) != 2 or len(sx) < 1 or sx[-1] != sw[1]:
        raise ShapeError(
            f"{name} got x {tuple(sx)} and weight {tuple(sw)}; wanted x (..., I) and weight (O, I) with the same I"
        )
    if bias is not None and tuple(bias.value.shape) != (sw[0],):
        raise ShapeError(f"{name} got bias {bias.shape} for weight {tuple(sw)}; wanted ({sw[0]},)")


def linears(x: Tensor, *maps: tuple[Tensor, Tensor | None]) -> tuple[Tensor, ...]:
    """Several affine maps of one input as one product: `linear(x, weight, bias)` for each (weight, bias).

    x: (..., I), weights: (O, I), biases: (O,); all maps have a bias or none has; returns one (..., O) for each map.
    """
    if not maps:
        raise ShapeError("linears got no map; wanted (weight, bias) or (weight, None) at least once")
    weights, biases = [w for w, _ in maps], [b for _, b in maps if b is not None]
    backend = same_floats("linears", x, *weights, *biases)
    if len(biases) not in (0, len(maps)):
        raise ShapeError(f"linears got {len(maps)} weights and {len(biases)} biases; wanted a bias for all or for none")
    for weight, bias in maps:
        _check_affine("linears", x, weight, bias)
    layout, slot, xv = backend.tools.layout, backend.tools.linear, x.value
    sizes = [w.shape[0] for w in weights]
    joint = layout.concatenate([w.value for w in weights], axis=0)
    bias_value = layout.concatenate([b.value for b in biases], axis=0) if biases else None
    lead = x.shape[:-1]

    def vjp(dys: list[Native | None], needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        full = backend.tools.storage.full
        whole = [
            full((*lead, size), 0.0, dtype=x.dtype) if dy is None else dy for dy, size in zip(dys, sizes, strict=True)
        ]
        dy = layout.concatenate(whole, axis=len(lead))
        dx = slot.linear_vjp_input(dy, joint) if needs[0] else None
        if True not in needs[1:]:
            return (dx, *[None] * (len(needs) - 1))
        dw, db = slot.linear_vjp_weight(dy, xv)
        return (dx, *_cut(layout, dw, 0, sizes), *(_cut(layout, db, 0, sizes) if biases else ()))

    outs = _cut(layout, slot.linear(xv, joint, bias_value), len(lead), sizes)
    return record_many("linears", outs, x, (x, *weights, *biases), vjp)


def _cut(layout: Layout[Native], x: Native, axis: int, sizes: list[int]) -> list[Native]:
    """Consecutive pieces along one axis."""
    shape, pieces, begin = tuple(x.shape), [], 0
    for size in sizes:
        start, stop = [0] * len(shape), list(shape)
        start[axis], stop[axis] = begin, begin + size
        pieces.append(layout.slice(x, tuple(start), tuple(stop)))
        begin += size
    return pieces
