"""When a generation ends, and which of its text may be shown before that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from turret.data.tokenizers import Tokenizer
from turret.generate.text import TextStream
from turret.spi.errors import ConfigError, DataError

StopReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """A generation ends at one of `eos_ids`, before the text of a stop string, or after `max_new_tokens` ids."""

    max_new_tokens: int
    eos_ids: tuple[int, ...] = ()
    strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.max_new_tokens) is not int or self.max_new_tokens < 1:
            raise ConfigError(f"got max_new_tokens {self.max_new_tokens!r}, want an integer of at least 1")
        if not all(isinstance(string, str) and string for string in self.strings):
            raise ConfigError(f"got stop strings {self.strings!r}, want texts of at least one character")


def eos_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids that end a generation by the tokenizer's own account: one, or none."""
    return () if tokenizer.eos_id is None else (tokenizer.eos_id,)


class Completion:
    """The text of one generation, fed id by id.

    What `push` returns, joined, is the text without the eos and without the stop string, however tokens cut it: text
    that may be the beginning of a stop string is held back until that is decided. `reason` is None while it goes on.
    """

    def __init__(self, tokenizer: Tokenizer, rules: StopRules) -> None:
        self.rules = rules
        self.reason: StopReason | None = None
        self.token_count = 0
        self._stream = TextStream(tokenizer)
        self._held = ""

    def push(self, token_id: int) -> str:
        """The text that this id makes certain; everything left when it ends the generation.

        Raises: DataError after the end, and for an id outside the vocabulary.
        """
        if self.reason is not None:
            raise DataError(f"the generation has ended ({self.reason}); begin a new one")
        is_eos = token_id in self.rules.eos_ids
        text = self._held if is_eos else self._held + self._stream.push(token_id)
        self.token_count += 1
        if (shown := self._before_stop(text)) is not None:
            return shown
        if is_eos:
            return self._end("eos", text)
        if self.token_count == self.rules.max_new_tokens:
            return self._end("length", text)
        certain = len(text) - max((_overlap(text, string) for string in self.rules.strings), default=0)
        self._held = text[certain:]
        return text[:certain]

    def _end(self, reason: StopReason, text: str) -> str:
        text += self._stream.finish()
        if (shown := self._before_stop(text)) is not None:
            return shown
        self.reason, self._held = reason, ""
        return text

    def _before_stop(self, text: str) -> str | None:
        """What precedes the stop string that is complete first, the longest of those, or None without one."""
        found = [(text.find(string), string) for string in self.rules.strings if string in text]
        if not found:
            return None
        _, start = min((at + len(string), at) for at, string in found)
        self.reason, self._held = "stop", ""
        return text[:start]


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` with which `string` begins."""
    for length in range(min(len(text), len(string)), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0
