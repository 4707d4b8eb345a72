"""Subword tokenizers: the files and the algorithms of the `tokenizers` library behind the `Tokenizer` protocol."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from turret.data.bounded_file import read_text
from turret.data.token_bytes import Spelling, byte_alphabet
from turret.data.tokenizers import Ids, SomeIds, _checked_ids, utf8
from turret.spi.errors import ConfigError, DataError, MissingExtra, Unsupported

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

MOST_BYTES = 256 << 20
"""Of a tokenizer.json."""
_MOST_IDS = 1 << 22
_CONTROL = re.compile(r"<[|\uff5c].*[|\uff5c]>", re.DOTALL)


class SubwordTokenizer:
    """A tokenizer of the `tokenizers` library as this runtime uses one.

    Text never becomes a control token: only `encode(text, special=True)`, meant for rendered chat templates, reads
    them. Control tokens are those marked special, the eos, and added ones written `<|...|>`, marked or not.
    With a byte-level tokenizer that normalizes nothing, `decode(encode(text)) == text` for every text.
    """

    name: str = "subword"

    def __init__(
        self,
        tokenizer: LibraryTokenizer,
        *,
        eos_id: int | str | None = None,
        extra_tokens: Mapping[str, int] | None = None,
    ) -> None:
        """Take over the rules of `tokenizer`, which is not changed; its truncation and padding are left behind.

        eos_id: the id, or the text, of the token that ends a generation.
        extra_tokens: control tokens, with their ids, that `tokenizer` does not know yet.

        Raises: Unsupported for a decoder whose bytes are not known and for BPE dropout; DataError for added tokens
            that do not get the ids they claim; ConfigError for an `eos_id` outside the vocabulary.
        """
        _check_size(tokenizer)
        document: dict[str, Any] = json.loads(tokenizer.to_str())
        document |= {"truncation": None, "padding": None}
        if document["model"].get("dropout"):
            raise Unsupported("the tokenizer drops merges at random (dropout); set model.dropout to null in its file")
        self._spelling = Spelling.of(document["decoder"])
        known = {each["content"] for each in document["added_tokens"]}
        for text, token_id in (extra_tokens or {}).items():
            if text not in known:
                document["added_tokens"].append(added_token(text, token_id, special=True))
        self.eos_id: int | None = _eos(eos_id, document, tokenizer)
        for each in document["added_tokens"]:
            each["special"] = each["special"] or each["id"] == self.eos_id or bool(_CONTROL.fullmatch(each["content"]))
        document["added_tokens"].sort(key=lambda each: int(each["id"]))
        self._json = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        self._plain = _library(self._json)
        self._plain.encode_special_tokens = True
        _check_ids(document["added_tokens"], self._plain, extra_tokens or {})
        self.added_tokens: Mapping[str, int] = {each["content"]: each["id"] for each in document["added_tokens"]}
        self.special_ids: frozenset[int] = frozenset(each["id"] for each in document["added_tokens"] if each["special"])
        unknown = document["model"].get("unk_token")
        self.unknown_id: int | None = (
            self.token_id(unknown) if isinstance(unknown, str) else document["model"].get("unk_id")
        )
        self._forbidden = self.special_ids - {self.unknown_id}
        self.vocabulary_size: int = 1 + max(self._plain.get_vocab(with_added_tokens=True).values(), default=-1)
        self.prefix, self.suffix = _around(self._plain)

    @classmethod
    def from_file(
        cls, path: str | Path, *, eos_id: int | str | None = None, extra_tokens: Mapping[str, int] | None = None
    ) -> SubwordTokenizer:
        """The tokenizer of a tokenizer.json.

        Raises: DataError for what is no such file or over 256 MiB, and as the constructor does.
        """
        path = Path(path)
        return cls.from_json(read_text(path, MOST_BYTES), eos_id=eos_id, extra_tokens=extra_tokens, what=str(path))

    @classmethod
    def from_json(
        cls,
        text: str,
        *,
        eos_id: int | str | None = None,
        extra_tokens: Mapping[str, int] | None = None,
        what: str = "tokenizer",
    ) -> SubwordTokenizer:
        """The tokenizer in the text of a tokenizer.json; `what` names it in errors.

        Raises: DataError for what is no tokenizer, and as the constructor does.
        """
        library = _library(text, what)
        # The library numbers added tokens by itself, whatever ids the file gives them.
        _check_ids(json.loads(text).get("added_tokens") or [], library, {})
        return cls(library, eos_id=eos_id, extra_tokens=extra_tokens)

    def to_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json, equal for equal tokenizers; `eos_id` is no part of it."""
        return self._json

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of `to_json`, as 64 hexadecimal digits."""
        return hashlib.sha256(self._json.encode()).hexdigest()

    def encode(self, text: str | bytes, *, special: bool = False) -> Ids:
        """Ids (T,) int32 of a text; nothing is added in front or behind (see `prefix` and `suffix`).

        special: read control tokens where their text stands; without it they are text like any other.

        Raises: DataError for what UTF-8 cannot hold, and for a text that the vocabulary spells with a control token.
        """
        raw = utf8(text)
        if self._spelling.byte_level and (lost := self._lost.search(raw)) is not None:
            raise DataError(
                f"the vocabulary has no token for byte 0x{lost[0].hex()}, at offset {lost.start()} of the text; "
                "take it out"
            )
        library = self._reading_special if special else self._plain
        ids = library.encode(text if isinstance(text, str) else raw.decode(), add_special_tokens=False).ids
        if not special and not self._forbidden.isdisjoint(ids):
            wrong = next(each for each in ids if each in self._forbidden)
            raise DataError(
                f"the text holds {self._plain.id_to_token(wrong)!r:.80}, which this vocabulary can write only as its "
                "control token; take it out of the text"
            )
        return np.array(ids, np.int32)

    def decode_bytes(self, ids: SomeIds) -> bytes:
        """The bytes of tokens (T,), each independent of its neighbours; control tokens stand for none.

        Raises: DataError for ids outside the vocabulary, or that it has no token for.
        """
        values = _checked_ids(ids, self.vocabulary_size).tolist()
        try:
            return b"".join([self._bytes[each] for each in values])
        except KeyError as error:
            at = values.index(error.args[0])
            raise DataError(f"id {values[at]} at position {at} is a hole: the vocabulary has no such token") from error

    def decode(self, ids: SomeIds) -> str:
        """`decode_bytes` as one whole text, without the space that some tokenizers write in front of every text.

        What is not UTF-8 becomes U+FFFD.

        Raises: DataError as `decode_bytes` does.
        """
        text = self.decode_bytes(ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._spelling.strips_space else text

    def token_id(self, text: str) -> int | None:
        """The id of the token that is written so in the vocabulary, None where there is none."""
        return self._plain.token_to_id(text)

    def token_text(self, token_id: int) -> str | None:
        """How the vocabulary writes a token, None where there is none."""
        return self._plain.id_to_token(token_id) if 0 <= token_id < self.vocabulary_size else None

    @functools.cached_property
    def _reading_special(self) -> LibraryTokenizer:
        # The switch is state of the library's object, so two threads need one object for each of its positions.
        return _library(self._json)

    @functools.cached_property
    def _lost(self) -> re.Pattern[bytes]:
        """What the library would leave out without a word: bytes that no token of the vocabulary is."""
        absent = [byte for character, byte in byte_alphabet().items() if self._plain.token_to_id(character) is None]
        return re.compile(b"[%b]" % b"".join(b"\\x%02x" % byte for byte in absent) if absent else b"(?!)")

    @functools.cached_property
    def _bytes(self) -> dict[int, bytes]:
        texts = self._plain.get_vocab(with_added_tokens=True)
        table = {token_id: self._spelling.bytes_of(text) for text, token_id in texts.items()}
        table |= {token_id: text.encode() for text, token_id in self.added_tokens.items()}
        return table | dict.fromkeys(self.special_ids, b"")


def added_token(text: str, token_id: int, *, special: bool) -> dict[str, Any]:
    """An entry of `added_tokens` in a tokenizer.json: matched in a text as it stands, blanks around it are kept."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": text, "special": special, **flags}


