"""Streamed text is whole characters, and all of it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turret.data.tokenizers import ByteTokenizer, ReservedByteTokenizer
from turret.generate.text import TextStream
from turret.spi.errors import DataError


@given(raw=st.binary(max_size=40) | st.text(max_size=15).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"\xe2\x82")
@example(b"\xf0\x9f\x98A\xf0\x9f\x98\x80")
@example(b"\xe2\xe2\x82\xac\xed\xa0\x80\xff")
def test_all_pieces_are_the_bytes_decoded_with_replacement(raw: bytes) -> None:
    stream = TextStream(ByteTokenizer())
    pieces = [stream.push(byte) for byte in raw]
    assert "".join(pieces) + stream.finish() == raw.decode("utf-8", "replace")


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_character_comes_with_its_last_byte(text: str) -> None:
    stream = TextStream(ByteTokenizer())
    for character in text:
        *before, last = [stream.push(byte) for byte in character.encode()]
        assert set(before) <= {""} and last == character
    assert stream.finish() == ""


def test_reserved_ids_are_silent_even_inside_a_character() -> None:
    stream = TextStream(ReservedByteTokenizer())
    assert [stream.push(token) for token in (6 + 0xC3, 0, 5, 6 + 0xA9, 1)] == ["", "", "", "é", ""]


def test_a_finished_stream_is_new() -> None:
    stream = TextStream(ByteTokenizer())
    stream.push(0xC3)
    assert stream.finish() == "\ufffd"
    assert stream.push(0xA9) == "\ufffd" and stream.finish() == ""


def test_an_id_outside_the_vocabulary_changes_nothing() -> None:
    stream = TextStream(ByteTokenizer())
    stream.push(0xC3)
    with pytest.raises(DataError, match="id 256"):
        stream.push(256)
    assert stream.push(0xA9) == "é"
