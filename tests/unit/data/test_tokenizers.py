"""Byte tokenizers lose nothing, and say where input is not text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.data.tokenizers import ByteLevelTokenizer, ByteTokenizer, ReservedByteTokenizer, tokenizer_for
from turret.spi.errors import ConfigError, DataError

BOTH: list[ByteLevelTokenizer] = [ByteTokenizer(), ReservedByteTokenizer()]
both = pytest.mark.parametrize("tokenizer", BOTH, ids=lambda tokenizer: tokenizer.name)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@both
@given(text=texts)
def test_any_text_comes_back_exactly(tokenizer: ByteLevelTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and ids.shape == (len(text.encode()),)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_bytes(ids.tolist()) == text.encode()
    np.testing.assert_array_equal(tokenizer.encode(text.encode()), ids)


@both
@given(raw=st.binary(max_size=40))
def test_any_bytes_come_back_exactly_through_ids(tokenizer: ByteLevelTokenizer, raw: bytes) -> None:
    ids = tokenizer.ids_of(np.frombuffer(raw, np.uint8))
    assert tokenizer.decode_bytes(ids) == raw
    assert tokenizer.decode(ids) == raw.decode("utf-8", "replace")


def test_the_id_of_a_byte_is_the_byte_or_six_more() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(2, 128)
    np.testing.assert_array_equal(ByteTokenizer().ids_of(every), np.arange(256).reshape(2, 128))
    np.testing.assert_array_equal(ReservedByteTokenizer().ids_of(every), np.arange(6, 262).reshape(2, 128))
    assert ReservedByteTokenizer().ids_of(every).dtype == np.int32


def test_vocabularies_and_their_reserved_ids() -> None:
    plain, reserved = BOTH
    assert (plain.name, plain.vocabulary_size, plain.eos_id) == ("bytes", 256, None)
    assert (reserved.name, reserved.vocabulary_size, reserved.eos_id) == ("reserved-bytes", 262, 1)


def test_reserved_ids_are_no_text() -> None:
    assert ReservedByteTokenizer().decode([0, 6 + 72, 1, 2, 6 + 105, 3, 4, 5]) == "Hi"
    # A reserved id between the two bytes of a character does not break it.
    assert ReservedByteTokenizer().decode([6 + 0xC3, 0, 6 + 0xA9]) == "é"


@both
@pytest.mark.parametrize(
    ("raw", "offset", "shown"),
    [(b"abc\xff\xfe!", 3, "ff fe 21"), (b"ok \xe2\x82", 3, "e2 82"), (b"\xed\xa0\x80", 0, "ed a0 80")],
)
def test_bytes_that_are_not_utf8_are_refused_where_they_are(
    tokenizer: ByteLevelTokenizer, raw: bytes, offset: int, shown: str
) -> None:
    with pytest.raises(DataError, match=f"bytes {shown} at offset {offset}"):
        tokenizer.encode(raw)


@both
def test_lone_surrogates_are_refused(tokenizer: ByteLevelTokenizer) -> None:
    with pytest.raises(DataError, match=r"U\+D83D at character 2"):
        tokenizer.encode("ab\ud83dc")


@both
@pytest.mark.parametrize("not_text", [None, 5, ["a"], bytearray(b"a")])
def test_only_text_is_encoded(tokenizer: ByteLevelTokenizer, not_text: object) -> None:
    with pytest.raises(DataError, match=r"want str or bytes"):
        tokenizer.encode(not_text)  # type: ignore[arg-type]


@both
@pytest.mark.parametrize("wrong", [-1, 262, 2**31, 2**63, -(2**63)])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: ByteLevelTokenizer, wrong: int) -> None:
    with pytest.raises(DataError, match=f"id {wrong} at position 1 .* {tokenizer.vocabulary_size}"):
        tokenizer.decode(np.array([7, wrong], np.uint64 if wrong > 0 else np.int64))
    assert ByteTokenizer().decode([255]) == "\ufffd"
    with pytest.raises(DataError, match="id 256"):
        ByteTokenizer().decode([256])


@both
@pytest.mark.parametrize("ids", [[1.0, 2.0], [[1, 2]], [True], ["a"], [2**70], 3])
def test_what_is_no_row_of_ids_is_refused(tokenizer: ByteLevelTokenizer, ids: object) -> None:
    with pytest.raises(DataError, match=r"want integers of shape \(T,\)"):
        tokenizer.decode(ids)  # type: ignore[arg-type]


@both
def test_nothing_encodes_to_nothing(tokenizer: ByteLevelTokenizer) -> None:
    assert tokenizer.encode("").shape == (0,)
    assert tokenizer.decode([]) == ""


@both
def test_only_uint8_is_taken_for_bytes(tokenizer: ByteLevelTokenizer) -> None:
    with pytest.raises(DataError, match="int64, want uint8"):
        tokenizer.ids_of(np.array([300], np.int64))


def test_tokenizers_are_found_by_the_name_they_report() -> None:
    for tokenizer in BOTH:
        assert type(tokenizer_for(tokenizer.name)) is type(tokenizer)


@pytest.mark.parametrize(("name", "meant"), [("byte", "did you mean 'bytes'"), ("reserved_bytes", "'reserved-bytes'")])
def test_an_unknown_tokenizer_comes_with_a_suggestion(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=meant):
        tokenizer_for(name)
    with pytest.raises(ConfigError, match="there are 'bytes', 'reserved-bytes'"):
        tokenizer_for("")
