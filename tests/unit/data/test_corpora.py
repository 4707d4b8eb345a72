"""A corpus is the concatenation of its files, and says which file is not what it should be."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.data.corpora import open_corpus
from turret.data.segments import CHUNK_BYTES, MAX_OPEN_MAPS
from turret.spi.errors import ConfigError, DataError


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


@settings(deadline=None, max_examples=60)
@given(parts=st.lists(st.binary(max_size=9), min_size=1, max_size=6).filter(any), data=st.data())
def test_windows_across_files_equal_the_concatenation(
    parts: list[bytes], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write(tmp_path_factory.mktemp("parts"), {f"{index}.txt": part for index, part in enumerate(parts)})
    whole = b"".join(parts)
    corpus = open_corpus([folder / f"{index}.txt" for index in range(len(parts))], validate=False)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert len(corpus) == len(whole)
    assert corpus.window(start, stop).tobytes() == whole[start:stop]
    assert corpus.window(0, len(whole)).tobytes() == whole
    assert corpus.sha256() == hashlib.sha256(whole).hexdigest()


def test_a_window_is_the_callers_own(tmp_path: Path) -> None:
    corpus = open_corpus([write(tmp_path, {"a": b"hello"}) / "a"])
    window = corpus.window(0, 5)
    window[:] = 0
    assert corpus.window(0, 5).tobytes() == b"hello"


def test_a_folder_is_its_visible_files_sorted_by_path(tmp_path: Path) -> None:
    write(tmp_path, {"b.txt": b"2", "a/z.md": b"1", "c": b"3", ".hidden": b"x", ".git/config": b"x", "a/.s": b"x"})
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    corpus = open_corpus([tmp_path])
    assert corpus.window(0, 3).tobytes() == b"123"
    root = tmp_path.name
    assert [segment.name for segment in corpus.segments] == [f"{root}/a/z.md", f"{root}/b.txt", f"{root}/c"]
    assert corpus.name == f"{root}/a/z.md and 2 more"


def test_sources_keep_the_order_they_are_given_in(tmp_path: Path) -> None:
    write(tmp_path, {"1": b"one ", "2/x": b"two ", "3": b"three "})
    corpus = open_corpus([tmp_path / "3", tmp_path / "2", str(tmp_path / "1")])
    assert corpus.window(0, len(corpus)).tobytes() == b"three two one "


def test_a_single_path_is_one_source(tmp_path: Path) -> None:
    assert len(open_corpus(str(write(tmp_path, {"text": b"abc"}) / "text"))) == 3


def test_thousands_of_files_need_few_descriptors(tmp_path: Path) -> None:
    count = 3 * MAX_OPEN_MAPS
    write(tmp_path, {f"{index:04}": f"{index:04}".encode() for index in range(count)})
    corpus = open_corpus([tmp_path])
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    assert corpus.window(0, 4 * count).tobytes() == "".join(f"{index:04}" for index in range(count)).encode()
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) - before <= MAX_OPEN_MAPS
        corpus.close()
        assert len(os.listdir("/proc/self/fd")) <= before
    assert corpus.window(4, 8).tobytes() == b"0001"


def test_threads_may_read_at_once_while_maps_come_and_go(tmp_path: Path) -> None:
    count = 2 * MAX_OPEN_MAPS
    corpus = open_corpus([write(tmp_path, {f"{index:04}": f"{index:04}".encode() for index in range(count)})])
    wrong: list[int] = []

    def read(first: int) -> None:
        for index in range(first, count, 4):
            if corpus.window(4 * index, 4 * index + 4).tobytes() != f"{index:04}".encode():
                wrong.append(index)

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 6), (6, 6)])
def test_windows_outside_the_corpus_are_refused(tmp_path: Path, start: int, stop: int) -> None:
    corpus = open_corpus([write(tmp_path, {"a": b"hello"}) / "a"])
    with pytest.raises(DataError, match=f"window \\[{start}, {stop}\\) is not inside the 5 bytes of a"):
        corpus.window(start, stop)


def test_a_binary_file_is_named_with_the_offset(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"fine", "b.bin": b"\x89PNG\r\n"})
    with pytest.raises(DataError, match=r"b\.bin is not UTF-8: bytes 89 50 4e 47 at offset 0"):
        open_corpus([tmp_path])


@pytest.mark.parametrize("shift", [-2, -1, 0, 1])
def test_utf8_is_checked_across_chunks_with_true_offsets(tmp_path: Path, shift: int) -> None:
    lead = CHUNK_BYTES + shift
    good = open_corpus([write(tmp_path, {"good": b"a" * lead + "\u20ac".encode() + b"!"}) / "good"])
    assert len(good) == lead + 4
    write(tmp_path, {"bad": b"a" * lead + b"\xe2\x82!" + b"a" * 9})
    with pytest.raises(DataError, match=f"bytes e2 82 21 61 at offset {lead};"):
        open_corpus([tmp_path / "bad"])


def test_a_character_may_not_lie_across_files(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"x\xc3", "b": b"\xa9"})
    with pytest.raises(DataError, match=r"a is not UTF-8: bytes c3 at offset 1"):
        open_corpus([tmp_path])
    assert len(open_corpus([tmp_path], validate=False)) == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent.txt", "does not exist"),
        ("nothing", "holds no files"),
        ("empty.txt", "the corpus is empty"),
        ("\0", "cannot read corpus"),
    ],
)
def test_sources_without_text_are_refused(tmp_path: Path, source: str, message: str) -> None:
    write(tmp_path, {"empty.txt": b"", "nothing/.hidden": b"x"})
    with pytest.raises(DataError, match=message):
        open_corpus([f"{tmp_path}/{source}"])


@pytest.mark.parametrize("sources", [[], [""]])
def test_no_source_is_refused(sources: list[str]) -> None:
    with pytest.raises(DataError, match="empty"):
        open_corpus(sources)


def test_empty_files_among_others_do_no_harm(tmp_path: Path) -> None:
    corpus = open_corpus([write(tmp_path, {"a": b"", "b": b"hi", "c": b""})])
    assert corpus.window(0, 2).tobytes() == b"hi"
    assert corpus.name.endswith("/b")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a FIFO")
def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        open_corpus([tmp_path / "pipe"])
    with pytest.raises(DataError, match="holds no files"):
        open_corpus([tmp_path])


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, flags: int) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    write(tmp_path, {"secret": b"x"})
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DataError, match=r"cannot read corpus .*secret.*Permission denied.*permissions"):
        open_corpus([tmp_path / "secret"])


@pytest.mark.parametrize("size", [0, 3, 5000])
@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_that_changes_its_size_while_in_use_is_an_error_not_a_crash(
    tmp_path: Path, size: int, mapped: bool
) -> None:
    path = write(tmp_path, {"a": b"x" * 9000}) / "a"
    corpus = open_corpus([path], validate=False)
    if mapped:
        corpus.window(8990, 9000)
    os.truncate(path, size)
    with pytest.raises(DataError, match=f"a changed while it was in use: it has {size} bytes, it had 9000"):
        corpus.window(8990, 9000)
    with pytest.raises(DataError, match="changed while it was in use"):
        corpus.sha256()


def test_a_file_that_was_written_to_before_it_is_mapped_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": b"before"}) / "a"
    corpus = open_corpus([path])
    path.write_bytes(b"after!")
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="it was written to"):
        corpus.window(0, 1)


def test_a_file_that_vanished_before_it_is_mapped_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": b"before"}) / "a"
    corpus = open_corpus([path])
    path.unlink()
    with pytest.raises(DataError, match="cannot read corpus"):
        corpus.window(0, 1)


@pytest.mark.parametrize("name", ["builtin:python-doc", "builtin:", "builtin:wikipedia"])
def test_an_unknown_builtin_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="there is 'builtin:python-docs'"):
        open_corpus([name])


def test_windows_are_uint8(tmp_path: Path) -> None:
    window = open_corpus([write(tmp_path, {"a": b"hello"}) / "a"]).window(1, 3)
    assert window.dtype == np.uint8 and window.shape == (2,)
