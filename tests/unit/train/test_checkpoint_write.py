"""What goes into a checkpoint comes out of it, or is refused before anything is written."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import turret
from turret.spi import CheckpointError, DTypeError, NonFiniteError
from turret.train.checkpoint import CheckpointContent, read_checkpoint, read_manifest, write_checkpoint

MakeContent = Callable[[int], CheckpointContent]
FACTS = ("model", "train", "tokenizer", "data", "step", "tokens_seen", "position", "random", "extra")


def test_everything_comes_back_bit_equal(tmp_path: Path, make_content: MakeContent) -> None:
    content = make_content(100)
    path = write_checkpoint(tmp_path, content)
    assert path == tmp_path / "step-00000100"
    back = read_checkpoint(path)
    assert back.path == path
    assert {name: getattr(back, name) for name in FACTS} == {name: getattr(content, name) for name in FACTS}
    for group in ("parameters", "optimizer"):
        got, want = getattr(back, group), getattr(content, group)
        assert list(got) == sorted(want)
        for name, array in want.items():
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
            assert got[name].tobytes() == array.tobytes()


def test_another_library_finds_the_same_arrays_and_digests(tmp_path: Path, make_content: MakeContent) -> None:
    content = make_content(3)
    path = write_checkpoint(tmp_path, content)
    np.testing.assert_array_equal(
        load_file(path / "model.safetensors")["head.weight"], content.parameters["head.weight"]
    )
    raw = json.loads((path / "manifest.json").read_text("utf-8"))
    assert (raw["format"], raw["version"], raw["turret"]) == ("turret-checkpoint", 1, turret.__version__)
    for name in ("model.safetensors", "optimizer.safetensors"):
        data = (path / name).read_bytes()
        assert raw["files"][name] == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3, 4)], ids=str)
def test_every_stored_dtype_and_shape(
    tmp_path: Path, make_content: MakeContent, dtype: str, shape: tuple[int, ...]
) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    back = read_checkpoint(write_checkpoint(tmp_path, replace(make_content(1), optimizer={"a": np.asarray(array)})))
    assert back.optimizer["a"].dtype == np.dtype(dtype)
    assert back.optimizer["a"].shape == shape
    np.testing.assert_array_equal(back.optimizer["a"], array)


@pytest.mark.parametrize(
    "view",
    [np.arange(12, dtype=np.float32).reshape(3, 4).T, np.arange(20, dtype=np.float32)[::3], np.arange(5, dtype=">f4")],
)
def test_strided_and_byte_swapped_arrays_keep_their_values(
    tmp_path: Path, make_content: MakeContent, view: np.ndarray
) -> None:
    back = read_checkpoint(write_checkpoint(tmp_path, replace(make_content(1), parameters={"a": view})))
    np.testing.assert_array_equal(back.parameters["a"], view)


def test_arrays_read_back_can_be_written_to(tmp_path: Path, make_content: MakeContent) -> None:
    back = read_checkpoint(write_checkpoint(tmp_path, make_content(1)))
    back.parameters["head.bias"][0] = 7
    assert read_checkpoint(tmp_path / "step-00000001").parameters["head.bias"][0] == 1


def test_no_optimizer_state_is_fine(tmp_path: Path, make_content: MakeContent) -> None:
    assert read_checkpoint(write_checkpoint(tmp_path, replace(make_content(1), optimizer={}))).optimizer == {}


def test_tuples_come_back_as_lists(tmp_path: Path, make_content: MakeContent) -> None:
    path = write_checkpoint(tmp_path, replace(make_content(1), extra={"betas": (0.9, 0.99)}))
    assert read_manifest(path).extra == {"betas": [0.9, 0.99]}


def test_the_same_step_is_replaced(tmp_path: Path, make_content: MakeContent) -> None:
    write_checkpoint(tmp_path, make_content(1))
    write_checkpoint(tmp_path, replace(make_content(1), extra={"again": True}))
    assert read_checkpoint(tmp_path / "step-00000001").extra == {"again": True}
    assert os.listdir(tmp_path) == ["step-00000001"]


def test_all_files_are_as_readable_as_the_folder(tmp_path: Path, make_content: MakeContent) -> None:
    path = write_checkpoint(tmp_path, make_content(1))
    folder = stat.S_IMODE(path.stat().st_mode)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {folder & 0o666}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks Linux which file a descriptor is")
def test_all_is_on_the_device_before_the_rename_and_the_rename_after(
    tmp_path: Path, make_content: MakeContent, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def recording_fsync(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def recording_rename(source: Path, target: Path) -> None:
        done.append(f"rename to {Path(target).name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "rename", recording_rename)
    write_checkpoint(tmp_path / "checkpoints", make_content(1))
    partial = f".step-00000001-{os.getpid()}.tmp"
    files = ["model.safetensors", "optimizer.safetensors", "manifest.json"]
    assert done == [tmp_path.name, *files, partial, "rename to step-00000001", "checkpoints"]


def refusals() -> list[Any]:
    nan = np.array([1, np.nan], np.float32)
    inf = np.array([np.inf], np.float64)
    return [
        pytest.param({"parameters": {"w": nan}}, NonFiniteError, "parameter 'w' holds inf or NaN", id="nan-parameter"),
        pytest.param({"optimizer": {"m": inf}}, NonFiniteError, "optimizer array 'm'", id="inf-moment"),
        pytest.param({"parameters": {"w": np.zeros(1, np.complex64)}}, DTypeError, "complex64", id="complex"),
        pytest.param({"parameters": {"w": np.array(["a"])}}, DTypeError, "parameter 'w' is <U1", id="text"),
        pytest.param(
            {"tokens_seen": 5}, CheckpointError, "tokens_seen is 5, but 768 in the data position", id="tokens"
        ),
        pytest.param({"step": 2}, CheckpointError, "step is 2, but 1 in the data position", id="step"),
        pytest.param({"position": {}}, CheckpointError, "but None in the data position", id="no-position"),
        pytest.param({"step": True}, CheckpointError, "'step' is bool", id="step-bool"),
        pytest.param({"step": -1}, CheckpointError, "step -1 is outside", id="negative"),
        pytest.param({"model": {"kind": "decoder"}}, CheckpointError, "'kind' and a mapping 'config'", id="no-config"),
        pytest.param({"extra": {"a": [np.float32(1)]}}, CheckpointError, r"extra.a\[0\]: .*float32", id="numpy-scalar"),
        pytest.param({"extra": {"a": float("nan")}}, CheckpointError, "extra.a: nan", id="nan-fact"),
        pytest.param({"extra": {1: 2}}, CheckpointError, "extra: the key 1 is int", id="int-key"),
        pytest.param({"data": {"text": "x" * (17 * 2**20)}}, CheckpointError, "over the limit", id="huge-manifest"),
    ]


@pytest.mark.parametrize(("change", "error", "message"), refusals())
def test_what_cannot_be_stored_is_refused_and_leaves_nothing(
    tmp_path: Path, make_content: MakeContent, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    write_checkpoint(tmp_path, make_content(1))
    with pytest.raises(error, match=message):
        write_checkpoint(tmp_path, replace(make_content(1), **change))
    assert os.listdir(tmp_path) == ["step-00000001"]
    assert read_checkpoint(tmp_path / "step-00000001").extra == make_content(1).extra


def test_a_file_in_the_way_is_named(tmp_path: Path, make_content: MakeContent) -> None:
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(CheckpointError, match=r"step-00000001: could not be written .*run"):
        write_checkpoint(tmp_path / "run", make_content(1))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"head.weight": (3, 5), "head.bias": (5,), "more": (1,)}, "no parameter 'more'"),
        ({"head.weight": (3, 5)}, "the model has no parameter 'head.bias'"),
        ({"head.weight": (5, 3), "head.bias": (5,)}, r"'head.weight' is \(3, 5\), the model wants \(5, 3\)"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(
    make_content: MakeContent, wanted: dict[str, tuple[int, ...]], message: str
) -> None:
    content = make_content(1)
    content.require_shapes({"head.weight": (3, 5), "head.bias": (5,)})
    with pytest.raises(CheckpointError, match=message):
        content.require_shapes(wanted)
