"""Says why the backend cannot be used here, by trying it."""

from __future__ import annotations


def why_not(device: str) -> str | None:
    """None when one real operation came out right, else the reason in one line.

    `device` is what a user wrote after the colon, "" where nothing was written. A probe reports and never raises.
    """
    if device:
        return f"minimal has one device and takes no device name, got {device!r}; write `minimal`"
    try:
        import numpy as np
    except (ImportError, OSError) as error:  # a native library that does not load raises OSError
        return f"numpy does not load ({error}); run: pip install --force-reinstall numpy"
    ones = np.ones((2, 3), np.float32)
    if float((ones @ ones.T)[0, 0]) != 3.0:
        return "a product of ones came out wrong; reinstall numpy"
    return None
