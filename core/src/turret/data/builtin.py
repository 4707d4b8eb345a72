"""The corpus that every Python has: the topics of CPython's own documentation, and keeping it beside a run."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from pathlib import Path

from turret.files import replace_file
from turret.spi.errors import DataError

PYTHON_DOCS = "builtin:python-docs"
TEXT_FILE = "corpus.txt"
HASH_FILE = "corpus.sha256"


def python_docs() -> bytes:
    """The text of `pydoc_data.topics`, sorted by topic, each under a line `# topic`; it differs between Pythons.

    Raises: DataError when this Python comes without it.
    """
    try:
        topics: Mapping[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise DataError(
            f"{PYTHON_DOCS}: this Python has no pydoc_data.topics; install the full standard library or pass a file"
        ) from error
    return "\n\n".join(f"# {topic}\n\n{topics[topic].strip()}\n" for topic in sorted(topics)).encode("utf-8")


def kept_python_docs(folder: Path) -> Path:
    """The path of the text in `folder`, written there at the first call and only verified at later ones.

    The hash is written before the text, so whatever moment a crash picks, a text without its hash is not ours.

    Raises: DataError when the text there is not the one that was kept, or the folder cannot be written.
    """
    text_path, hash_path = folder / TEXT_FILE, folder / HASH_FILE
    try:
        if text_path.exists():
            _verify(text_path, hash_path)
            return text_path
        text = python_docs()
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(hash_path, f"{hashlib.sha256(text).hexdigest()}  {TEXT_FILE}\n".encode())
        replace_file(text_path, text)
    except OSError as error:
        raise DataError(f"cannot keep {PYTHON_DOCS} in {folder}: {error}; check its permissions and space") from error
    return text_path


def _verify(text_path: Path, hash_path: Path) -> None:
    if not hash_path.exists():
        raise DataError(
            f"{text_path} has no {hash_path.name} beside it, so it was not kept by a run; move it away or name it "
            "as the corpus"
        )
    wanted = hash_path.read_text("ascii", "replace").split()[:1]
    got = hashlib.sha256(text_path.read_bytes()).hexdigest()
    if wanted != [got]:
        raise DataError(
            f"{text_path} has SHA-256 {got}, but {hash_path.name} says {' '.join(wanted) or 'nothing'}; it was edited "
            "after the run began: restore it or start a new run"
        )
