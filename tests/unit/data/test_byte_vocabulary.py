"""The byte tokenizers as files of the tokenizers library: the same ids for every text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from turret.data.byte_vocabulary import as_subwords
from turret.data.tokenizers import RESERVED, ByteTokenizer, ReservedByteTokenizer

PAIRS = [(each, as_subwords(each)) for each in (ByteTokenizer(), ReservedByteTokenizer())]


@given(st.text() | st.sampled_from(["<|eos|>", " \n\t  a", "\x00\x7f\u0085", "e\u0301"]))
def test_ids_and_text_are_the_same(text: str) -> None:
    for ours, subwords in PAIRS:
        ids = ours.encode(text).tolist()
        assert subwords.encode(text).tolist() == ids
        assert subwords.decode(ids) == text
        assert Tokenizer.from_str(subwords.to_json()).decode(ids) == text


@pytest.mark.parametrize("ours", [ours for ours, _ in PAIRS], ids=lambda each: each.name)
def test_every_id_stands_for_the_same_bytes(ours: ByteTokenizer | ReservedByteTokenizer) -> None:
    made = as_subwords(ours)
    assert (made.vocabulary_size, made.eos_id, made.prefix) == (ours.vocabulary_size, ours.eos_id, ours.prefix)
    for token_id in range(ours.vocabulary_size):
        assert made.decode_bytes([token_id]) == ours.decode_bytes([token_id])


def test_reserved_ids_are_control_tokens() -> None:
    made = as_subwords(ReservedByteTokenizer())
    assert [made.token_text(n) for n in range(len(RESERVED))] == [f"<|{word}|>" for word in RESERVED]
    assert made.special_ids == frozenset(range(len(RESERVED)))
    assert made.encode("a<|eos|>", special=True).tolist() == [6 + ord("a"), 1]
