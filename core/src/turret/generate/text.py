"""Turning generated ids into text that can be shown while it grows."""

from __future__ import annotations

import codecs

from turret.data.tokenizers import Tokenizer


class TextStream:
    """Decodes ids one by one and never cuts a UTF-8 character.

    All that is returned, joined, equals the joined bytes decoded with U+FFFD for what is not UTF-8.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that is certain now; empty while a character is incomplete and for reserved ids.

        Raises: DataError for an id outside the vocabulary; the stream is as before.
        """
        return self._decoder.decode(self._tokenizer.decode_bytes([token_id]))

    def finish(self) -> str:
        """U+FFFD where the bytes end inside a character, else empty; the stream is new afterwards."""
        return self._decoder.decode(b"", True)
