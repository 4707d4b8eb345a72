"""Devices by their number."""

from __future__ import annotations

from cupy_backends.cuda.api import runtime


class Device:
    """One device; as a context manager, the current device of this thread."""

    def __init__(self, device: int | None = None) -> None:
        self.id = runtime.getDevice() if device is None else int(device)

    def __enter__(self) -> Device:
        return self.use()

    def __exit__(self, *_: object) -> None:
        pass

    def __int__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def use(self) -> Device:
        """Raises: CUDARuntimeError 101 when there is no such device."""
        runtime.setDevice(self.id)
        return self

    @property
    def compute_capability(self) -> str:
        properties = runtime.getDeviceProperties(self.id)
        return f"{properties['major']}{properties['minor']}"

    @property
    def mem_info(self) -> tuple[int, int]:
        """Bytes that are free and bytes in total."""
        self.use()
        return runtime.memGetInfo()
