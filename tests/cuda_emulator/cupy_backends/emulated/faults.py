"""Errors of the runtime, with the numbers and the texts that CUDA gives them."""

from __future__ import annotations

MEMORY_ALLOCATION = 2
INITIALIZATION = 3
INSUFFICIENT_DRIVER = 35
NO_DEVICE = 100
INVALID_DEVICE = 101
ILLEGAL_STATE = 401
ILLEGAL_ADDRESS = 700
LAUNCH_TIMEOUT = 702
LAUNCH_FAILURE = 719
CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
CAPTURE_ISOLATION = 905
CAPTURED_EVENT = 907

_TEXTS = {
    MEMORY_ALLOCATION: ("cudaErrorMemoryAllocation", "out of memory"),
    INITIALIZATION: ("cudaErrorInitializationError", "initialization error"),
    INSUFFICIENT_DRIVER: (
        "cudaErrorInsufficientDriver",
        "CUDA driver version is insufficient for CUDA runtime version",
    ),
    NO_DEVICE: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    INVALID_DEVICE: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    ILLEGAL_STATE: ("cudaErrorIllegalState", "the operation cannot be performed in the present state"),
    ILLEGAL_ADDRESS: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    LAUNCH_TIMEOUT: ("cudaErrorLaunchTimeout", "the launch timed out and was terminated"),
    LAUNCH_FAILURE: ("cudaErrorLaunchFailure", "unspecified launch failure"),
    CAPTURE_UNSUPPORTED: ("cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    CAPTURE_INVALIDATED: (
        "cudaErrorStreamCaptureInvalidated",
        "operation failed due to a previous error during capture",
    ),
    CAPTURE_ISOLATION: (
        "cudaErrorStreamCaptureIsolation",
        "dependency created on uncaptured work in another stream",
    ),
    CAPTURED_EVENT: (
        "cudaErrorCapturedEvent",
        "operation not permitted on an event last recorded in a capturing stream",
    ),
}


class CUDARuntimeError(RuntimeError):
    """A call of the runtime failed: `status` is CUDA's number; the text may add what the emulator saw."""

    def __init__(self, status: int, detail: str = "") -> None:
        name, text = _TEXTS.get(status, ("cudaErrorUnknown", "unknown error"))
        super().__init__(f"{name}: {text}" + (f" ({detail})" if detail else ""))
        self.status = status
        self.detail = detail

    def __reduce__(self) -> tuple[type[CUDARuntimeError], tuple[int, str]]:
        return type(self), (self.status, self.detail)


class RedZoneDamaged(CUDARuntimeError):
    """Something wrote before or after an allocation; on a GPU this may pass unseen."""


class RaceFound(CUDARuntimeError):
    """The result of a kernel depends on the order in which its threads run; on a GPU this may pass unseen."""
