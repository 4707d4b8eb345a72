"""The plugin's entry point: describes the backend without loading it."""

from __future__ import annotations

from turret.spi import BackendInfo, hookimpl


@hookimpl
def turret_backends() -> list[BackendInfo]:
    """One backend, `minimal`. Listing it must stay cheap: no array library is imported here."""
    return [
        BackendInfo(
            name="minimal",
            distribution="turret-minimal",
            spi=">=1.0,<2",
            target="turret_minimal.backend:MinimalBackend",
            probe="turret_minimal.probe:why_not",
            devices="nothing: minimal has one device",
            dtypes=frozenset(("float32", "int32", "bool", "uint8", "float16", "float64", "int64")),
            score=0,  # `auto` picks the highest score: a backend made for reading must not win
            install_hint="pip install -e examples/minimal_backend",
        )
    ]
