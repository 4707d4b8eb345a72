"""Our own files of packed weights: every bit back, and damage named."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from turret.quant import PackedWeight, load_packed, save_packed
from turret.registry import OpenBackend
from turret.spi import CheckpointError, ConfigError, ScaleCode
from turret.tensor import tensor

Normal = Callable[..., Any]


def as_bytes(weight: PackedWeight) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in weight.arrays().items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.safetensors"


@pytest.fixture
def saved(plain: OpenBackend, path: Path, normal: Normal) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays and the metadata of a file with one weight, w, of coded scales."""
    save_packed(path, {"w": PackedWeight.pack(tensor(normal(33, 65)), scales="dynamic")})
    with safe_open(path, framework="numpy") as file:
        return load_file(path), file.metadata()


@pytest.mark.parametrize("scales", ["float32", "dynamic", "linear"])
def test_every_scale_code_comes_back_bit_for_bit(
    each: OpenBackend, normal: Normal, path: Path, scales: ScaleCode
) -> None:
    weights = {
        "blocks.0.up.weight": PackedWeight.pack(tensor(normal(300, 129)), block=32, scales=scales),
        "ü": PackedWeight.pack(tensor(normal(1, 1)), block=4096, scales=scales),
        "three": PackedWeight.pack(tensor(normal(3, 5, 7)), scales=scales),
    }
    save_packed(path, weights)
    again = load_packed(path)
    assert list(again) == list(weights)
    for name, weight in weights.items():
        assert as_bytes(again[name]) == as_bytes(weight)
        assert (again[name].shape, again[name].block, again[name].scale_code) == (weight.shape, weight.block, scales)
        assert again[name].backend is each
        assert again[name].unpack().numpy().tobytes() == weight.unpack().numpy().tobytes()


def test_a_file_is_for_every_backend(every: list[OpenBackend], normal: Normal, path: Path) -> None:
    weight = PackedWeight.pack(tensor(normal(33, 65), backend=every[0]), scales="linear")
    save_packed(path, {"w": weight})
    for backend in every:
        loaded = load_packed(path, backend=backend)["w"]
        assert loaded.backend is backend
        assert as_bytes(loaded) == as_bytes(weight)


def test_the_file_is_what_its_page_says(saved: tuple[dict[str, Any], dict[str, str]]) -> None:
    arrays, metadata = saved
    assert {name: (array.dtype.name, array.shape) for name, array in arrays.items()} == {
        "w.codes": ("uint8", (1073,)),
        "w.scales": ("uint8", (34,)),
        "w.group_scales": ("float32", (1,)),
        "w.offset": ("float32", ()),
    }
    assert (metadata["format"], metadata["version"]) == ("turret-nf4", "1")
    assert json.loads(metadata["weights"]) == {"w": {"shape": [33, 65], "block": 64, "scale_code": "dynamic"}}


def test_no_weights_are_a_file_too(plain: OpenBackend, path: Path) -> None:
    save_packed(path, {})
    assert load_packed(path) == {}


def test_a_file_is_replaced(plain: OpenBackend, path: Path, normal: Normal) -> None:
    for name in ("old", "new"):
        save_packed(path, {name: PackedWeight.pack(tensor(normal(4, 64)))})
        assert list(load_packed(path)) == [name]
    assert os.listdir(path.parent) == [path.name]


def test_a_file_is_as_readable_as_its_folder(plain: OpenBackend, path: Path) -> None:
    path.parent.chmod(0o755)
    save_packed(path, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_failed_write_leaves_the_old_file(plain: OpenBackend, path: Path, normal: Normal) -> None:
    weight = PackedWeight.pack(tensor(normal(4, 64)))
    save_packed(path, {"w": weight})
    before = path.read_bytes()
    wrong: list[Any] = ["", 5, None]
    for name in wrong:
        with pytest.raises(ConfigError, match="wanted text that is not empty"):
            save_packed(path, {"v": weight, name: weight})
    with pytest.raises(CheckpointError, match="could not be written"):
        save_packed(path / "inside", {"w": weight})
    assert (path.read_bytes(), os.listdir(path.parent)) == (before, [path.name])


FACT = {"shape": [33, 65], "block": 64, "scale_code": "dynamic"}


@pytest.mark.parametrize(
    ("arrays", "metadata", "message"),
    [
        ({"w.codes": None}, {}, r"weight 'w': .*missing \['codes'\]"),
        ({"w.offset": None}, {}, r"weight 'w': .*missing \['offset'\]"),
        ({"w.codes": np.zeros(9, np.uint8)}, {}, r"weight 'w': codes .*got shape \(9,\); wanted \(1073,\)"),
        ({"w.scales": np.zeros(34, np.float32)}, {}, r"weight 'w': scales .*got dtype float32; wanted uint8"),
        ({"w.offset": np.array(np.inf, np.float32)}, {}, r"weight 'w': offset .*NaN or infinite"),
        ({"w.more": np.zeros(1, np.uint8)}, {}, r"'w.more' belongs to no weight"),
        ({}, {"format": "pt"}, r"format 'pt', not 'turret-nf4'; turret.quant.bitsandbytes reads"),
        ({}, {"version": "2"}, r"format version '2'; wanted 1: install a newer core"),
        ({}, {"weights": "{"}, r"'weights' is not valid JSON"),
        ({}, {"weights": "[" * 10**5}, r"'weights' is not valid JSON"),
        ({}, {"weights": "[]"}, r"'weights' is list; wanted a mapping"),
        ({}, {"weights": json.dumps({"w": 5})}, r"weight 'w' is described by 5; wanted shape, block, scale_code"),
        ({}, {"weights": json.dumps({"w": {**FACT, "block": 48}})}, r"weight 'w': .*blocks of 48; wanted one of 32"),
        ({}, {"weights": json.dumps({"w": {**FACT, "block": [64]}})}, r"weight 'w': .*blocks of \[64\]"),
        ({}, {"weights": json.dumps({"w": {**FACT, "shape": [33, 66]}})}, r"weight 'w': .*wanted \(1089,\)"),
        ({}, {"weights": json.dumps({"w": {**FACT, "shape": "33"}})}, r"weight 'w': .*got shape '33'"),
        ({}, {"weights": json.dumps({"w": {**FACT, "scale_code": "float32"}})}, r"weight 'w': .*unknown"),
        ({}, {"weights": json.dumps({"w": {**FACT, "scale_code": "exact"}})}, r"weight 'w': .*wanted one of float32"),
        ({}, {"weights": json.dumps({"w": {**FACT, "scale_code": {}}})}, r"weight 'w': .*scales \{\}"),
    ],
)
def test_damage_is_named(
    saved: Any, path: Path, arrays: dict[str, Any], metadata: dict[str, str], message: str
) -> None:
    whole = {name: array for name, array in {**saved[0], **arrays}.items() if array is not None}
    save_file(whole, path, metadata={**saved[1], **metadata})
    with pytest.raises(CheckpointError, match=message) as caught:
        load_packed(path)
    assert str(caught.value).startswith(str(path))


def test_what_is_no_file_of_weights_is_named(saved: Any, path: Path) -> None:
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:-1], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="not a safetensors file"):
            load_packed(path)
    save_file({"w": np.zeros(3)}, path)
    with pytest.raises(CheckpointError, match="format None, not 'turret-nf4'"):
        load_packed(path)
    path.unlink()
    with pytest.raises(CheckpointError, match="is not there; give a safetensors file"):
        load_packed(path)
    path.mkdir()
    with pytest.raises(CheckpointError, match="is no regular file"):
        load_packed(path)
