"""No damaged, edited or foreign checkpoint is read, and each is refused with the file and the reason."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turret.spi import CheckpointError
from turret.train.checkpoint import CheckpointContent, read_checkpoint, read_manifest, write_checkpoint
from turret.train.checkpoint.manifest import seal

MakeContent = Callable[[int], CheckpointContent]
FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors")


@pytest.fixture
def good(tmp_path: Path, make_content: MakeContent) -> Path:
    return write_checkpoint(tmp_path, make_content(100))


def edit(path: Path, change: Callable[[dict[str, Any]], object], *, resealed: bool = True) -> None:
    """Change the manifest, with a seal that fits again unless told otherwise."""
    place = path / "manifest.json"
    raw = json.loads(place.read_text("utf-8"))
    change(raw)
    if resealed:
        raw["manifest_sha256"] = seal(raw)
    place.write_text(json.dumps(raw), "utf-8")


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_wherever_it_is(good: Path, name: str) -> None:
    place = good / name
    facts = read_manifest(good).facts()
    data = place.read_bytes()
    for index in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[index] ^= 1 << index % 8
        place.write_bytes(damaged)
        try:
            back = read_checkpoint(good)
        except CheckpointError as error:
            assert name in str(error)
        else:  # \u00fc and \u00FC are the same letter
            assert (name, back.facts()) == ("manifest.json", facts)
    place.write_bytes(data)
    assert read_checkpoint(good).facts() == facts


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(good: Path, name: str) -> None:
    data = (good / name).read_bytes()
    for length in (0, 1, len(data) // 2, len(data) - 2):
        (good / name).write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=name):
            read_checkpoint(good)


def test_a_truncated_array_file_says_so(good: Path) -> None:
    os.truncate(good / "model.safetensors", 40)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: truncated: 40 bytes, not \d+; use another"):
        read_checkpoint(good)


def test_a_longer_file_says_so(good: Path) -> None:
    with (good / "optimizer.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointError, match="longer than written"):
        read_checkpoint(good)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(good: Path, name: str) -> None:
    (good / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is not there"):
        read_checkpoint(good)


def test_a_file_that_is_not_listed_is_never_opened(good: Path) -> None:
    (good / "notes.txt").write_text("mine")
    os.mkfifo(good / "pipe")
    assert read_checkpoint(good).step == 100


@pytest.mark.parametrize("name", FILES)
def test_links_and_pipes_are_refused(good: Path, name: str) -> None:
    shutil.move(good / name, good.parent / "elsewhere")
    (good / name).symlink_to(good.parent / "elsewhere")
    with pytest.raises(CheckpointError, match=f"{name}: a link inside a checkpoint"):
        read_checkpoint(good)
    (good / name).unlink()
    os.mkfifo(good / name)
    with pytest.raises(CheckpointError, match=f"{name}: not a regular file"):
        read_checkpoint(good)
    (good / name).unlink()
    (good / name).mkdir()
    with pytest.raises(CheckpointError, match=f"{name}: not a regular file"):
        read_checkpoint(good)


def test_a_huge_manifest_is_not_read(good: Path) -> None:
    os.truncate(good / "manifest.json", 2**40)
    with pytest.raises(CheckpointError, match="over the limit of 16777216"):
        read_manifest(good)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[1]", "a list, not 'turret-checkpoint'"),
        ('{"format": "safetensors"}', "format 'safetensors', not 'turret-checkpoint'; this folder was not written by"),
        ('{"format": "turret-checkpoint", "format": "turret-checkpoint"}', "'format' is there twice"),
        ('{"format": NaN}', "NaN is not JSON"),
        ('{"format": "turret-checkpoint", "step": 1e999}', "not valid JSON"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ("1" * 5000, "not valid JSON"),
        ('{"format": "turret-checkpoint"}', "format version None"),
        ('{"format": "turret-checkpoint", "version": true}', "format version True"),
    ],
    ids=range(11),
)
def test_a_manifest_that_is_none_is_refused(good: Path, text: str, message: str) -> None:
    (good / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(good)


def test_a_manifest_in_another_encoding_is_refused(good: Path) -> None:
    (good / "manifest.json").write_bytes((good / "manifest.json").read_text("utf-8").encode("utf-16"))
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read_checkpoint(good)


def test_a_newer_version_says_which_turret_reads_it(good: Path) -> None:
    edit(good, lambda raw: raw.update(version=2, turret="9.1.0", unheard={"of": 1}), resealed=False)
    with pytest.raises(CheckpointError, match=r"format version 2, written by turret '9\.1\.0'.*install that version"):
        read_checkpoint(good)


def test_an_edited_manifest_is_found(good: Path) -> None:
    edit(good, lambda raw: raw["train"].update(lr=1e-2), resealed=False)
    with pytest.raises(CheckpointError, match=r"manifest\.json: edited or damaged"):
        read_checkpoint(good)


def test_a_reformatted_manifest_is_the_same_manifest(good: Path) -> None:
    edit(good, lambda raw: raw, resealed=False)
    assert read_checkpoint(good).step == 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.update(step="100"), "'step' is str, not int"),
        (lambda raw: raw.update(tokens_seen=1), "tokens_seen is 1, but 76800 in the data position"),
        (lambda raw: raw["position"].update(step=99), "step is 100, but 99 in the data position"),
        (lambda raw: raw.pop("random"), "'random' is missing"),
        (lambda raw: raw.update(surprise=1), "unknown key 'surprise'"),
        (lambda raw: raw.update(turret=3), "'turret' must be the version"),
        (lambda raw: raw.update(files=[]), "'files' is list"),
        (lambda raw: raw["files"].pop("model.safetensors"), "not model.safetensors and optimizer.safetensors"),
        (lambda raw: raw["files"].update({"../x": 1}), "'../x' leads out of the checkpoint"),
        (lambda raw: raw["files"].update({"/etc/passwd": 1}), "leads out of the checkpoint"),
        (lambda raw: raw["files"].update({"a\\b": 1}), "leads out of the checkpoint"),
        (lambda raw: raw["files"].update({"..": 1}), "leads out of the checkpoint"),
        (lambda raw: raw["files"].update({"a\0b": 1}), "leads out of the checkpoint"),
        (lambda raw: raw["files"].update({"third.bin": 1}), r"lists \['model.safetensors'"),
        (lambda raw: raw["files"].update({"model.safetensors": {"bytes": -1, "sha256": "0" * 64}}), "is not a size"),
        (lambda raw: raw["files"].update({"model.safetensors": {"bytes": 1, "sha256": "0"}}), "is not a size"),
        (lambda raw: raw["files"].update({"model.safetensors": {"bytes": 1}}), "must be 'bytes' and 'sha256'"),
        (lambda raw: (raw.update(step=50), raw["position"].update(step=50)), "step 50 in a folder named step-00000100"),
    ],
    ids=range(18),
)
def test_a_forged_manifest_is_refused_even_with_a_fitting_seal(
    good: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(good, change)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(good)


def test_the_manifest_alone_needs_no_arrays(good: Path) -> None:
    (good / "model.safetensors").unlink()
    manifest = read_manifest(good)
    assert (manifest.step, manifest.model["kind"]) == (100, "decoder")
    assert manifest.files["optimizer.safetensors"].bytes == (good / "optimizer.safetensors").stat().st_size


def test_a_model_that_is_only_used_needs_no_optimizer_file(good: Path) -> None:
    (good / "optimizer.safetensors").unlink()
    content = read_checkpoint(good, optimizer=False)
    assert (sorted(content.parameters), content.optimizer) == (["head.bias", "head.weight"], {})


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"neither a manifest\.json nor checkpoints; give a checkpoint"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(("name", "message"), [("nowhere", "does not exist"), ("file", "is a file"), ("a\0b", "exist")])
def test_a_path_that_is_no_folder_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(tmp_path / name)
