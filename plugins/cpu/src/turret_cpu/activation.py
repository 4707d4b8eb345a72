"""The activation slot: one pass over memory each way."""

from __future__ import annotations

from collections import Counter

from turret.derived.activation import DerivedActivation
from turret.spi import GeluForm, Required

from .arrays import Rest, X, dense, kernel_ready
from .kernels import pointwise
from .memory import empty
from .threads import POOL


class CpuActivation:
    """Float32 through vectorized exponentials with small relative error in the tails too."""

    def __init__(self, required: Required[X], calls: Counter[str]) -> None:
        self._rest = Rest("activation", DerivedActivation(required), calls)

    def gelu(self, x: X, /, *, form: GeluForm) -> X:
        if not kernel_ready(x):
            return self._rest().gelu(x, form=form)
        y = empty(x.shape)
        POOL.run(pointwise.gelu, 1.0 * x.size, dense(x), y, x.size, int(form == "tanh"))
        return y

    def gelu_vjp(self, dy: X, x: X, /, *, form: GeluForm) -> X:
        if not kernel_ready(x):
            return self._rest().gelu_vjp(dy, x, form=form)
        dx = empty(x.shape)
        POOL.run(pointwise.gelu_vjp, 1.2 * x.size, dense(dy), dense(x), dx, x.size, int(form == "tanh"))
        return dx

    def silu(self, x: X, /) -> X:
        if not kernel_ready(x):
            return self._rest().silu(x)
        y = empty(x.shape)
        POOL.run(pointwise.silu, 0.8 * x.size, dense(x), y, x.size)
        return y

    def silu_vjp(self, dy: X, x: X, /) -> X:
        if not kernel_ready(x):
            return self._rest().silu_vjp(dy, x)
        dx = empty(x.shape)
        POOL.run(pointwise.silu_vjp, 0.9 * x.size, dense(dy), dense(x), dx, x.size)
        return dx

    def gated_silu(self, gate: X, up: X, /) -> X:
        if not kernel_ready(gate):
            return self._rest().gated_silu(gate, up)
        y = empty(gate.shape)
        POOL.run(pointwise.gated_silu, 0.9 * gate.size, dense(gate), dense(up), y, gate.size)
        return y

    def gated_silu_vjp(self, dy: X, gate: X, up: X, /) -> tuple[X, X]:
        if not kernel_ready(gate):
            return self._rest().gated_silu_vjp(dy, gate, up)
        dgate, dup = empty(gate.shape), empty(gate.shape)
        POOL.run(pointwise.gated_silu_vjp, 1.5 * gate.size, dense(dy), dense(gate), dense(up), dgate, dup, gate.size)
        return dgate, dup
