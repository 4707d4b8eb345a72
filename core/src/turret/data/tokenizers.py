"""Byte-level tokenizers: text to token ids and back, without loss."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from turret.spi.errors import ConfigError, DataError

Ids = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
SomeIds = Sequence[int] | npt.NDArray[np.integer]

RESERVED = ("pad", "eos", "unk", "tool", "python", "shell")


class Tokenizer(Protocol):
    """Text to int32 ids and back; `decode(encode(text)) == text` for every text that UTF-8 can hold."""

    @property
    def name(self) -> str:
        """The word that `tokenizer_for` takes and that checkpoints record."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """Every id is in [0, vocabulary_size)."""
        ...

    @property
    def eos_id(self) -> int | None:
        """The id that ends a generation, None where there is none."""
        ...

    @property
    def prefix(self) -> tuple[int, ...]:
        """Ids that every text begins with in the model's eyes, such as a begin-of-text id; `encode` adds none."""
        ...

    def encode(self, text: str | bytes) -> Ids:
        """Ids (T,) int32 of a text, or of its UTF-8 bytes; no id is added in front or behind.

        Raises: DataError for bytes that are not UTF-8 and for lone surrogates, which UTF-8 cannot hold.
        """
        ...

    def decode_bytes(self, ids: SomeIds) -> bytes:
        """The bytes that ids (T,) stand for; reserved ids stand for none and are skipped.

        Raises: DataError for ids outside the vocabulary.
        """
        ...

    def decode(self, ids: SomeIds) -> str:
        """`decode_bytes` as text; what is not UTF-8, as a model may produce, becomes U+FFFD.

        Raises: DataError for ids outside the vocabulary.
        """
        ...


class ByteLevelTokenizer(Tokenizer, Protocol):
    """A tokenizer with one id a byte: positions in a corpus are token positions, and any window can be cut."""

    def ids_of(self, raw: Bytes) -> Ids:
        """The int32 ids of uint8 bytes of any shape, in one vectorised pass without a UTF-8 check.

        Raises: DataError for another dtype.
        """
        ...


class ByteTokenizer:
    """256 ids: the id is the byte. Nothing is reserved, so there is no end-of-sequence id."""

    name: str = "bytes"
    vocabulary_size: int = 256
    eos_id: int | None = None
    prefix: tuple[int, ...] = ()

    def encode(self, text: str | bytes) -> Ids:
        return self.ids_of(np.frombuffer(utf8(text), np.uint8))

    def ids_of(self, raw: Bytes) -> Ids:
        return _checked_bytes(raw).astype(np.int32)

    def decode_bytes(self, ids: SomeIds) -> bytes:
        return _checked_ids(ids, self.vocabulary_size).astype(np.uint8).tobytes()

    def decode(self, ids: SomeIds) -> str:
        return self.decode_bytes(ids).decode("utf-8", "replace")


class ReservedByteTokenizer:
    """262 ids: 0..5 are pad, eos, unk, tool, python and shell; byte b is 6 + b.

    Reserved ids never come out of `encode` and are skipped by `decode`: they steer a model and are not text.
    """

    name: str = "reserved-bytes"
    vocabulary_size: int = len(RESERVED) + 256
    eos_id: int | None = RESERVED.index("eos")
    pad_id: int = RESERVED.index("pad")
    prefix: tuple[int, ...] = ()

    def encode(self, text: str | bytes) -> Ids:
        return self.ids_of(np.frombuffer(utf8(text), np.uint8))

    def ids_of(self, raw: Bytes) -> Ids:
        return np.add(_checked_bytes(raw), len(RESERVED), dtype=np.int32)

    def decode_bytes(self, ids: SomeIds) -> bytes:
        values = _checked_ids(ids, self.vocabulary_size) - len(RESERVED)
        return values[values >= 0].astype(np.uint8).tobytes()

    def decode(self, ids: SomeIds) -> str:
        return self.decode_bytes(ids).decode("utf-8", "replace")


TOKENIZERS: dict[str, type[ByteTokenizer] | type[ReservedByteTokenizer]] = {
    kind.name: kind for kind in (ByteTokenizer, ReservedByteTokenizer)
}


def tokenizer_for(name: str) -> ByteLevelTokenizer:
    """The tokenizer that a configuration names.

    Raises: ConfigError for a name that is none of `TOKENIZERS`.
    """
    if name in TOKENIZERS:
        return TOKENIZERS[name]()
    near = difflib.get_close_matches(name, TOKENIZERS, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"unknown tokenizer {name!r}; {meant}there are {', '.join(map(repr, TOKENIZERS))}")


def utf8(text: str | bytes) -> bytes:
    """The UTF-8 bytes of a text; bytes are checked and returned as they are.

    Raises: DataError naming the offset of what is not UTF-8.
    """
    if isinstance(text, bytes):
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(not_utf8("input", text, error.start, 0)) from error
        return text
    if not isinstance(text, str):
        raise DataError(f"got {type(text).__name__} to encode, want str or bytes")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"text has the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, which UTF-8 "
            "cannot hold; read the text with the right encoding or encode it with errors='replace' first"
        ) from error


def not_utf8(what: str, data: bytes, start: int, base: int) -> str:
    """The sentence about the bad bytes at data[start], where data begins at offset `base` of `what`."""
    shown = " ".join(f"{byte:02x}" for byte in data[start : start + 4])
    return (
        f"{what} is not UTF-8: bytes {shown} at offset {base + start}; "
        "convert it (iconv -f OLD -t UTF-8) or leave it out"
    )


def _checked_bytes(raw: Bytes) -> Bytes:
    if raw.dtype != np.uint8:
        raise DataError(f"got bytes as {raw.dtype}, want uint8")
    return raw


def _checked_ids(ids: SomeIds, vocabulary_size: int) -> npt.NDArray[np.integer]:
    values = np.asarray(ids)
    if values.size == 0:
        return np.zeros(0, np.int32)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataError(f"got ids of shape {values.shape} and type {values.dtype}, want integers of shape (T,)")
    wrong = (values < 0) | (values >= vocabulary_size)
    if wrong.any():
        at = int(wrong.argmax())
        raise DataError(f"id {values[at]} at position {at} is outside the vocabulary of {vocabulary_size}")
    return values.astype(np.int32)
