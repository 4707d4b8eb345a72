"""Activations from exp and erf."""

from __future__ import annotations

import math
from typing import Generic

from turret.spi import A, GeluForm, Required

from .ops import Ops

# Beyond these sizes the gates are 0 or 1 to the last bit of float64, so that clipping to them changes no value and
# keeps 0 * inf and inf - inf away from inputs such as 1e30 and infinity.
GELU_SATURATED = 50.0
SILU_SATURATED = 1000.0

TANH_SCALE = math.sqrt(2 / math.pi)
TANH_CUBIC = 0.044715
NORMAL_PEAK = 1 / math.sqrt(2 * math.pi)


class DerivedActivation(Generic[A]):
    """Every form is x times a gate between 0 and 1, and its gradient gate + x gate'.

    gelu: gate = Phi(x) = (1 + erf(x / sqrt 2)) / 2, gate' = phi(x); in the tanh form gate = sigmoid(2 u) with
    u = sqrt(2 / pi) (x + 0.044715 x^3), which is (1 + tanh u) / 2, and gate' = gate (1 - gate) 2 u'. silu: gate =
    sigmoid(x). No finite input gives NaN; -inf gives 0.
    """

    def __init__(self, required: Required[A]) -> None:
        self._ops = Ops(required)

    def gelu(self, x: A, /, *, form: GeluForm) -> A:
        o = self._ops
        wide = o.wide(x)
        clipped = _clip(o, wide, GELU_SATURATED)
        gate = self._normal_gate(clipped) if form == "erf" else self._tanh_gate(clipped)[0]
        return o.like(o.multiply(o.maximum(wide, -GELU_SATURATED), gate), x)

    def gelu_vjp(self, dy: A, x: A, /, *, form: GeluForm) -> A:
        o = self._ops
        clipped = _clip(o, o.wide(x), GELU_SATURATED)
        square = o.multiply(clipped, clipped)
        if form == "erf":
            gate = self._normal_gate(clipped)
            rise = o.multiply(o.exp(o.multiply(square, -0.5)), NORMAL_PEAK)
        else:
            gate, rest = self._tanh_gate(clipped)
            twice_slope = o.multiply(o.add(o.multiply(square, 3 * TANH_CUBIC), 1.0), 2 * TANH_SCALE)
            rise = o.multiply(o.multiply(gate, rest), twice_slope)
        return o.like(o.multiply(o.wide(dy), o.add(gate, o.multiply(clipped, rise))), x)

    def silu(self, x: A, /) -> A:
        o = self._ops
        return o.like(self._silu(o.wide(x)), x)

    def silu_vjp(self, dy: A, x: A, /) -> A:
        o = self._ops
        return o.like(o.multiply(o.wide(dy), self._silu_slope(o.wide(x))), x)

    def gated_silu(self, gate: A, up: A, /) -> A:
        o = self._ops
        return o.like(o.multiply(self._silu(o.wide(gate)), o.wide(up)), gate)

    def gated_silu_vjp(self, dy: A, gate: A, up: A, /) -> tuple[A, A]:
        o = self._ops
        wide_dy, wide_gate = o.wide(dy), o.wide(gate)
        dgate = o.multiply(o.multiply(wide_dy, o.wide(up)), self._silu_slope(wide_gate))
        return o.like(dgate, gate), o.like(o.multiply(wide_dy, self._silu(wide_gate)), up)

    def _normal_gate(self, x: A) -> A:
        o = self._ops
        return o.multiply(o.add(o.erf(o.multiply(x, math.sqrt(0.5))), 1.0), 0.5)

    def _tanh_gate(self, x: A) -> tuple[A, A]:
        o = self._ops
        cubic = o.multiply(o.add(o.multiply(o.multiply(x, x), TANH_CUBIC), 1.0), x)
        return _sigmoid(o, o.multiply(cubic, 2 * TANH_SCALE))

    def _silu(self, x: A) -> A:
        o = self._ops
        return o.multiply(o.maximum(x, -SILU_SATURATED), _sigmoid(o, x)[0])

    def _silu_slope(self, x: A) -> A:
        o = self._ops
        gate, rest = _sigmoid(o, x)
        return o.multiply(gate, o.add(o.multiply(_clip(o, x, SILU_SATURATED), rest), 1.0))


def _clip(o: Ops[A], x: A, bound: float) -> A:
    return o.minimum(o.maximum(x, -bound), bound)


def _sigmoid(o: Ops[A], x: A) -> tuple[A, A]:
    """sigmoid(x) and 1 - sigmoid(x), both to full relative accuracy: exp only ever sees -|x|."""
    small = o.exp(o.minimum(x, o.negative(x)))
    total = o.add(small, 1.0)
    below = o.less(x, 0.0)
    return o.divide(o.where(below, small, 1.0), total), o.divide(o.where(below, 1.0, small), total)
