"""The plugin's entry point: describes the backend without loading it."""

from __future__ import annotations

from turret.spi import BackendInfo, hookimpl

from .probe import DEVICES, ON_CPU


@hookimpl
def turret_backends() -> list[BackendInfo]:
    """One backend, `tpu`: a TPU, or PJRT's CPU device as two stand-ins."""
    return [
        BackendInfo(
            name="tpu",
            distribution="turret-tpu",
            spi=">=1.0,<2",
            target="turret_tpu.backend:TpuBackend",
            probe="turret_tpu.probe:why_not",
            devices=DEVICES,
            provides=frozenset(
                (
                    "activation", "softmax", "normalization", "linear", "loss", "rope", "causal_attention",
                    "flash_attention", "quantized_linear", "adam", "compile",
                )
            ),
            dtypes=frozenset(("float32", "int32", "bool", "uint8", "float16", "bfloat16")),
            score=40,
            stand_in_devices=frozenset(ON_CPU),
            install_hint="pip install 'core[tpu]'",
        )
    ]  # fmt: skip
