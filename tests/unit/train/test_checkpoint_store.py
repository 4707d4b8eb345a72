"""A run's checkpoints: the last N stay, the newest good one is found, and readers never see half of one."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from turret.spi import CheckpointError, ConfigError, NonFiniteError
from turret.train.checkpoint import CheckpointContent, CheckpointStore, find_checkpoint, read_checkpoint

MakeContent = Callable[[int], CheckpointContent]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run", keep=2)


def damage(path: Path) -> None:
    os.truncate(path / "model.safetensors", 20)


def test_nothing_is_created_before_the_first_save(store: CheckpointStore) -> None:
    assert store.steps() == []
    assert store.latest_good() == (None, ())
    assert not store.folder.parent.exists()


def test_the_last_n_stay(store: CheckpointStore, make_content: MakeContent) -> None:
    for step in (100, 200, 300, 400):
        store.save(make_content(step))
    assert sorted(os.listdir(store.folder)) == ["latest", "step-00000300", "step-00000400"]
    assert (store.folder / "latest").read_text() == "step-00000400\n"


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_none_is_refused(tmp_path: Path, keep: int) -> None:
    with pytest.raises(ConfigError, match="keep at least 1"):
        CheckpointStore(tmp_path, keep=keep)


def test_a_failed_save_deletes_nothing(store: CheckpointStore, make_content: MakeContent) -> None:
    store = CheckpointStore(store.folder.parent, keep=1)
    store.save(make_content(1))
    with pytest.raises(NonFiniteError):
        store.save(replace(make_content(2), parameters={"w": np.array([np.nan], np.float32)}))
    assert sorted(os.listdir(store.folder)) == ["latest", "step-00000001"]
    checkpoint, skipped = store.latest_good()
    assert checkpoint is not None
    assert (checkpoint.step, skipped) == (1, ())


def test_a_run_folder_means_its_latest_checkpoint(store: CheckpointStore, make_content: MakeContent) -> None:
    path = store.save(make_content(1))
    path = store.save(make_content(2))
    run = store.folder.parent
    assert find_checkpoint(run) == find_checkpoint(store.folder) == find_checkpoint(path) == path
    assert read_checkpoint(run).step == read_checkpoint(path).step == 2


def test_without_a_pointer_the_newest_is_the_latest(store: CheckpointStore, make_content: MakeContent) -> None:
    store.save(make_content(1))
    path = store.save(make_content(2))
    (store.folder / "latest").unlink()
    assert find_checkpoint(store.folder.parent) == path


@pytest.mark.parametrize("text", [b"step-00000009\n", b"../../elsewhere\n", b"", b"\xff\0", b"x" * 10_000])
def test_a_pointer_to_nowhere_is_refused(store: CheckpointStore, make_content: MakeContent, text: bytes) -> None:
    path = store.save(make_content(1))
    (store.folder / "latest").write_bytes(text)
    with pytest.raises(CheckpointError, match=f"latest: names .* which is not there; give a checkpoint: {path}"):
        find_checkpoint(store.folder.parent)
    checkpoint, _ = store.latest_good()
    assert checkpoint is not None
    assert checkpoint.step == 1


def test_damaged_checkpoints_are_skipped_and_named(store: CheckpointStore, make_content: MakeContent) -> None:
    good, bad = store.save(make_content(1)), store.save(make_content(2))
    damage(bad)
    checkpoint, skipped = store.latest_good()
    assert checkpoint is not None
    assert checkpoint.path == good
    assert [path for path, _ in skipped] == [bad]
    assert "model.safetensors: truncated" in skipped[0][1]
    damage(good)
    checkpoint, skipped = store.latest_good()
    assert checkpoint is None
    assert [path for path, _ in skipped] == [bad, good]


def test_rewinding_leaves_the_later_checkpoints_behind(store: CheckpointStore, make_content: MakeContent) -> None:
    store = CheckpointStore(store.folder.parent, keep=5)
    for step in (50, 100):
        store.save(make_content(step))
    store.rewind(50)
    assert read_checkpoint(store.folder.parent).step == 50
    store.save(make_content(60))
    checkpoint, _ = store.latest_good()
    assert checkpoint is not None
    assert checkpoint.step == 60
    assert store.steps() == [50, 60, 100]
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 70; there are \[50, 60, 100\]"):
        store.rewind(70)


def test_checkpoints_that_were_left_behind_are_not_counted(store: CheckpointStore, make_content: MakeContent) -> None:
    for step in (10, 20, 100):
        store.save(make_content(step))
    store.rewind(20)
    store.save(make_content(30))
    assert store.steps() == [20, 30, 100]
    for step in (100, 110, 120):
        store.save(replace(make_content(step), extra={"second": True}))
    assert store.steps() == [110, 120]


def test_if_only_one_left_behind_is_good_it_is_taken(store: CheckpointStore, make_content: MakeContent) -> None:
    paths = [store.save(make_content(step)) for step in (50, 100)]
    store.rewind(50)
    damage(paths[0])
    checkpoint, skipped = store.latest_good()
    assert checkpoint is not None
    assert checkpoint.step == 100
    assert [path for path, _ in skipped] == [paths[0]]


def test_what_killed_writers_left_is_ignored_and_then_removed(
    store: CheckpointStore, make_content: MakeContent
) -> None:
    path = store.save(make_content(1))
    for name in (".step-00000002-77.tmp", ".step-00000001-77.trash", ".step-00000001-77.old"):
        shutil.copytree(path, store.folder / name)
    (store.folder / ".latest.tmp").write_text("step-0000")
    (store.folder / "notes").mkdir()
    checkpoint, skipped = store.latest_good()
    assert checkpoint is not None
    assert (checkpoint.step, store.steps(), skipped) == (1, [1], ())
    store.save(make_content(3))
    assert sorted(os.listdir(store.folder)) == ["latest", "notes", "step-00000001", "step-00000003"]


def test_a_checkpoint_moved_aside_by_a_killed_writer_is_found(
    store: CheckpointStore, make_content: MakeContent
) -> None:
    path = store.save(make_content(1))
    path.rename(store.folder / ".step-00000001-77.old")
    checkpoint, _ = store.latest_good()
    assert checkpoint is not None
    assert checkpoint.step == 1
    store.save(make_content(2))
    assert store.steps() == [1, 2]


def test_a_checkpoint_that_is_a_link_is_unlinked_not_followed(
    store: CheckpointStore, make_content: MakeContent
) -> None:
    path = store.save(make_content(1))
    elsewhere = store.folder.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    for step in (2, 3):
        store.save(make_content(step))
    assert store.steps() == [2, 3]
    assert (elsewhere / "manifest.json").exists()


def test_a_reader_beside_the_writer_always_gets_a_whole_one(store: CheckpointStore, make_content: MakeContent) -> None:
    store.save(make_content(1))
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not done.is_set():
            checkpoint, _ = store.latest_good()
            assert checkpoint is not None
            np.testing.assert_array_equal(checkpoint.parameters["head.bias"], checkpoint.step)
            assert checkpoint.optimizer["count"] == checkpoint.step
            seen.append(checkpoint.step)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for step in range(1, 31):
            store.save(make_content(step))
    finally:
        done.set()
        reader.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 1


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(
    store: CheckpointStore, make_content: MakeContent, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turret.train.checkpoint import store as module

    store.save(make_content(1))
    read, calls = module.read_checkpoint, 0

    def interrupted(path: Path) -> CheckpointContent:
        nonlocal calls
        calls += 1
        if calls == 1:
            store.save(make_content(1))
            raise CheckpointError("half of it was gone")
        return read(path)

    monkeypatch.setattr(module, "read_checkpoint", interrupted)
    checkpoint, skipped = store.latest_good()
    assert checkpoint is not None and checkpoint.step == 1 and skipped == ()
