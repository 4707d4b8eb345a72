"""Non-linearities of feed-forward layers."""

from __future__ import annotations

from turret.spi import ConfigError, GeluForm, ShapeError

from ..graph import Native
from ..value import Tensor, record, same_floats


def gelu(x: Tensor, *, form: GeluForm = "erf") -> Tensor:
    """The product x * Phi(x), exactly ("erf") or by its tanh approximation ("tanh")."""
    slot = same_floats("gelu", x).tools.activation
    if form not in ("erf", "tanh"):
        raise ConfigError(f"gelu form {form!r}; wanted 'erf' or 'tanh'")
    value = x.value
    return record("gelu", slot.gelu(value, form=form), x, (x,), lambda dy, _: (slot.gelu_vjp(dy, value, form=form),))


def silu(x: Tensor) -> Tensor:
    """The product x * sigmoid(x)."""
    slot = same_floats("silu", x).tools.activation
    value = x.value
    return record("silu", slot.silu(value), x, (x,), lambda dy, _: (slot.silu_vjp(dy, value),))


def gated_silu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, equal shapes."""
    slot = same_floats("gated_silu", gate, up).tools.activation
    if gate.shape != up.shape:
        raise ShapeError(f"gated_silu got gate {gate.shape} and up {up.shape}; wanted equal shapes")
    g, u = gate.value, up.value

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        return slot.gated_silu_vjp(dy, g, u)

    return record("gated_silu", slot.gated_silu(g, u), gate, (gate, up), vjp)
