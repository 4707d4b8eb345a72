"""A manifest tells the same text from another, and names the file that differs."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from turret.data.corpora import open_corpus
from turret.data.manifest import Manifest, Source
from turret.spi.errors import DataError


def manifest_of(folder: Path, **files: str) -> Manifest:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return Manifest.of(open_corpus([folder / name for name in files]))


def test_a_manifest_records_name_path_size_and_hash(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "a", x="hello", y="world!")
    assert manifest.sources[1] == Source(
        name="y", path=str(tmp_path / "a" / "y"), bytes=6, sha256=hashlib.sha256(b"world!").hexdigest()
    )


def test_a_manifest_survives_json(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "a", x="hello", y="world!")
    assert Manifest.from_dict(json.loads(json.dumps(manifest.to_dict()))) == manifest


def test_moved_and_renamed_files_are_the_same_text(tmp_path: Path) -> None:
    before, now = manifest_of(tmp_path / "a", x="one", y="two"), manifest_of(tmp_path / "b", p="one", q="two")
    assert before.differences(now) == ()
    before.require_same(now)


def test_every_difference_is_named(tmp_path: Path) -> None:
    before = manifest_of(tmp_path / "a", w="same", x="size", y="hash", z="gone")
    now = manifest_of(tmp_path / "b", w="same", x="sizes", y="HASH", v="new")
    x, y, z, v = before.differences(now)
    assert x.startswith("x (") and x.endswith("has 5 bytes, had 4")
    assert y.startswith("y (") and f"had {hashlib.sha256(b'hash').hexdigest()}" in y
    assert z.startswith("z (") and z.endswith("is missing")
    assert v.startswith("v (") and v.endswith("is new")
    with pytest.raises(DataError, match=re.escape(f"not the one this run was trained on: {x}; {y}")):
        before.require_same(now)


def test_another_order_is_another_text(tmp_path: Path) -> None:
    before = manifest_of(tmp_path / "a", x="one", y="two")
    now = replace(before, sources=before.sources[::-1])
    assert before.differences(now) == ("the files are the same but in another order",)


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    (a,), (b,) = manifest_of(tmp_path / "a", x="one").sources, manifest_of(tmp_path / "b", x="two").sources
    (c,) = manifest_of(tmp_path / "c", x="six").sources
    (only,) = Manifest(sources=(a, b)).differences(Manifest(sources=(a, c)))
    assert only.startswith(f"x ({c.path}) has SHA-256 {c.sha256}")


GOOD = {"name": "x", "path": "/x", "bytes": 3, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "want only 'sources'"),
        ({"sources": []}, "with entries"),
        ({"sources": [GOOD], "more": 1}, "want only 'sources'"),
        ({"sources": ["x"]}, "entry 0 is 'x'"),
        ({"sources": [GOOD, {"name": "x"}]}, "entry 1 .* exactly the keys"),
        ({"sources": [GOOD | {"name": 3}]}, "has name 3"),
        ({"sources": [GOOD | {"bytes": "3"}]}, "has bytes '3'"),
        ({"sources": [GOOD | {"bytes": True}]}, "has bytes True"),
        ({"sources": [GOOD | {"sha256": "0" * 63}]}, "want 64 hex digits"),
    ],
)
def test_malformed_manifests_are_refused(raw: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Manifest.from_dict(raw)
