"""The built-in corpus is CPython's documentation, and stays with the run that was trained on it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from turret.data.builtin import HASH_FILE, PYTHON_DOCS, TEXT_FILE, kept_python_docs, python_docs
from turret.data.corpora import open_corpus
from turret.spi.errors import DataError


def test_the_text_is_every_topic_sorted() -> None:
    text = python_docs().decode("utf-8")
    assert len(text) > 400_000
    headers = [f"# {topic}\n\n" for topic in sorted(topics)]
    positions = [text.index(header) for header in headers]
    assert positions == sorted(positions) and positions[0] == 0
    assert all(topics[topic].strip() in text for topic in topics)


def test_in_memory_and_kept_are_the_same_corpus(tmp_path: Path) -> None:
    held, kept = open_corpus([PYTHON_DOCS]), open_corpus([PYTHON_DOCS], keep_in=tmp_path / "run")
    assert held.sha256() == kept.sha256() == hashlib.sha256(python_docs()).hexdigest()
    assert held.window(1000, 2000).tobytes() == kept.window(1000, 2000).tobytes() == python_docs()[1000:2000]
    assert held.name == kept.name == PYTHON_DOCS
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [HASH_FILE, TEXT_FILE]


def test_a_kept_text_outlives_a_change_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_corpus([PYTHON_DOCS], keep_in=tmp_path).sha256()
    monkeypatch.setattr("turret.data.builtin.python_docs", lambda: b"another Python's text")
    assert open_corpus([PYTHON_DOCS], keep_in=tmp_path).sha256() == before


def test_an_edited_text_is_refused(tmp_path: Path) -> None:
    path = kept_python_docs(tmp_path)
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(DataError, match=r"corpus\.txt has SHA-256 .* it was edited"):
        open_corpus([PYTHON_DOCS], keep_in=tmp_path)


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"abc  corpus.txt\n"])
def test_a_damaged_hash_is_refused(tmp_path: Path, damage: bytes) -> None:
    kept_python_docs(tmp_path)
    (tmp_path / HASH_FILE).write_bytes(damage)
    with pytest.raises(DataError, match=r"corpus\.sha256 says"):
        kept_python_docs(tmp_path)


def test_a_text_that_no_run_kept_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / TEXT_FILE).write_bytes(b"my novel")
    with pytest.raises(DataError, match=r"no corpus\.sha256 beside it"):
        kept_python_docs(tmp_path)
    assert (tmp_path / TEXT_FILE).read_bytes() == b"my novel"


def test_a_crash_between_the_two_files_is_repaired(tmp_path: Path) -> None:
    kept_python_docs(tmp_path).unlink()
    (tmp_path / ".corpus.txt.tmp").write_bytes(b"torn")
    assert kept_python_docs(tmp_path).read_bytes() == python_docs()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="cannot keep builtin:python-docs"):
        open_corpus([PYTHON_DOCS], keep_in=tmp_path / "file" / "run")


def test_a_python_without_its_documentation_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match=r"no pydoc_data\.topics; install"):
        python_docs()
