"""A corpus as subword ids: encoded once, piece by piece, into a file that is mapped when it is read."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from turret.data.corpora import Corpus
from turret.data.segments import FileMaps, FileSegment
from turret.data.tokenizers import Ids
from turret.files import partial, replace_file, sync_file, sync_folder
from turret.spi.errors import DataError

if TYPE_CHECKING:
    from turret.data.subword import SubwordTokenizer

TOKENS_FILE = "tokens.bin"
RECORD_FILE = "tokens.json"
PIECE = 1 << 18
"""Characters of a piece at most."""

_ID = np.dtype("<i4")
_LARGEST_RECORD = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """What a token file was made of (hashes of files and tokenizer, characters of a piece) and what it is."""

    corpus: tuple[str, ...]
    tokenizer: str
    piece: int
    tokens: int
    sha256: str

    def same_input(self, other: TokenRecord) -> bool:
        """Whether both were made of the same text in the same way."""
        return replace(self, tokens=0, sha256="") == replace(other, tokens=0, sha256="")


class TokenCorpus:
    """The ids of a corpus as a `TokenSource`: each file encoded piece by piece, its end-of-text id between files.

    Make one with `kept_tokens`. The file is mapped when it is read and must not change meanwhile.
    """

    unit: str = "tokens"

    def __init__(self, path: Path, name: str, record: TokenRecord) -> None:
        self.name = name
        self.record = record
        self._maps = FileMaps()
        self._file = FileSegment.of(path, name, self._maps)

    def __len__(self) -> int:
        return self.record.tokens

    def __repr__(self) -> str:
        return f"TokenCorpus({self.name}, {len(self)} tokens)"

    def windows(self, starts: Sequence[int], width: int) -> Ids:
        rows = np.empty((len(starts), width), _ID)
        for row, start in zip(rows, starts, strict=True):
            if not 0 <= start <= start + width <= len(self):
                raise DataError(
                    f"window [{start}, {start + width}) is not inside the {len(self)} tokens of {self.name}"
                )
            self._file.copy_into(row.view(np.uint8), start * _ID.itemsize)
        return rows.astype(np.int32, copy=False)

    def close(self) -> None:
        """Unmaps the file; reading maps it again."""
        self._maps.close()


def pieces(chunks: Iterable[bytes], *, size: int = PIECE) -> Iterator[str]:
    """UTF-8 `chunks` as texts of at most `size` characters whose sum is the whole; chunk borders do not matter.

    A piece ends before the last line break that follows a printed character, else before the last such blank, else
    after `size` characters. A tokenizer that splits text between a word and the blank behind it, as GPT-2's does,
    gives the ids of the whole text.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    held = ""
    for chunk in chunks:
        held += decoder.decode(chunk)
        while len(held) > size:
            border = _border(held, size)
            yield held[:border]
            held = held[border:]
    held += decoder.decode(b"", final=True)
    if held:
        yield held


def corpus_pieces(corpus: Corpus) -> Iterator[str]:
    """The pieces of all files of a corpus, in order; none has text of two files."""
    for segment in corpus.segments:
        yield from pieces(segment.chunks())


def kept_tokens(folder: str | Path, corpus: Corpus, tokenizer: SubwordTokenizer) -> TokenCorpus:
    """The ids of `corpus`, from the file in `folder` that an earlier call made of the same input, else encoded now.

    The ids are those of `tokenizer.encode` for each of `pieces`, file by file, with the end-of-text id, where there is
    one, between files. Memory does not grow with the corpus.

    Raises: DataError when the file there is not what was kept, the folder cannot be written, or there are no tokens.
    """
    path, place = Path(folder, TOKENS_FILE), Path(folder, RECORD_FILE)
    wanted = TokenRecord(corpus=corpus.digests(), tokenizer=tokenizer.fingerprint, piece=PIECE, tokens=0, sha256="")
    try:
        record = _found(path, place)
        if record is None or not record.same_input(wanted):
            record = _encoded(path, place, corpus, tokenizer, wanted)
        else:
            _verify(path, record)
    except OSError as error:
        raise DataError(f"cannot keep the tokens of {corpus.name} in {folder}: {error}; check its space") from error
    return TokenCorpus(path, corpus.name, record)


def _border(text: str, size: int) -> int:
    """Where the first piece of a text longer than `size` ends; only text[: size + 1] decides."""
    line = text.rfind("\n", 1, size + 1)
    while line > 0:
        end = line - 1 if text[line - 1] == "\r" else line
        if end > 0 and not text[end - 1].isspace():
            return end
        line = text.rfind("\n", 1, line)
    for end in range(size, 0, -1):
        if text[end].isspace() and not text[end - 1].isspace():
            return end
    return size


def _found(path: Path, place: Path) -> TokenRecord | None:
    """The record of the tokens that are there; None where there are none. Raises: DataError for tokens without one."""
    if not path.exists():
        return None
    if not path.is_file() or not place.is_file():
        raise DataError(f"{path} has no {place.name} beside it, so it was not kept by a run; move it away")
    if place.stat().st_size > _LARGEST_RECORD:
        raise DataError(f"{place} is longer than {_LARGEST_RECORD} bytes, so it was not kept by a run; move it away")
    try:
        raw = json.loads(place.read_text("utf-8"))
        record = TokenRecord(**{**raw, "corpus": tuple(raw["corpus"])})
        if type(record.tokens) is not int:
            raise TypeError("a count that is no whole number")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"{place} is not the record of a token file; remove both, they are made anew") from error
    return record


def _verify(path: Path, record: TokenRecord) -> None:
    with path.open("rb") as stream:
        got = hashlib.file_digest(stream, "sha256").hexdigest()
        size = stream.tell()
    if got != record.sha256 or size != record.tokens * _ID.itemsize:
        raise DataError(
            f"{path} has {size} bytes with SHA-256 {got[:12]}..., but {RECORD_FILE} says {record.sha256!r:.14}...; it "
            "was damaged or edited after it was made: remove it, and it is made anew"
        )


def _encoded(path: Path, place: Path, corpus: Corpus, tokenizer: SubwordTokenizer, wanted: TokenRecord) -> TokenRecord:
    """Writes the record, then the tokens: whatever moment a crash picks, tokens without a record are not ours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # an old file beside a new record would look damaged
    beside = partial(path)
    digest, count = hashlib.sha256(), 0
    try:
        with beside.open("wb") as stream:
            for ids in _ids(corpus, tokenizer):
                data = ids.astype(_ID).tobytes()
                digest.update(data)
                stream.write(data)
                count += len(ids)
        sync_file(beside)
        if count == 0:
            raise DataError(f"{corpus.name} gave no tokens; its text is nothing to this tokenizer: use another one")
        record = replace(wanted, tokens=count, sha256=digest.hexdigest())
        replace_file(place, (json.dumps(asdict(record), indent=2) + "\n").encode())
        beside.replace(path)
        sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)
    return record


def _ids(corpus: Corpus, tokenizer: SubwordTokenizer) -> Iterator[Ids]:
    for index, segment in enumerate(corpus.segments):
        if index and tokenizer.eos_id is not None:
            yield np.array([tokenizer.eos_id], np.int32)
        for piece in pieces(segment.chunks()):
            yield tokenizer.encode(piece)
