"""A completion ends where its rules say, wherever tokens cut the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.data.tokenizers import ByteTokenizer, ReservedByteTokenizer
from turret.generate.stop import Completion, StopRules, eos_of
from turret.spi.errors import ConfigError, DataError


class Pieces:
    """A tokenizer whose tokens are given texts, for tokens longer than a character."""

    name = "pieces"
    eos_id: int | None = None

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces
        self.vocabulary_size = len(pieces)

    def encode(self, text: str | bytes) -> npt.NDArray[np.int32]:
        raise NotImplementedError

    def decode_bytes(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
        return "".join(self.pieces[token] for token in ids).encode()

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> str:
        return self.decode_bytes(ids).decode()


def run(pieces: Sequence[str], *strings: str) -> tuple[list[str], Completion]:
    completion = Completion(Pieces(pieces), StopRules(max_new_tokens=len(pieces), strings=strings))
    shown = []
    for token in range(len(pieces)):
        shown.append(completion.push(token))
        if completion.reason is not None:
            break
    return shown, completion


def first_complete(text: str, strings: Sequence[str]) -> str:
    """Reads character by character until a stop string is complete; the longest of those then."""
    for end in range(len(text) + 1):
        if found := [string for string in strings if text[:end].endswith(string)]:
            return text[: end - max(map(len, found))]
    return text


@given(
    pieces=st.lists(st.text("ab€", max_size=4), min_size=1, max_size=12),
    strings=st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3),
)
def test_the_text_ends_before_the_first_stop_string_however_tokens_cut_it(
    pieces: list[str], strings: list[str]
) -> None:
    shown, completion = run(pieces, *strings)
    text = "".join(pieces)
    want = first_complete(text, strings)
    assert "".join(shown) == want
    assert completion.reason == ("stop" if any(string in text for string in strings) else "length")


def test_text_is_held_back_only_while_it_may_become_a_stop_string() -> None:
    shown, completion = run(["a", "b", "a", "b", "c", "x"], "abc")
    assert shown == ["", "", "ab", "", ""]
    assert completion.reason == "stop" and completion.token_count == 5
    assert run(["Hello", " <", "end", "> x"], "<end>")[0] == ["Hello", " ", "", ""]
    assert run(["Hello", " <", "b> x"], "<end>")[0] == ["Hello", " ", "<b> x"]


def test_eos_ends_without_text_and_shows_what_was_held() -> None:
    completion = Completion(ReservedByteTokenizer(), StopRules(max_new_tokens=9, eos_ids=(1,), strings=("xyz",)))
    assert [completion.push(6 + ord(letter)) for letter in "axy"] == ["a", "", ""]
    assert completion.push(1) == "xy"
    assert (completion.reason, completion.token_count) == ("eos", 4)


def test_another_tokenizers_end_is_no_end() -> None:
    completion = Completion(ByteTokenizer(), StopRules(max_new_tokens=3, eos_ids=eos_of(ByteTokenizer())))
    assert completion.push(1) == "\x01" and completion.reason is None


def test_the_length_limit_shows_what_was_held_and_marks_a_cut_character() -> None:
    completion = Completion(ByteTokenizer(), StopRules(max_new_tokens=3, strings=("ab",)))
    assert [completion.push(byte) for byte in b"xa\xe2"] == ["x", "", "a\ufffd"]
    assert completion.reason == "length"


def test_a_stop_string_at_the_limit_is_a_stop() -> None:
    assert run(["x", "a", "b"], "ab")[1].reason == "stop"


def test_nothing_follows_the_end() -> None:
    _, completion = run(["x"])
    with pytest.raises(DataError, match=r"has ended \(length\)"):
        completion.push(0)


def test_an_id_outside_the_vocabulary_is_refused_and_not_counted() -> None:
    completion = Completion(ByteTokenizer(), StopRules(max_new_tokens=2))
    with pytest.raises(DataError, match="id 300"):
        completion.push(300)
    assert completion.token_count == 0 and completion.push(65) == "A"


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_at_least_one_token_is_asked_for(count: int) -> None:
    with pytest.raises(ConfigError, match=f"got max_new_tokens {count}"):
        StopRules(max_new_tokens=count)


@pytest.mark.parametrize("strings", [("",), ("a", ""), (3,)])
def test_stop_strings_have_characters(strings: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="at least one character"):
        StopRules(max_new_tokens=1, strings=strings)
