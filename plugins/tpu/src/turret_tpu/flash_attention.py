"""The flash attention slot."""

from __future__ import annotations

from collections import Counter

from turret.derived.flash_attention import DerivedFlashAttention
from turret.spi import FlashAttention, Flashed, Required

from . import flash_tiles
from .arrays import X
from .place import Place


def flash_attention(place: Place, required: Required[X], calls: Counter[str]) -> FlashAttention[X]:
    """The slot: Pallas kernels where the device runs them, else two loops that XLA compiles."""
    whole = TiledFlashAttention(place, DerivedFlashAttention(required), calls)
    if place.device.platform == "cpu" and not place.interpret:
        return whole
    from .flash_pallas import PallasFlashAttention

    return PallasFlashAttention(place, whole)


class TiledFlashAttention:
    """One XLA program for heads of any size. An empty batch or text is the composed slot's, and counted."""

    def __init__(self, place: Place, derived: DerivedFlashAttention[X], calls: Counter[str]) -> None:
        self._place, self._derived, self._calls = place, derived, calls

    def attend(self, q: X, k: X, v: X, /, *, scale: float, offset: int) -> Flashed[X]:
        if not q.size:
            return self._rest().attend(q, k, v, scale=scale, offset=offset)
        return Flashed(*self._place.run(flash_tiles.attend, q, k, v, scale=float(scale), offset=offset))

    def attend_vjp(self, dy: X, q: X, k: X, v: X, saved: Flashed[X], /, *, scale: float, offset: int) -> tuple[X, X, X]:
        if not q.size:
            return self._rest().attend_vjp(dy, q, k, v, saved, scale=scale, offset=offset)
        return self._place.run(flash_tiles.attend_vjp, dy, q, k, v, *saved, scale=float(scale), offset=offset)

    def _rest(self) -> DerivedFlashAttention[X]:
        self._calls["flash_attention"] += 1
        return self._derived
