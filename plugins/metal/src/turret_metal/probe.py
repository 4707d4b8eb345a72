"""Says why a device of the Metal backend cannot be used here, by trying it."""

from __future__ import annotations

from importlib.metadata import version


def unknown_device(device: str) -> str | None:
    """The reason why `device` names nothing, or None."""
    if device not in ("", "cpu"):
        return f"metal has one GPU and no device {device!r}; write `metal`, or `metal:cpu` for MLX's CPU device"
    return None


def why_not(device: str) -> str | None:
    """None when a small product comes out right, else the reason in one line."""
    if (reason := unknown_device(device)) is not None:
        return reason
    try:
        import mlx.core as mx
    except (ImportError, OSError) as error:  # a native library that does not load raises OSError
        return f"mlx does not load ({error}); run: pip install 'core[metal]'"
    if not device and not mx.metal.is_available():
        return "no Metal here: plain `metal` needs an Apple GPU; try `metal:cpu`, MLX's CPU device"
    if "new_thread_unsafe_stream" not in dir(mx):
        return f"mlx {version('mlx')} is too old; wanted 0.32.4 or newer; run: pip install --upgrade mlx"
    return _trial(device)


def _trial(device: str) -> str | None:
    import mlx.core as mx

    from turret.spi import BackendUnavailable

    from .stream import stream_of

    stream = stream_of(device)
    ones = stream(mx.ones, (2, 3))
    try:
        stream.wait(product := stream(mx.matmul, ones, stream(mx.transpose, ones)))
    except BackendUnavailable as error:  # this is a fork of a process that has the device
        return str(error)
    except RuntimeError as error:  # what MLX raises where the device refuses
        return f"mlx cannot compute on this device ({error}); reinstall it: pip install --force-reinstall mlx"
    return None if product.tolist() == [[3, 3], [3, 3]] else "a product of ones came out wrong; reinstall mlx"
