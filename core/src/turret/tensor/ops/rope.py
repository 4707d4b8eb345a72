"""Rotary positions."""

from __future__ import annotations

from turret.spi import DTypeError, ShapeError

from ..value import Tensor, record, require_float, same_backend


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Pairs of x turned by their position's angle. x: (B, T, H, d), d even; cos, sin: float32 (T, d/2) or (B, T, d/2).

    Pairs are (i, i + d/2), or (2i, 2i + 1) when interleaved. cos and sin get no gradient.
    """
    slot = same_backend("rope", x, cos, sin).tools.rope
    require_float("rope", x)
    if x.ndim != 4 or x.shape[3] % 2:
        raise ShapeError(f"rope of shape {x.shape}; wanted (B, T, H, d) with an even d")
    b, t, _, d = x.shape
    if cos.shape != sin.shape or cos.shape not in ((t, d // 2), (b, t, d // 2)):
        raise ShapeError(
            f"rope of x {x.shape} got cos {cos.shape} and sin {sin.shape}; wanted ({t}, {d // 2}), or with B"
        )
    if cos.dtype != "float32" or sin.dtype != "float32":
        raise DTypeError(f"rope got cos {cos.dtype} and sin {sin.dtype}; wanted float32")
    c, s = cos.value, sin.value
    out = slot.rope(x.value, c, s, interleaved=interleaved)
    return record("rope", out, x, (x,), lambda dy, _: (slot.rope_vjp(dy, c, s, interleaved=interleaved),))
