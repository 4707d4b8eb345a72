"""The activation slot: one kernel an operation, operands read where they lie."""

from __future__ import annotations

from turret.spi import GeluForm

from .arrays import geometry, suffix
from .elementwise import ALIKE
from .library import X
from .place import Place


class CudaActivation:
    """No finite input gives NaN; -inf gives 0; left tails keep their relative accuracy."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def gelu(self, x: X, /, *, form: GeluForm) -> X:
        return self._run(f"gelu_{form}", x)[0]

    def gelu_vjp(self, dy: X, x: X, /, *, form: GeluForm) -> X:
        return self._run(f"gelu_{form}_vjp", dy, x)[0]

    def silu(self, x: X, /) -> X:
        return self._run("silu", x)[0]

    def silu_vjp(self, dy: X, x: X, /) -> X:
        return self._run("silu_vjp", dy, x)[0]

    def gated_silu(self, gate: X, up: X, /) -> X:
        return self._run("gated_silu", gate, up)[0]

    def gated_silu_vjp(self, dy: X, gate: X, up: X, /) -> tuple[X, X]:
        dgate, dup = self._run("gated_silu_vjp", dy, gate, up, results=2)
        return dgate, dup

    def _run(self, operation: str, *operands: X, results: int = 1) -> list[X]:
        """Fresh arrays of the operands' common shape."""
        place, shape, dtype = self._place, operands[0].shape, operands[0].dtype
        out = [place.empty(shape, dtype) for _ in range(results)]
        lie = ALIKE if all(x.flags.c_contiguous for x in operands) else geometry(shape, *operands)
        count = out[0].size
        name = f"{operation}_{suffix(operands[0])}"
        place.spread("activation", name, count, *operands, *out, count, lie)
        return out
