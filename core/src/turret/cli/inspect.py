"""`turret inspect`: what a model, a checkpoint or an adapter is, read from its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .options import NamedPath


@click.command()
@click.argument("model", type=NamedPath())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--verify/--no-verify",
    default=None,
    help="Read every tensor and check it [checkpoints of turret: verify; everything else: no-verify].",
)
def command(model: Path, as_json: bool, verify: bool | None) -> None:
    """Describe a model or a checkpoint.

    MODEL is a checkpoint or run folder of turret (the latest checkpoint is meant, and what a fine-tuning run wrote), a
    folder in a Hugging Face layout, an adapter's folder, or a GGUF file. No model is built: files larger than memory
    are read one tensor at a time. Verifying looks for numbers that are NaN or infinite, and compares the bytes of a
    checkpoint with what was written.
    """
    described = _described(model, verify)
    if as_json:
        click.echo(json.dumps(described, indent=2))
    else:
        _print(described)


def _described(path: Path, verify: bool | None) -> dict[str, Any]:
    from turret.models.weights.adapter_files import CONFIG
    from turret.spi import CheckpointError
    from turret.train.opening import is_checkpoint

    from .description import describe_adapter, describe_published

    outputs = _outputs(path, verify=bool(verify))
    if is_checkpoint(path):
        return _checkpoint(path, verify=verify is not False) | outputs
    if (path / CONFIG).is_file():
        return describe_adapter(path, verify=bool(verify))
    if outputs and not (path / "config.json").exists():
        return {"path": str(path), "form": "run"} | outputs
    if path.is_dir() and not (path / "config.json").exists():
        raise CheckpointError(
            f"{path}: is no model; wanted a checkpoint or run folder, a folder with config.json, or an adapter's"
        )
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: weights alone; give their folder, which has config.json too")
    if not path.exists():
        raise CheckpointError(f"{path} does not exist; give a model's folder, a checkpoint or a GGUF file")
    return describe_published(path, verify=bool(verify))


def _outputs(path: Path, *, verify: bool) -> dict[str, Any]:
    """What a fine-tuning run left in its folder, by the name of the folder inside."""
    from turret.models.weights.adapter_files import CONFIG
    from turret.train.opening import ADAPTER, MERGED, is_checkpoint

    from .description import describe_adapter, describe_published

    found = {}
    if (path / ADAPTER / CONFIG).is_file():
        found[ADAPTER] = describe_adapter(path / ADAPTER, verify=verify)
    if (path / MERGED / "config.json").is_file():
        found[MERGED] = describe_published(path / MERGED, verify=verify)
    elif is_checkpoint(path / MERGED):
        found[MERGED] = _checkpoint(path / MERGED, verify=verify)
    return found


def _checkpoint(path: Path, *, verify: bool) -> dict[str, Any]:
    from turret.models import model_config
    from turret.models.weights.tensor_writer import require_finite
    from turret.train.checkpoint import find_checkpoint, read_checkpoint, read_manifest
    from turret.train.checkpoint.content import FINETUNE

    from .description import config_facts

    path = find_checkpoint(path)
    manifest = read_manifest(path)
    config = model_config(manifest.model["kind"], manifest.model["config"])
    described: dict[str, Any] = {
        "path": str(path),
        "form": "checkpoint",
        "model": manifest.model["kind"],
        "parameters": config.parameter_count(),
        **config_facts(config),
        "tokenizer": manifest.tokenizer,
        "chat_template": False,
        "step": manifest.step,
        "tokens_seen": manifest.tokens_seen,
        "turret": manifest.turret,
        "config": dict(manifest.model["config"]),
        "train": dict(manifest.train),
        "data": dict(manifest.data),
        "files": {name: {"bytes": f.bytes, "sha256": f.sha256} for name, f in manifest.files.items()},
        "verified": verify,
    }
    if FINETUNE in manifest.extra:
        described["finetune"] = manifest.extra[FINETUNE]
    if verify:
        arrays = read_checkpoint(path).parameters
        for name, array in arrays.items():
            if array.dtype.kind == "f":
                require_finite(array, f"{path}: tensor {name!r:.80}")
        described["stored_parameters"] = sum(array.size for array in arrays.values())
        described["tensors"] = {name: list(value.shape) for name, value in arrays.items()}
    return described


def _print(described: dict[str, Any], indent: str = "") -> None:
    """A line a fact; what comes from a file is shown, not obeyed."""
    from .screen import visible

    for name, value in described.items():
        if isinstance(value, dict) and value:
            click.echo(f"{indent}{visible(str(name))}:")
            _print(value, indent + "  ")
        else:
            click.echo(f"{indent}{visible(str(name))}: {visible(str(value))}")
