"""The plugin's entry point: describes the backend without loading it."""

from __future__ import annotations

from turret.spi import BackendInfo, hookimpl


@hookimpl
def turret_backends() -> list[BackendInfo]:
    """One backend, `cuda`, with the machine's GPUs by number; the emulator of the tests as a stand-in."""
    return [
        BackendInfo(
            name="cuda",
            distribution="turret-cuda",
            spi=">=1.0,<2",
            target="turret_cuda.backend:CudaBackend",
            probe="turret_cuda.probe:why_not",
            devices="nothing for the first GPU, or its number, as in cuda:1 (not run on a GPU yet)",
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
            dtypes=frozenset(("float32", "int32", "bool", "uint8", "float16", "bfloat16", "float64", "int64")),
            score=50,
            stand_in_devices=frozenset(("emulated",)),
            install_hint="pip install 'core[cuda]'",
        )
    ]
