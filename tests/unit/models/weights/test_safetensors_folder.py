"""Directories with a safetensors checkpoint: one file or shards, and no way out of the directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from turret.models.weights.safetensors_file import SafetensorsFiles
from turret.models.weights.source import TensorSource
from turret.spi import CheckpointError

Array = np.ndarray[Any, Any]


def refused(path: Path, *words: str) -> None:
    """Opening raises CheckpointError, in one line that names the file and says these words."""
    with pytest.raises(CheckpointError) as caught:
        SafetensorsFiles(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    for word in words:
        assert word in message


def shards(folder: Path, weight_map: Any, **files: dict[str, Array]) -> Path:
    for stem, arrays in files.items():
        save_file(arrays, folder / f"{stem}.safetensors")
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


ONE, TWO = {"a": np.ones((2, 3), np.float32)}, {"b": np.zeros(4, np.float16)}
MAP = {"a": "one.safetensors", "b": "two.safetensors"}


def test_one_shard_or_many_are_the_same_source(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    (tmp_path / "one").mkdir()
    shards(tmp_path / "many", MAP, one=ONE, two=TWO)
    save_file({**ONE, **TWO}, tmp_path / "one" / "model.safetensors")
    index = tmp_path / "many" / "model.safetensors.index.json"
    for path in (tmp_path / "many", index, tmp_path / "one", str(tmp_path / "one" / "model.safetensors")):
        source: TensorSource
        with SafetensorsFiles(path) as source:
            assert sorted(source.names()) == ["a", "b"] and source.path == Path(path)
            np.testing.assert_array_equal(source.read("a"), ONE["a"])
            np.testing.assert_array_equal(source.read("b"), TWO["b"].astype(np.float32))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_pickles_stay_closed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    refused(tmp_path, "pickle files are not opened because they can run code", "convert to safetensors")
    save_file(ONE, tmp_path / "model.safetensors")
    assert SafetensorsFiles(tmp_path).names() == ("a",)


def test_a_pickle_by_name_stays_closed(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"N.")
    refused(tmp_path / "model.pt", "can run code")


def test_what_is_missing_or_no_file(tmp_path: Path) -> None:
    refused(tmp_path, "holds neither")
    refused(tmp_path / "x.safetensors", "no such file")
    (tmp_path / "model.safetensors").mkdir()
    refused(tmp_path, "no regular file")
    with pytest.raises(CheckpointError):
        SafetensorsFiles("a\0b")


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_pipe_does_not_block(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    refused(tmp_path, "no regular file")
    refused(tmp_path / name, "no regular file")


def test_a_shard_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    shards(tmp_path, MAP, one=ONE)
    os.mkfifo(tmp_path / "two.safetensors")
    refused(tmp_path, "two.safetensors: got no regular file")


@pytest.mark.parametrize(
    "shard",
    [1, None, "", ".", "..", "one", "one.bin", "sub", ".one.safetensors", "a\0.safetensors", "a\n.safetensors"]
    + [f"{before}one.safetensors" for before in ("../", "/", "sub/", "sub\\", "C:")],
)
def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path, shard: Any) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for place in (tmp_path, folder, folder / "sub"):
        save_file(ONE, place / "one.safetensors")
    refused(shards(folder, {"a": shard}), "plain name")


def test_shards_may_be_links_as_in_a_cache_of_downloads(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots" / "main"
    folder.mkdir(parents=True)
    save_file(ONE, tmp_path / "0a1b")
    shards(folder, {"a": "one.safetensors"})
    (folder / "one.safetensors").symlink_to("../../0a1b")
    with SafetensorsFiles(folder) as file:
        assert file.read("a").tobytes() == ONE["a"].tobytes()


def test_shards_linked_in_a_ring_are_refused(tmp_path: Path) -> None:
    shards(tmp_path, MAP, one=ONE)
    (tmp_path / "two.safetensors").symlink_to("two.safetensors")
    refused(tmp_path, "two.safetensors")


DISAGREEMENTS: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "shard missing": (MAP, {"one": ONE}, "two.safetensors: there is no such file"),
    "tensor missing": ({**MAP, "c": "one.safetensors"}, {"one": ONE, "two": TWO}, "'c' in 'one.safetensors'"),
    "tensor elsewhere": ({"a": "two.safetensors", "b": "one.safetensors"}, {"one": ONE, "two": TWO}, "puts it in"),
    "tensor unknown": (MAP, {"one": ONE, "two": {**TWO, "c": TWO["b"]}}, "'c', and the index does not have it"),
    "tensor twice": (MAP, {"one": ONE, "two": {**TWO, **ONE}}, "'a' is in 'one.safetensors' too"),
}


@pytest.mark.parametrize(("weight_map", "files", "word"), DISAGREEMENTS.values(), ids=DISAGREEMENTS.keys())
def test_index_and_shards_that_disagree_are_refused(
    tmp_path: Path, weight_map: dict[str, str], files: dict[str, Any], word: str
) -> None:
    refused(shards(tmp_path, weight_map, **files), word)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}"]
    + [
        f'{{"weight_map": {value}}}'
        for value in ("{}", '["a"]', '{"a": "x", "a": "x"}', r'{"a": "\ud800.safetensors"}')
    ],
)
def test_a_malformed_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refused(tmp_path)
