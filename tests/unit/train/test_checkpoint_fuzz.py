"""Whatever the bytes of a checkpoint are, reading it gives the checkpoint or a CheckpointError."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turret.spi import CheckpointError
from turret.train.checkpoint import CheckpointContent, read_checkpoint, write_checkpoint
from turret.train.checkpoint.manifest import seal

MakeContent = Callable[[int], CheckpointContent]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
fuzz = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def good(tmp_path: Path, make_content: MakeContent) -> Path:
    return write_checkpoint(tmp_path, make_content(100))


def read_or_refuse(path: Path) -> CheckpointContent | None:
    try:
        return read_checkpoint(path)
    except CheckpointError as error:
        assert str(path) in str(error)
        str(error).encode()  # printable anywhere: no lone surrogates
        return None


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


@fuzz
@given(data=st.data())
def test_a_resealed_manifest_with_any_value_changed(good: Path, data: st.DataObject) -> None:
    place = good / "manifest.json"
    original = place.read_bytes()
    raw = json.loads(original)
    *path, key = data.draw(st.sampled_from(places(raw)))
    parent = raw
    for part in path:
        parent = parent[part]
    if isinstance(parent, dict) and data.draw(st.booleans()):
        parent[data.draw(st.text())] = parent.pop(key)
    else:
        parent[key] = data.draw(JSON)
    raw["manifest_sha256"] = seal(raw)
    place.write_text(json.dumps(raw))
    got = read_or_refuse(good)
    place.write_bytes(original)
    if got is not None:
        assert got.step == got.position["step"] == 100
        assert got.tokens_seen == got.position["tokens_seen"]
        assert isinstance(got.model["kind"], str)


@fuzz
@given(data=st.data())
def test_a_manifest_with_bytes_cut_or_pasted(good: Path, data: st.DataObject) -> None:
    place = good / "manifest.json"
    original = place.read_bytes()
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(original))] * 2)))
    place.write_bytes(original[:begin] + data.draw(st.binary(max_size=20)) + original[end:])
    got = read_or_refuse(good)
    place.write_bytes(original)
    if got is not None:
        assert got.facts() == read_checkpoint(good).facts()


@fuzz
@given(
    header=st.binary(max_size=40)
    | st.dictionaries(
        st.sampled_from(("a", "b", "__metadata__", "")),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(("F32", "BF16", "F8_E4M3", "F4", "U16", "C64", "BOOL", "X", "")),
                "shape": st.lists(st.integers(-1, 3) | st.just(2**63), max_size=3),
                "data_offsets": st.lists(st.integers(-1, 9), min_size=2, max_size=2),
            }
        ),
        max_size=2,
    ).map(lambda raw: json.dumps(raw).encode()),
    length=st.none() | st.integers(0, 2**64 - 1),
    body=st.binary(max_size=9),
)
def test_an_array_file_of_any_content_with_a_fitting_digest(
    good: Path, header: bytes, length: int | None, body: bytes
) -> None:
    data = struct.pack("<Q", len(header) if length is None else length) + header + body
    (good / "model.safetensors").write_bytes(data)
    place = good / "manifest.json"
    raw = json.loads(place.read_bytes())
    raw["files"]["model.safetensors"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    raw["manifest_sha256"] = seal(raw)
    place.write_text(json.dumps(raw))
    got = read_or_refuse(good)
    if got is not None:
        assert {array.dtype.name for array in got.parameters.values()} <= {"float32", "bool"}
