"""The activation slot."""

from __future__ import annotations

import math

from turret.spi import GeluForm

from .arrays import X, add, div, greater, less, like, mul, smaller, wide
from .library import lax
from .place import Place
from .programs import program

# Beyond these sizes the gates are 0 or 1 to the last bit of float32, so that clipping to them changes no value and
# keeps 0 * inf and inf - inf away from inputs such as 1e30 and infinity.
GELU_SATURATED = 50.0
SILU_SATURATED = 1000.0

TANH_SCALE = math.sqrt(2 / math.pi)
TANH_CUBIC = 0.044715
NORMAL_PEAK = 1 / math.sqrt(2 * math.pi)


class TpuActivation:
    """Every form is x times a gate between 0 and 1, and its gradient gate + x gate'. -inf gives 0."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def gelu(self, x: X, /, *, form: GeluForm) -> X:
        return self._place.run(_gelu, x, form=form)

    def gelu_vjp(self, dy: X, x: X, /, *, form: GeluForm) -> X:
        return self._place.run(_gelu_vjp, dy, x, form=form)

    def silu(self, x: X, /) -> X:
        return self._place.run(_silu, x)

    def silu_vjp(self, dy: X, x: X, /) -> X:
        return self._place.run(_silu_vjp, dy, x)

    def gated_silu(self, gate: X, up: X, /) -> X:
        return self._place.run(_gated_silu, gate, up)

    def gated_silu_vjp(self, dy: X, gate: X, up: X, /) -> tuple[X, X]:
        return self._place.run(_gated_silu_vjp, dy, gate, up)


@program("form")
def _gelu(x: X, *, form: GeluForm) -> X:
    y = wide(x)
    gate = _normal_gate(_clip(y, GELU_SATURATED)) if form == "erf" else _tanh_gate(_clip(y, GELU_SATURATED))[0]
    return like(mul(greater(y, -GELU_SATURATED), gate), x)


@program("form")
def _gelu_vjp(dy: X, x: X, *, form: GeluForm) -> X:
    y = _clip(wide(x), GELU_SATURATED)
    if form == "erf":
        gate, rise = _normal_gate(y), mul(lax.exp(mul(mul(y, y), -0.5)), NORMAL_PEAK)
    else:
        gate, rest = _tanh_gate(y)
        rise = mul(mul(gate, rest), mul(add(mul(mul(y, y), 3 * TANH_CUBIC), 1.0), 2 * TANH_SCALE))
    return like(mul(wide(dy), add(gate, mul(y, rise))), x)


@program()
def _silu(x: X) -> X:
    return like(_swish(wide(x)), x)


@program()
def _silu_vjp(dy: X, x: X) -> X:
    return like(mul(wide(dy), _slope(wide(x))), x)


@program()
def _gated_silu(gate: X, up: X) -> X:
    return like(mul(_swish(wide(gate)), wide(up)), gate)


@program()
def _gated_silu_vjp(dy: X, gate: X, up: X) -> tuple[X, X]:
    wide_dy, wide_gate = wide(dy), wide(gate)
    dgate = mul(mul(wide_dy, wide(up)), _slope(wide_gate))
    return like(dgate, gate), like(mul(wide_dy, _swish(wide_gate)), up)


def _normal_gate(x: X) -> X:
    """Phi(x)."""
    return mul(add(lax.erf(mul(x, math.sqrt(0.5))), 1.0), 0.5)


def _tanh_gate(x: X) -> tuple[X, X]:
    """(1 + tanh u) / 2 = sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3), and 1 less it."""
    return _sigmoid(mul(mul(add(mul(mul(x, x), TANH_CUBIC), 1.0), x), 2 * TANH_SCALE))


def _swish(x: X) -> X:
    return mul(greater(x, -SILU_SATURATED), _sigmoid(x)[0])


def _slope(x: X) -> X:
    gate, rest = _sigmoid(x)
    return mul(gate, add(mul(_clip(x, SILU_SATURATED), rest), 1.0))


def _sigmoid(x: X) -> tuple[X, X]:
    """sigmoid(x) and 1 - sigmoid(x), both to full relative accuracy: exp only ever sees -|x|."""
    small = lax.exp(lax.neg(lax.abs(x)))
    one = lax.full_like(small, 1.0)
    total, below = add(small, 1.0), less(x, 0.0)
    return div(lax.select(below, small, one), total), div(lax.select(below, one, small), total)


def _clip(x: X, bound: float) -> X:
    return smaller(greater(x, -bound), bound)
