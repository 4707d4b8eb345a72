"""Our own files of packed weights: every bit back, and damage named."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from turret.quant import PackedWeight, array_files, load_packed, save_packed
from turret.registry import OpenBackend
from turret.spi import CheckpointError, ConfigError, ScaleCode
from turret.tensor import tensor

Normal = Callable[..., Any]


NO_NAMES: list[Any] = ["", 5, None, b"w", "__metadata__", "a\ud800", "a.quant_state.bitsandbytes__nf4", 10**5000]
FILELESS = ["", ".", "/"]


def as_bytes(weight: PackedWeight) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in weight.arrays().items()}


def edit_header(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])


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


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o002])
def test_a_file_is_as_readable_as_any_new_file(plain: OpenBackend, path: Path, mask: int) -> None:
    path.parent.chmod(0o755)
    before = os.umask(mask)
    try:
        save_packed(path, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_failed_write_leaves_the_old_file(plain: OpenBackend, path: Path, normal: Normal) -> None:
    weight = PackedWeight.pack(tensor(normal(4, 64)))
    save_packed(path, {"w": weight})
    before = path.read_bytes()
    for name in NO_NAMES:
        with pytest.raises(ConfigError, match="wanted text that is not empty"):
            save_packed(path, {"v": weight, name: weight})
    values: list[Any] = [None, np.zeros(3), weight.packed]
    for value in values:
        with pytest.raises(ConfigError, match=f"v to save is {type(value).__name__}; wanted a PackedWeight"):
            save_packed(path, {"w": weight, "v": value})
    with pytest.raises(ConfigError, match="to save are list; wanted a mapping"):
        save_packed(path, [weight])  # type: ignore[arg-type]
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
        ({}, {"weights": json.dumps({"w": {**FACT, "shape": [10**4000] * 3}})}, r"weight 'w': .*product is below 2"),
        ({}, {"weights": json.dumps({"w": {**FACT, "shape": [2] * 10**5}})}, r"weight 'w': .*wanted 1 to 8 whole"),
        ({}, {"weights": json.dumps({"w": {**FACT, "shape": [33, -65]}})}, r"weight 'w': .*numbers above 0"),
        ({}, {"weights": json.dumps({"w": {**FACT, "block": -64}})}, r"weight 'w': .*blocks of -64; wanted one of 32"),
        ({}, {"weights": json.dumps({"w": {**FACT, "block": 10**4000}})}, r"weight 'w': .*blocks of 10+; wanted one"),
        ({}, {"weights": '{"w": ' + "1" * 5000 + "}"}, r"'weights' is not valid JSON"),
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
    assert len(str(caught.value)) < len(str(path)) + 400


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


def test_a_dtype_that_numpy_lacks_is_named(saved: Any, path: Path) -> None:
    edit_header(path, lambda header: header["w.codes"].update(dtype="F8_E4M3"))
    with pytest.raises(CheckpointError, match=r"safetensors: weight 'w': array 'w.codes' has dtype F8_E4M3; wanted"):
        load_packed(path)


def test_a_header_that_is_no_text_is_named(saved: Any, path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"turret-nf4", b"turret-\xff\xff\xff"))
    with pytest.raises(CheckpointError, match=r"weights.safetensors: not a safetensors file"):
        load_packed(path)


def test_an_error_of_the_backend_is_not_taken_for_one_of_the_file(
    saved: Any, path: Path, plain: OpenBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("the device is gone")

    monkeypatch.setattr(PackedWeight, "from_arrays", refuse)
    with pytest.raises(OSError, match="the device is gone"):
        load_packed(path)
    with pytest.raises(OSError, match="the body"), array_files.open_arrays(path):
        raise OSError("the body")


def test_two_threads_may_save_one_file(
    plain: OpenBackend, path: Path, normal: Normal, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = PackedWeight.pack(tensor(normal(4, 64)))
    both = threading.Barrier(2)

    def meet(*given: Any, **named: Any) -> None:
        save_file(*given, **named)
        both.wait(timeout=30)

    monkeypatch.setattr("turret.quant.array_files.save_file", meet)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(save_packed, path, {name: weight}) for name in "ab"]:
            done.result(timeout=60)
    assert list(load_packed(path)) in (["a"], ["b"])
    assert os.listdir(path.parent) == [path.name]


def test_the_file_and_then_its_folder_are_flushed(
    plain: OpenBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []

    def note(descriptor: int) -> None:
        facts = os.fstat(descriptor)
        flushed.append(("folder" if stat.S_ISDIR(facts.st_mode) else "file", facts.st_ino, path.exists()))

    monkeypatch.setattr(os, "fsync", note)
    save_packed(path, {})
    assert flushed == [("file", path.stat().st_ino, False), ("folder", path.parent.stat().st_ino, True)]


@pytest.mark.parametrize("name", [*FILELESS, "a\0b", "a\ud800"])
def test_a_path_that_names_no_file_is_refused(plain: OpenBackend, tmp_path: Path, name: str) -> None:
    before = sorted(os.listdir("."))
    given = name if name in FILELESS else f"{tmp_path}/{name}"
    with pytest.raises(CheckpointError, match=r"names no file|could not be written"):
        save_packed(given, {})
    with pytest.raises(CheckpointError, match=r"is no regular file|is not there"):
        load_packed(given)
    assert (sorted(os.listdir(".")), os.listdir(tmp_path)) == (before, [])
