"""Says why a TPU, or PJRT's CPU device, cannot be used here, by trying it."""

from __future__ import annotations

from typing import Any

DEVICES = (
    "nothing for the first TPU, its number (tpu:1), cpu for PJRT's CPU device (tpu:cpu), or interpret for that device "
    "with the Pallas kernels of a TPU interpreted on it (tpu:interpret, slow)"
)
ON_CPU = ("cpu", "interpret")
OLDEST_JAX = (0, 8)
INSTALL = "pip install 'core[tpu]'"


def unknown_device(device: str) -> str | None:
    """The reason why `device` names nothing, or None."""
    if device in ("", *ON_CPU) or (device.isascii() and device.isdigit()):
        return None
    return f"tpu has no device {device!r}; wanted {DEVICES}"


def find(device: str) -> Any:
    """JAX's device of this name, or the reason why there is none in one line."""
    if (reason := unknown_device(device)) is not None:
        return reason
    try:
        from .library import jax
    except (ImportError, OSError) as error:  # a native library that does not load raises OSError
        return f"jax does not load ({error}); run: {INSTALL}"
    if jax.__version_info__[:2] < OLDEST_JAX:
        oldest = ".".join(map(str, OLDEST_JAX))
        return f"jax {jax.__version__} is too old, wanted {oldest} or newer; run: pip install -U jax"
    platform, number = ("cpu", 0) if device in ON_CPU else ("tpu", int(device or 0))
    try:
        found = jax.local_devices(backend=platform)
    except RuntimeError as error:
        return _absent(platform, device, str(error))
    if number >= len(found):
        return f"there is no TPU number {number} here, JAX finds {len(found)}, counted from 0; `tpu` is the first"
    return found[number]


def why_not(device: str) -> str | None:
    """None when a small product on the device comes out right, else the reason in one line."""
    found = find(device)
    if isinstance(found, str):
        return found
    import numpy as np

    from .library import jax, lax

    ones = jax.device_put(np.ones((1, 3), np.float32), found)
    try:
        product = float(lax.dot_general(ones, ones, (((1,), (1,)), ((), ())))[0, 0])
    except jax.errors.JaxRuntimeError as error:
        return f"a product on {found} failed ({str(error).splitlines()[0]}); is another process using the TPU?"
    if product != 3.0:
        return f"a product of ones on {found} came out as {product}, wanted 3.0; reinstall jax"
    return None


def _absent(platform: str, device: str, said: str) -> str:
    """What to do where JAX has no device of this platform."""
    first = said.strip().splitlines()[0] if said.strip() else "no reason given"
    if platform == "cpu":
        return f"JAX offers no CPU device ({first}); does JAX_PLATFORMS leave it out? add cpu to it, or unset it"
    spec = f"tpu:{device}" if device else "tpu"
    return (
        f"{spec!r} needs a TPU and its library libtpu, and JAX finds none ({first}); on a machine with a TPU run: "
        f"{INSTALL} 'jax[tpu]'; `tpu:cpu` tries the same backend on this machine's CPU, and `tpu:interpret` its Pallas "
        f"kernels too, slowly"
    )
