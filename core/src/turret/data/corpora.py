"""Corpora: UTF-8 text from files, folders or Python itself as one long sequence of bytes that is never loaded whole."""

from __future__ import annotations

import codecs
import difflib
import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from turret.data.builtin import PYTHON_DOCS, kept_python_docs, python_docs
from turret.data.segments import FileMaps, FileSegment, HeldText, Segment
from turret.data.tokenizers import Bytes, not_utf8
from turret.spi.errors import ConfigError, DataError


class Corpus:
    """The bytes of its segments in order, without copying and without separators; `len` is in bytes.

    Files are mapped when they are read and must not change meanwhile. Make one with `open_corpus`.
    """

    def __init__(self, segments: Iterable[Segment], maps: FileMaps) -> None:
        self.segments = tuple(segment for segment in segments if segment.size)
        self._maps = maps
        self._ends = list(accumulate(segment.size for segment in self.segments))
        self._digests: tuple[str, tuple[str, ...]] | None = None

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __repr__(self) -> str:
        return f"Corpus({self.name}, {len(self)} bytes)"

    @property
    def name(self) -> str:
        """The first segment's name and how many follow."""
        others = len(self.segments) - 1
        return self.segments[0].name + (f" and {others} more" if others else "")

    def window(self, start: int, stop: int) -> Bytes:
        """The bytes in [start, stop) as an array of the caller's own, whatever files they lie in.

        Raises: as `copy_into`.
        """
        window = np.empty(max(stop - start, 0), np.uint8)
        self.copy_into(window, start, stop)
        return window

    def copy_into(self, target: Bytes, start: int, stop: int) -> None:
        """Writes the bytes in [start, stop) to `target`, (stop - start,) uint8.

        Raises: DataError when the range is not inside the corpus or a file changed since it was opened.
        """
        if not 0 <= start <= stop <= len(self):
            raise DataError(f"window [{start}, {stop}) is not inside the {len(self)} bytes of {self.name}")
        index = bisect_right(self._ends, start)
        filled = 0
        while filled < stop - start:
            segment = self.segments[index]
            offset = start + filled - (self._ends[index] - segment.size)
            part = target[filled : filled + segment.size - offset]
            segment.copy_into(part, offset)
            filled += len(part)
            index += 1

    def validate_utf8(self) -> None:
        """Reads everything once; each file must be UTF-8 by itself. The hashes come from the same pass.

        Raises: DataError naming the file, the offset in it and the bytes there.
        """
        self._digests = self._scan(validate=True)

    def sha256(self) -> str:
        """The hex digest of all bytes in order; reads everything the first time."""
        return self._hashed()[0]

    def digests(self) -> tuple[str, ...]:
        """The hex digest of each segment; reads everything the first time."""
        return self._hashed()[1]

    def close(self) -> None:
        """Unmaps the files; reading maps them again."""
        self._maps.close()

    def _hashed(self) -> tuple[str, tuple[str, ...]]:
        if self._digests is None:
            self._digests = self._scan(validate=False)
        return self._digests

    def _scan(self, *, validate: bool) -> tuple[str, tuple[str, ...]]:
        whole = hashlib.sha256()
        each: list[str] = []
        for segment in self.segments:
            own = hashlib.sha256()
            check = _Utf8Check(segment.path) if validate else None
            for chunk in segment.chunks():
                own.update(chunk)
                if len(self.segments) > 1:
                    whole.update(chunk)
                if check is not None:
                    check.feed(chunk)
            if check is not None:
                check.feed(b"", final=True)
            each.append(own.hexdigest())
        return (whole.hexdigest() if len(each) > 1 else each[0]), tuple(each)


class _Utf8Check:
    """Decodes a stream chunk by chunk and forgets the text; a character may lie across chunks."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._offset = 0

    def feed(self, chunk: bytes, *, final: bool = False) -> None:
        held = self._decoder.getstate()[0]
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError as error:
            raise DataError(not_utf8(self._what, held + chunk, error.start, self._offset - len(held))) from error
        self._offset += len(chunk)


def open_corpus(sources: Sequence[str | Path], *, keep_in: Path | None = None, validate: bool = True) -> Corpus:
    """One corpus of the sources in order: files, folders, or `builtin:python-docs`.

    A folder stands for its regular files, all levels down, sorted by path; hidden files and folders, whose name starts
    with a dot, are left out, and links to folders are not followed. The built-in text is held in memory, or, with
    `keep_in`, written once to that folder and read from there ever after, so that a run can be resumed on another
    Python. `validate=False` leaves out the pass over all bytes that checks for UTF-8.

    Raises: DataError for a source that is missing, unreadable, binary, without files or empty; ConfigError for an
    unknown built-in.
    """
    if isinstance(sources, (str, Path)):
        sources = [sources]
    maps = FileMaps()
    segments = [segment for source in sources for segment in _segments_of(source, keep_in, maps)]
    corpus = Corpus(segments, maps)
    if len(corpus) == 0:
        names = ", ".join(str(source) for source in sources) or "no source"
        raise DataError(f"the corpus is empty: {names} gave 0 bytes; name a file with text or {PYTHON_DOCS}")
    if validate:
        corpus.validate_utf8()
    return corpus


def _segments_of(source: str | Path, keep_in: Path | None, maps: FileMaps) -> list[Segment]:
    if isinstance(source, str) and source.startswith("builtin:"):
        return [_builtin(source, keep_in, maps)]
    if not str(source):
        raise DataError(f"got an empty corpus path; name a file, a folder or {PYTHON_DOCS}")
    path = Path(source)
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read corpus {path}: {error}; check the path and its permissions") from error
    if not is_folder:
        return [FileSegment.of(path, path.name, maps)]
    root = path.resolve().name
    return [FileSegment.of(path / name, f"{root}/{name}", maps) for name in _files_in(path)]


def _builtin(source: str, keep_in: Path | None, maps: FileMaps) -> Segment:
    if source != PYTHON_DOCS:
        meant = " (did you mean it?)" if difflib.get_close_matches(source, [PYTHON_DOCS]) else ""
        raise ConfigError(f"unknown built-in corpus {source!r}; there is {PYTHON_DOCS!r}{meant}")
    if keep_in is None:
        return HeldText(name=source, path=source, data=python_docs())
    return FileSegment.of(kept_python_docs(keep_in), source, maps)


def _files_in(folder: Path) -> list[str]:
    """Names of the regular files below `folder`, relative to it, with forward slashes, sorted."""

    def refuse(error: OSError) -> None:
        raise DataError(f"cannot read corpus folder {error.filename}: {error}; check its permissions") from error

    names: list[str] = []
    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(parent, name) for name in files if not name.startswith(".")]
        names += [path.relative_to(folder).as_posix() for path in paths if path.is_file()]
    if not names:
        raise DataError(f"corpus folder {folder} holds no files; hidden ones are left out")
    return sorted(names)
