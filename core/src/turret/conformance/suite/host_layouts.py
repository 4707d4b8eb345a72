"""The ways in which a caller's NumPy array may lie in memory."""

from __future__ import annotations

import numpy as np

from turret.spi import Host, Shape

LAYOUTS: dict[str, Shape] = {
    "whole": (6, 5),
    "scalar": (),
    "empty": (0, 3),
    "long": (40_000,),
    "aligned": (32, 64),
    "unaligned": (7, 9),
    "fortran": (6, 5),
    "transposed": (2, 3, 4),
    "strided": (6, 5),
    "reversed": (6, 5),
    "repeated": (6, 5),
    "read-only": (6, 5),
}
"""Name and shape. aligned: to 64 bytes, which libraries like to take over without a copy."""


def laid_out(layout: str, values: Host) -> tuple[Host, Host]:
    """(the host array, a writable array over the same memory). A repeated one has its first row everywhere."""
    if layout == "fortran":
        host = np.asfortranarray(values)
        return host, host
    if layout == "transposed":
        owner = np.ascontiguousarray(values.transpose())
        return owner.transpose(), owner
    if layout == "strided":
        owner = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        owner[..., ::2] = values
        return owner[..., ::2], owner
    if layout == "reversed":
        owner = np.ascontiguousarray(values[::-1, ::-1])
        return owner[::-1, ::-1], owner
    if layout == "repeated":
        owner = values[:1].copy()
        return np.broadcast_to(owner, values.shape), owner
    if layout in ("aligned", "unaligned"):
        owner = _at_offset(values, 0 if layout == "aligned" else 1)
        return owner, owner
    host = values.view()
    host.flags.writeable = layout != "read-only"
    return host, values


def _at_offset(values: Host, offset: int) -> Host:
    """A copy whose address is `offset` beyond a multiple of 64."""
    raw = np.zeros(values.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    placed: Host = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    placed[...] = values
    return placed
