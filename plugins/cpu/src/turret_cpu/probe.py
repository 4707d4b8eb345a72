"""Says why the CPU backend cannot be used here, by trying it."""

from __future__ import annotations


def unknown_device(device: str) -> str | None:
    """The reason why `device` names nothing, or None."""
    if device:
        return f"cpu has one device and takes no device name, got {device!r}; write `cpu`"
    return None


def why_not(device: str) -> str | None:
    """None when a small product comes out right, else the reason in one line."""
    if (reason := unknown_device(device)) is not None:
        return reason
    try:
        import numba
        import numpy as np
    except (ImportError, OSError) as error:  # a native library that does not load raises OSError
        return f"numba or numpy does not load ({error}); run: pip install --force-reinstall numba numpy"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set, so no kernel can be compiled; unset it"
    ones = np.ones((2, 3), np.float32)
    if float((ones @ ones.T)[0, 0]) != 3.0:
        return "a product of ones came out wrong; reinstall numpy"
    return None
