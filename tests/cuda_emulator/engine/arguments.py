"""Python values as the bytes that a kernel takes: integers are `long long`, floats `double`."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

Value = np.ndarray[Any, Any] | np.generic | bytes | int | float | None


def as_arguments(*values: Value) -> list[bytes]:
    """One entry of `bytes` for each value.

    An array becomes the pointer to its data and has to live until the launch is over; a 0-d structured array and
    every NumPy scalar is passed by value; None is a null pointer.
    """
    return [_as_bytes(value) for value in values]


def _as_bytes(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.dtype.names and value.ndim == 0):
        return value.tobytes()
    if isinstance(value, np.ndarray):
        return struct.pack("P", value.ctypes.data)
    if isinstance(value, int):
        return struct.pack("q", value)
    return struct.pack("P", 0) if value is None else struct.pack("d", value)
