"""The activation slot."""

from __future__ import annotations

import math

import mlx.core as mx

from turret.spi import GeluForm

from .arrays import like, wide
from .mathematics import normal_gate
from .stream import Stream, X

# Beyond these sizes the gates are 0 or 1 to the last bit of float32, so that clipping to them changes no value and
# keeps 0 * inf and inf - inf away from inputs such as 1e30 and infinity.
GELU_SATURATED = 50.0
SILU_SATURATED = 1000.0

TANH_SCALE = math.sqrt(2 / math.pi)
TANH_CUBIC = 0.044715
NORMAL_PEAK = 1 / math.sqrt(2 * math.pi)


class MetalActivation:
    """Every form is x times a gate between 0 and 1, and its gradient gate + x gate'.

    gelu: gate = (1 + erf(x / sqrt 2)) / 2; in the tanh form sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
    silu: gate = sigmoid(x). No finite input gives NaN; -inf gives 0.
    """

    def __init__(self, do: Stream) -> None:
        self._do = do

    def gelu(self, x: X, /, *, form: GeluForm) -> X:
        do, x_wide = self._do, wide(self._do, x)
        if form == "erf":
            gate = normal_gate(do, x_wide)
        else:
            gate = _sigmoids(do, _tanh_argument(do, _clip(do, x_wide, GELU_SATURATED)))[0]
        return like(do, do(mx.multiply, do(mx.maximum, x_wide, -GELU_SATURATED), gate), x)

    def gelu_vjp(self, dy: X, x: X, /, *, form: GeluForm) -> X:
        do = self._do
        x_wide = wide(do, x)
        clipped = _clip(do, x_wide, GELU_SATURATED)
        square = do(mx.multiply, clipped, clipped)
        if form == "erf":
            gate = normal_gate(do, x_wide)
            rise = do(mx.multiply, do(mx.exp, do(mx.multiply, square, -0.5)), NORMAL_PEAK)
        else:
            gate, rest = _sigmoids(do, _tanh_argument(do, clipped))
            twice_slope = do(mx.multiply, do(mx.add, do(mx.multiply, square, 3 * TANH_CUBIC), 1.0), 2 * TANH_SCALE)
            rise = do(mx.multiply, do(mx.multiply, gate, rest), twice_slope)
        return like(do, do(mx.multiply, wide(do, dy), do(mx.add, gate, do(mx.multiply, clipped, rise))), x)

    def silu(self, x: X, /) -> X:
        return like(self._do, _silu(self._do, wide(self._do, x)), x)

    def silu_vjp(self, dy: X, x: X, /) -> X:
        do = self._do
        return like(do, do(mx.multiply, wide(do, dy), _silu_slope(do, wide(do, x))), x)

    def gated_silu(self, gate: X, up: X, /) -> X:
        do = self._do
        return like(do, do(mx.multiply, _silu(do, wide(do, gate)), wide(do, up)), gate)

    def gated_silu_vjp(self, dy: X, gate: X, up: X, /) -> tuple[X, X]:
        do, wide_dy, wide_gate = self._do, wide(self._do, dy), wide(self._do, gate)
        dgate = do(mx.multiply, do(mx.multiply, wide_dy, wide(do, up)), _silu_slope(do, wide_gate))
        return like(do, dgate, gate), like(do, do(mx.multiply, wide_dy, _silu(do, wide_gate)), up)


def _clip(do: Stream, x: X, bound: float) -> X:
    # in this order it shares no operation with the forward, whose result MLX would write out to read it here
    return do(mx.maximum, do(mx.minimum, x, bound), -bound)


def _tanh_argument(do: Stream, x: X) -> X:
    cubic = do(mx.multiply, do(mx.add, do(mx.multiply, do(mx.multiply, x, x), TANH_CUBIC), 1.0), x)
    return do(mx.multiply, cubic, 2 * TANH_SCALE)


def _sigmoids(do: Stream, x: X) -> tuple[X, X]:
    """sigmoid(x) and 1 - sigmoid(x), both to full relative accuracy: exp only ever sees -|x|."""
    small = do(mx.exp, do(mx.negative, do(mx.abs, x)))
    total, below = do(mx.add, small, 1.0), do(mx.less, x, 0.0)
    gate = do(mx.divide, do(mx.where, below, small, 1.0), total)
    return gate, do(mx.divide, do(mx.where, below, 1.0, small), total)


def _silu(do: Stream, x: X) -> X:
    return do(mx.multiply, do(mx.maximum, x, -SILU_SATURATED), _sigmoids(do, x)[0])


def _silu_slope(do: Stream, x: X) -> X:
    gate, rest = _sigmoids(do, x)
    return do(mx.multiply, gate, do(mx.add, do(mx.multiply, _clip(do, x, SILU_SATURATED), rest), 1.0))
