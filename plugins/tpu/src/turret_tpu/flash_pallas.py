"""The flash attention slot of a device that runs Pallas kernels, compiled by Mosaic or interpreted."""

from __future__ import annotations

from turret.spi import FlashAttention, Flashed

from . import flash_kernels
from .arrays import X
from .place import Place


class PallasFlashAttention:
    """Memory linear in the length, with a kernel each for the output, for dq, and for dk and dv.

    Heads wider than `flash_kernels.WIDEST`, and empty operands, are left to `rest`.
    """

    def __init__(self, place: Place, rest: FlashAttention[X]) -> None:
        self._place, self._rest = place, rest

    def attend(self, q: X, k: X, v: X, /, *, scale: float, offset: int) -> Flashed[X]:
        if not flash_kernels.takes(q):
            return self._rest.attend(q, k, v, scale=scale, offset=offset)
        options = {"scale": float(scale), "offset": offset, "interpret": self._place.interpret}
        return Flashed(*self._place.run(flash_kernels.attend, q, k, v, **options))

    def attend_vjp(self, dy: X, q: X, k: X, v: X, saved: Flashed[X], /, *, scale: float, offset: int) -> tuple[X, X, X]:
        if not flash_kernels.takes(q):
            return self._rest.attend_vjp(dy, q, k, v, saved, scale=scale, offset=offset)
        options = {"scale": float(scale), "offset": offset, "interpret": self._place.interpret}
        return self._place.run(flash_kernels.attend_vjp, dy, q, k, v, *saved, **options)
