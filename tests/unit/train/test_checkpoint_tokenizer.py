"""A checkpoint may hold its tokenizer: a third file, verified like the others; one without it reads as before."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from turret.spi import CheckpointError
from turret.train.checkpoint import CheckpointContent, read_checkpoint, read_manifest, write_checkpoint
from turret.train.checkpoint.manifest import seal

MakeContent = Callable[[int], CheckpointContent]
TEXT = '{"version": "1.0", "model": "gr\u00fcn"}'


@pytest.fixture
def good(tmp_path: Path, make_content: MakeContent) -> Path:
    return write_checkpoint(tmp_path, replace(make_content(100), tokenizer="subword", tokenizer_json=TEXT))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    raw = json.loads((path / "manifest.json").read_text("utf-8"))
    change(raw)
    raw["manifest_sha256"] = seal(raw)
    (path / "manifest.json").write_text(json.dumps(raw), "utf-8")


def test_the_tokenizer_comes_back_and_is_recorded(good: Path) -> None:
    data = TEXT.encode()
    assert (good / "tokenizer.json").read_bytes() == data
    record = read_manifest(good).files["tokenizer.json"]
    assert (record.bytes, record.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    for optimizer in (True, False):
        assert read_checkpoint(good, optimizer=optimizer).tokenizer_json == TEXT


def test_a_checkpoint_without_one_has_two_files_and_none(tmp_path: Path, make_content: MakeContent) -> None:
    path = write_checkpoint(tmp_path, make_content(1))
    assert sorted(os.listdir(path)) == ["manifest.json", "model.safetensors", "optimizer.safetensors"]
    (path / "tokenizer.json").write_text(TEXT)  # not listed, so never opened
    assert read_checkpoint(path).tokenizer_json is None


def test_every_flipped_bit_is_found(good: Path) -> None:
    data = (good / "tokenizer.json").read_bytes()
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 1 << index % 8
        (good / "tokenizer.json").write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json: damaged or edited"):
            read_checkpoint(good)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), "is not there"),
        (lambda path: os.truncate(path, 3), "truncated: 3 bytes"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "not a regular file"),
        (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "a link inside a checkpoint"),
    ],
    ids=["missing", "truncated", "pipe", "link"],
)
def test_a_missing_or_foreign_file_is_named(good: Path, harm: Callable[[Path], object], message: str) -> None:
    harm(good / "tokenizer.json")
    with pytest.raises(CheckpointError, match=f"tokenizer.json.*{message}"):
        read_checkpoint(good)


def test_bytes_that_are_no_text_are_refused_even_with_a_fitting_record(good: Path) -> None:
    data = b'{"a": "\xff"}'
    (good / "tokenizer.json").write_bytes(data)
    record = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit(good, lambda raw: raw["files"].update({"tokenizer.json": record}))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not UTF-8 at offset 7"):
        read_checkpoint(good)


def test_a_claim_of_a_terabyte_is_refused_before_it_is_read(good: Path) -> None:
    os.truncate(good / "tokenizer.json", 2**40)
    edit(good, lambda raw: raw["files"].update({"tokenizer.json": {"bytes": 2**40, "sha256": "0" * 64}}))
    with pytest.raises(CheckpointError, match="over the limit of 268435456"):
        read_checkpoint(good)


def test_a_tokenizer_that_cannot_be_stored_leaves_nothing(tmp_path: Path, make_content: MakeContent) -> None:
    with pytest.raises(CheckpointError, match="lone surrogate at character 1"):
        write_checkpoint(tmp_path, replace(make_content(1), tokenizer="subword", tokenizer_json='"\ud800'))
    assert os.listdir(tmp_path) == []