def _library(text: str, what: str = "tokenizer") -> LibraryTokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtra('subword tokens need tokenizers; install it with: pip install "core[hub]"') from error
    try:
        return Tokenizer.from_str(text)
    # The library raises no narrower class for a file it cannot read.
    except Exception as error:
        raise DataError(f"{what} is not a tokenizer.json that the tokenizers library reads: {error!s:.200}") from error


def _check_size(tokenizer: LibraryTokenizer) -> None:
    # The library writes a vocabulary out by counting up to its largest id, for minutes if that is a wild one.
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= _MOST_IDS:
        raise DataError(f"the largest token id is {largest}, want less than {_MOST_IDS}")


def _eos(wanted: int | str | None, document: dict[str, Any], tokenizer: LibraryTokenizer) -> int | None:
    if wanted is None:
        return None
    added: dict[str, int] = {each["content"]: each["id"] for each in document["added_tokens"]}
    if isinstance(wanted, str):
        found = added.get(wanted, tokenizer.token_to_id(wanted))
        if found is None:
            raise ConfigError(f"the eos token {wanted!r:.80} is not in the vocabulary; name one that is")
        return found
    if type(wanted) is not int:
        raise ConfigError(f"the eos is {wanted!r:.40}, a {type(wanted).__name__}; want an id or the text of a token")
    if wanted not in added.values() and (wanted < 0 or wanted >= 1 << 32 or tokenizer.id_to_token(wanted) is None):
        raise ConfigError(f"the eos id {wanted!r:.40} is not in the vocabulary; name one that is")
    return wanted


def _check_ids(added: list[dict[str, Any]], tokenizer: LibraryTokenizer, extra: Mapping[str, int]) -> None:
    claims = {each["content"]: each["id"] for each in added} | dict(extra)
    for text, claimed in claims.items():
        if (got := tokenizer.token_to_id(text)) != claimed:
            raise DataError(f"the added token {text!r:.80} claims id {claimed}, but the vocabulary gives it {got}")


def _around(tokenizer: LibraryTokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the post-processor writes in front of a text and behind it."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a", add_special_tokens=True).ids
    for at in range(len(full) - len(bare) + 1):
        if bare and full[at : at + len(bare)] == bare:
            return tuple(full[:at]), tuple(full[at + len(bare) :])
    raise Unsupported("the tokenizer's post-processor rewrites a text; one that adds ids around it is supported")
