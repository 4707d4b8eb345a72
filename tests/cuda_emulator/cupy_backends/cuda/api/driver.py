"""Errors of the driver interface."""

from __future__ import annotations

_TEXTS = {
    1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    500: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
}


class CUDADriverError(RuntimeError):
    """A call of the driver failed: `status` is CUDA's number."""

    def __init__(self, status: int) -> None:
        super().__init__(": ".join(_TEXTS[status]))
        self.status = status

    def __reduce__(self) -> tuple[type[CUDADriverError], tuple[int]]:
        return type(self), (self.status,)
