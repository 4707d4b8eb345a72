"""Matrix products and the affine map of layers."""

from __future__ import annotations

from turret.spi import ShapeError

from ..graph import Native
from ..value import Tensor, record, same_floats


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
    sx, sw = x.value.shape, weight.value.shape
    if len(sw) != 2 or len(sx) < 1 or sx[-1] != sw[1]:
        raise ShapeError(
            f"linear got x {tuple(sx)} and weight {tuple(sw)}; wanted x (..., I) and weight (O, I) with the same I"
        )
    if bias is not None and tuple(bias.value.shape) != (sw[0],):
        raise ShapeError(f"linear got bias {bias.shape} for weight {tuple(sw)}; wanted ({sw[0]},)")
    slot, xv, wv = backend.tools.linear, x.value, weight.value

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        dx = slot.linear_vjp_input(dy, wv) if needs[0] else None
        if not any(needs[1:]):
            return (dx, None, None)[: len(needs)]
        dw, db = slot.linear_vjp_weight(dy, xv)
        return (dx, dw, db)[: len(needs)]

    return record("linear", slot.linear(xv, wv, None if bias is None else bias.value), x, inputs, vjp)
