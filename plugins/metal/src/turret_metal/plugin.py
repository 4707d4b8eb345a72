"""The plugin's entry point: describes the backend without loading it."""

from __future__ import annotations

from turret.spi import BackendInfo, hookimpl


@hookimpl
def turret_backends() -> list[BackendInfo]:
    """One backend, `metal`, with the GPU and MLX's CPU device as a stand-in."""
    return [
        BackendInfo(
            name="metal",
            distribution="turret-metal",
            spi=">=1.0,<2",
            target="turret_metal.backend:MetalBackend",
            probe="turret_metal.probe:why_not",
            devices="nothing for the GPU (not run on Apple hardware yet), or `cpu` for MLX's CPU device",
            provides=frozenset(
                (
                    "activation",
                    "softmax",
                    "normalization",
                    "linear",
                    "loss",
                    "rope",
                    "causal_attention",
                    "flash_attention",
                    "quantized_linear",
                    "adam",
                    "compile",
                )
            ),
            dtypes=frozenset(("float32", "int32", "bool", "uint8", "float16", "bfloat16", "int64")),
            score=30,
            stand_in_devices=frozenset(("cpu",)),
            install_hint="pip install 'core[metal]'",
        )
    ]
