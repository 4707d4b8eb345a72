"""The plugin's entry point: describes the backend without loading it."""

from __future__ import annotations

from turret.spi import BackendInfo, hookimpl


@hookimpl
def turret_backends() -> list[BackendInfo]:
    """One backend, `cpu`, with one device."""
    return [
        BackendInfo(
            name="cpu",
            distribution="turret-cpu",
            spi=">=1.0,<2",
            target="turret_cpu.backend:CpuBackend",
            probe="turret_cpu.probe:why_not",
            devices="nothing: cpu has one device",
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
                )
            ),
            dtypes=frozenset(("float32", "int32", "bool", "uint8", "float16", "float64", "int64")),
            score=10,
            install_hint="pip install 'core[cpu]'",
        )
    ]
