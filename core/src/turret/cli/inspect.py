"""`turret inspect`: what a checkpoint holds, read from its manifest and verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .options import NamedPath


@click.command()
@click.argument("checkpoint", type=NamedPath())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--verify/--no-verify", default=True, help="Read every byte and check it [verify].")
def command(checkpoint: Path, as_json: bool, verify: bool) -> None:
    """Describe a checkpoint.

    CHECKPOINT is a checkpoint folder, or a run folder, whose latest checkpoint is meant.
    """
    from turret.models import model_config
    from turret.train.checkpoint import find_checkpoint, read_checkpoint, read_manifest

    path = find_checkpoint(checkpoint)
    manifest = read_manifest(path)
    described: dict[str, Any] = {
        "path": str(path),
        "model": manifest.model["kind"],
        "parameters": model_config(manifest.model["kind"], manifest.model["config"]).parameter_count(),
        "tokenizer": manifest.tokenizer,
        "step": manifest.step,
        "tokens_seen": manifest.tokens_seen,
        "turret": manifest.turret,
        "config": dict(manifest.model["config"]),
        "train": dict(manifest.train),
        "data": dict(manifest.data),
        "files": {name: {"bytes": f.bytes, "sha256": f.sha256} for name, f in manifest.files.items()},
        "verified": verify,
    }
    if verify:
        arrays = read_checkpoint(path).parameters
        described["tensors"] = {name: list(value.shape) for name, value in arrays.items()}
    if as_json:
        click.echo(json.dumps(described, indent=2))
        return
    for name, value in described.items():
        if not isinstance(value, dict):
            click.echo(f"{name}: {value}")
            continue
        click.echo(f"{name}:")
        for key, item in value.items():
            click.echo(f"  {key}: {item}")
