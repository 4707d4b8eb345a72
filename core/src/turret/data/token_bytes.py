"""How a subword tokenizer spells bytes in the texts of its tokens: by GPT-2's alphabet, or with a sign for a space."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

from turret.spi.errors import Unsupported

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


@functools.cache
def byte_alphabet() -> Mapping[str, int]:
    """The 256 characters that GPT-2 writes bytes with, and the byte of each.

    Printable bytes are the character of the same number; the other 68 are U+0100 and on, in order.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + nth): byte for nth, byte in enumerate(others)}


@dataclasses.dataclass(frozen=True)
class Spelling:
    """One way to write bytes as token text; `Spelling.of` reads it off a tokenizer's decoder.

    byte_level: characters are GPT-2's. Else `space` stands for a space, and with `byte_fallback` a token `<0x0A>` for
    its byte. strips_space: a whole text is written with one space in front that is none of it.
    """

    byte_level: bool = False
    space: str = ""
    byte_fallback: bool = False
    strips_space: bool = False

    @classmethod
    def of(cls, decoder: Any) -> Spelling:
        """The spelling behind the `decoder` entry of a tokenizer.json.

        Raises: Unsupported naming a decoder that is neither byte-level nor a sign for the space.
        """
        steps = decoder.get("decoders") if _type(decoder) == "Sequence" else [decoder]
        found = cls()
        for step in steps if isinstance(steps, list) else [steps]:
            found = found._with(step)
        if found.byte_level == bool(found.space):
            raise _refused(decoder)
        return found

    def bytes_of(self, token: str) -> bytes:
        """The bytes that a token of the model's vocabulary stands for."""
        if self.byte_level:
            alphabet = byte_alphabet()
            # A text with another character in it was added to the vocabulary as it is.
            return bytes(map(alphabet.__getitem__, token)) if alphabet.keys() >= set(token) else token.encode()
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        return token.replace(self.space, " ").encode()

    def _with(self, step: Any) -> Spelling:
        match step:
            case {"type": "ByteLevel"}:
                return dataclasses.replace(self, byte_level=True)
            case {"type": "Fuse"}:
                return self
            case {"type": "ByteFallback"}:
                return dataclasses.replace(self, byte_fallback=True)
            case {"type": "Replace", "pattern": {"String": str(sign)}, "content": " "} if len(sign) == 1:
                return dataclasses.replace(self, space=sign)
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
                return dataclasses.replace(self, strips_space=self.strips_space or start == 1)
            case {"type": "Metaspace", "replacement": str(sign)}:
                never = step.get("prepend_scheme") == "never" or step.get("add_prefix_space") is False
                return dataclasses.replace(self, space=sign, strips_space=not never)
        raise _refused(step)


def _type(decoder: Any) -> str:
    return str(decoder.get("type")) if isinstance(decoder, dict) else "none"


def _refused(decoder: Any) -> Unsupported:
    return Unsupported(
        f"the tokenizer's decoder is {_type(decoder):.40}; the bytes of tokens are known for ByteLevel, and for "
        "Metaspace or Replace with ByteFallback, Fuse and Strip"
    )
