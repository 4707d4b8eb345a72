"""What may be loaded from the host into the state of a parameter or an optimizer."""

from __future__ import annotations

import numpy as np

from turret.spi import DTypeError, Host, Shape, ShapeError


def check_host(what: str, host: Host, shape: Shape) -> None:
    """Raises: DTypeError unless `host` is a NumPy array of floats, ShapeError unless its shape is `shape`."""
    if not isinstance(host, np.ndarray) or host.dtype.kind != "f":
        got = f"NumPy dtype {host.dtype}" if isinstance(host, np.ndarray) else type(host).__name__
        raise DTypeError(f"{what} got {got}; wanted a NumPy array of floats")
    if host.shape != shape:
        raise ShapeError(f"{what} has shape {host.shape}; wanted {shape}")
