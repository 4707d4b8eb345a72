"""Subword tokenizers lose nothing, keep control tokens out of text, and refuse files that are none."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from turret.data.subword import SubwordTokenizer
from turret.data.token_bytes import byte_alphabet
from turret.data.tokenizer_files import load_tokenizer
from turret.spi.errors import ConfigError, DataError, MissingExtra, Unsupported

TEXT = ["to be or not to be, that is the question: 1601 Ünïcödé 日本語"] * 4
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def byte_level() -> Tokenizer:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|bos|>", "<|eos|>"]
    library.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False),
    )
    return library


def sentence_piece(*, prepend: bool = True) -> Tokenizer:
    """As Llama 2 has it: a sign for the space, bytes for what is not in the vocabulary, a space in front of all."""
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdeé", "▁a", "▁ab"]
    merges = [("▁", "a"), ("▁a", "b")]
    library = Tokenizer(
        models.BPE({piece: each for each, piece in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True)
    )
    signs = [normalizers.Prepend("▁")] if prepend else []
    library.normalizer = normalizers.Sequence([*signs, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prepend else []
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    library.add_special_tokens(["<unk>", "<s>"])
    return library


BYTES = SubwordTokenizer(byte_level(), eos_id="<|eos|>")
PIECES = SubwordTokenizer(sentence_piece())


def test_the_alphabet_of_gpt2_is_that_of_the_library() -> None:
    assert byte_alphabet().keys() == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert [byte_alphabet()[each] for each in "A!Ġ\u0100\u0143ÿ"] == [65, 33, 32, 0, 173, 255]


@given(text=texts)
def test_any_text_comes_back_exactly(text: str) -> None:
    ids = BYTES.encode(text)
    assert ids.dtype == np.int32 and ids.ndim == 1
    assert BYTES.decode(ids) == text and BYTES.decode_bytes(ids.tolist()) == text.encode()
    np.testing.assert_array_equal(BYTES.encode(text.encode()), ids)
    assert ids.tolist() == byte_level_ids(text)


def byte_level_ids(text: str) -> list[int]:
    return list(LIBRARY.encode(text, add_special_tokens=False).ids)


LIBRARY = byte_level()


@given(text=texts)
def test_pieces_come_back_as_the_library_decodes_them(text: str) -> None:
    ids = PIECES.encode(text)
    # The sign for the space is lost: as a character of a text it cannot be told from one.
    assert PIECES.decode(ids) == text.replace("▁", " ")
    assert b"".join(PIECES.decode_bytes([each]) for each in ids) == PIECES.decode_bytes(ids)


def test_pieces_stand_for_bytes_wherever_they_are() -> None:
    ids = PIECES.encode("ab a\n€")
    assert [PIECES.token_text(each) for each in ids] == ["▁ab", "▁a", "<0x0A>", "<0xE2>", "<0x82>", "<0xAC>"]
    assert PIECES.decode_bytes(ids) == " ab a\n€".encode() and PIECES.decode(ids) == "ab a\n€"
    assert PIECES.decode_bytes(ids[3:5]) == b"\xe2\x82" and PIECES.decode(ids[3:5]) == "\ufffd"
    assert SubwordTokenizer(sentence_piece(prepend=False)).decode(ids) == " ab a\n€"


@pytest.mark.parametrize(
    ("decoder", "whole"),
    [
        (decoders.Metaspace(prepend_scheme="always"), "ab"),
        (decoders.Metaspace(prepend_scheme="never"), " ab"),
        (decoders.Sequence([decoders.Metaspace(prepend_scheme="first"), decoders.Fuse()]), "ab"),
    ],
)
def test_metaspace_decoders(decoder: Any, whole: str) -> None:
    library = sentence_piece()
    library.decoder = decoder
    tokenizer = SubwordTokenizer(library)
    ids, new_line = tokenizer.encode("ab"), tokenizer.token_id("<0x0A>")
    assert [tokenizer.token_text(each) for each in ids] == ["▁ab"] and new_line is not None
    assert tokenizer.decode(ids) == whole == library.decode(ids.tolist())
    assert tokenizer.decode([new_line]) == "<0x0A>"  # without ByteFallback it is its text


@pytest.mark.parametrize(
    ("decoder", "said"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.CTC(), "CTC"),
        (decoders.Fuse(), "Fuse"),
        (decoders.Sequence([decoders.ByteLevel(), decoders.Strip("x", 1, 0)]), "Strip"),
        (decoders.Sequence([decoders.ByteLevel(), decoders.Metaspace()]), "Sequence"),
        (None, "none"),
    ],
)
def test_other_decoders_are_refused_by_name(decoder: Any, said: str) -> None:
    library = byte_level()
    document = json.loads(library.to_str())
    document["decoder"] = None if decoder is None else json.loads(decoder.__getstate__())
    with pytest.raises(Unsupported, match=f"decoder is {said}"):
        SubwordTokenizer.from_json(json.dumps(document))


def test_control_tokens_are_text_unless_they_are_asked_for() -> None:
    plain = BYTES.encode("a<|eos|>")
    assert not BYTES.special_ids.intersection(plain.tolist())
    assert BYTES.decode(plain) == "a<|eos|>"
    marked = BYTES.encode("a<|eos|>", special=True)
    assert marked.tolist() == [*BYTES.encode("a").tolist(), 1]
    assert BYTES.decode(marked) == "a" and BYTES.decode_bytes([1, 0]) == b""
    assert (BYTES.eos_id, BYTES.token_id("<|eos|>"), BYTES.token_id("<|none|>")) == (1, 1, None)
    assert BYTES.special_ids == {0, 1} and BYTES.vocabulary_size == 300 and BYTES.name == "subword"


def test_added_tokens_that_look_like_control_tokens_are_and_others_are_text() -> None:
    library = byte_level()
    library.add_tokens(["<|user|>", "<\uff5ctool\uff5c>", "<think>"])
    tokenizer = SubwordTokenizer(library)
    assert tokenizer.special_ids == {0, 1, 300, 301}
    assert tokenizer.encode("<|user|><think>").tolist()[-1] == 302 and 300 not in tokenizer.encode("<|user|>")
    assert tokenizer.decode([300, 302, 301]) == "<think>"


def test_the_eos_is_a_control_token_whatever_it_looks_like() -> None:
    library = byte_level()
    library.add_tokens(["[STOP]"])
    for eos in ("[STOP]", 300):
        tokenizer = SubwordTokenizer(library, eos_id=eos)
        assert tokenizer.eos_id == 300 and 300 not in tokenizer.encode("[STOP]") and tokenizer.decode([300]) == ""
    assert SubwordTokenizer(library).eos_id is None


@pytest.mark.parametrize("eos", ["no such", -1, 300, 2**40])
def test_an_eos_outside_the_vocabulary_is_refused(eos: Any) -> None:
    with pytest.raises(ConfigError, match="not in the vocabulary"):
        SubwordTokenizer(byte_level(), eos_id=eos)


@pytest.mark.parametrize("eos", [True, 1.0, b"<s>", [1], np.int64(1)])
def test_an_eos_that_is_no_id_and_no_text_is_refused(eos: Any) -> None:
    with pytest.raises(ConfigError, match="want an id or the text of a token"):
        SubwordTokenizer(byte_level(), eos_id=eos)


def test_extra_tokens_are_control_tokens() -> None:
    tokenizer = SubwordTokenizer(byte_level(), extra_tokens={"<b>": 301, "<a>": 300, "<|eos|>": 1}, eos_id="<a>")
    assert tokenizer.vocabulary_size == 302 and tokenizer.special_ids == {0, 1, 300, 301} and tokenizer.eos_id == 300
    assert tokenizer.encode("<b><a>", special=True).tolist() == [301, 300]
    again = SubwordTokenizer.from_json(tokenizer.to_json())
    assert (again.to_json(), again.fingerprint) == (tokenizer.to_json(), tokenizer.fingerprint)


@pytest.mark.parametrize("extra", [{"<a>": 305}, {"<a>": 7}, {"<|eos|>": 5}])
def test_extra_tokens_that_cannot_have_their_ids_are_refused(extra: dict[str, int]) -> None:
    with pytest.raises(DataError, match="claims id"):
        SubwordTokenizer(byte_level(), extra_tokens=extra)


def test_what_is_added_around_a_text_is_told_and_not_encoded() -> None:
    library = byte_level()
    library.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A <|eos|>", special_tokens=[("<|bos|>", 0), ("<|eos|>", 1)]
    )
    tokenizer = SubwordTokenizer(library)
    assert (tokenizer.prefix, tokenizer.suffix) == ((0,), (1,)) and (BYTES.prefix, BYTES.suffix) == ((), ())
    np.testing.assert_array_equal(tokenizer.encode("to be"), BYTES.encode("to be"))


def test_truncation_and_padding_of_a_file_do_not_cut_texts() -> None:
    library = byte_level()
    library.enable_truncation(2)
    library.enable_padding(length=400)
    tokenizer = SubwordTokenizer(library)
    np.testing.assert_array_equal(tokenizer.encode(TEXT[0]), BYTES.encode(TEXT[0]))
    assert library.truncation is not None  # the given one is as it was


def test_random_merges_are_refused() -> None:
    document = json.loads(byte_level().to_str())
    document["model"]["dropout"] = 0.1
    with pytest.raises(Unsupported, match="dropout"):
        SubwordTokenizer.from_json(json.dumps(document))


def test_a_byte_without_a_token_is_refused_where_it_is() -> None:
    library = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = SubwordTokenizer(library)
    assert tokenizer.encode("abba").tolist() == [0, 1, 1, 0]
    for special in (False, True):
        with pytest.raises(DataError, match="no token for byte 0xc3, at offset 2"):
            tokenizer.encode("abé", special=special)


@pytest.mark.parametrize("wrong", [-1, 300, 2**31, 2**63, -(2**63)])
def test_ids_outside_the_vocabulary_are_refused(wrong: int) -> None:
    with pytest.raises(DataError, match=f"id {wrong} at position 1 .* 300"):
        BYTES.decode(np.array([7, wrong], np.uint64 if wrong > 0 else np.int64))


def test_holes_of_the_vocabulary_are_refused() -> None:
    library = Tokenizer(models.BPE({**{c: n for n, c in enumerate(sorted(byte_alphabet()))}, "ab": 400}, []))
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = SubwordTokenizer(library)
    assert tokenizer.vocabulary_size == 401 and tokenizer.decode([400]) == "ab"
    with pytest.raises(DataError, match="id 300 at position 1 is a hole"):
        tokenizer.decode([400, 300])


@pytest.mark.parametrize("ids", [[1.0], [[1, 2]], ["a"], 3])
def test_what_is_no_row_of_ids_is_refused(ids: Any) -> None:
    with pytest.raises(DataError, match=r"want integers of shape \(T,\)"):
        BYTES.decode(ids)


@pytest.mark.parametrize(
    ("text", "said"),
    [(b"ok \xff", "offset 3"), ("a\ud83d", "U\\+D83D at character 1"), (5, "want str or bytes"), (None, "want str")],
)
def test_what_is_no_text_is_refused(text: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        BYTES.encode(text)
    assert BYTES.encode("").shape == (0,) and BYTES.decode([]) == ""


def test_a_file_and_its_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    byte_level().save(str(path), pretty=True)
    tokenizer = SubwordTokenizer.from_file(path, eos_id=1)
    assert tokenizer.fingerprint == BYTES.fingerprint and len(tokenizer.fingerprint) == 64
    assert tokenizer.eos_id == 1
    path.write_text(tokenizer.to_json(), "utf-8")
    assert SubwordTokenizer.from_file(str(path)).fingerprint == tokenizer.fingerprint
    assert PIECES.fingerprint != tokenizer.fingerprint


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '{"version": "1.0"}', "[" * 100_000, '{"model": {"type": "BPE"}}', "\x00"]
)
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"tokenizer\.json is not a tokenizer\.json"):
        SubwordTokenizer.from_file(path)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"{\xff}")
    with (tmp_path / "large").open("wb") as file:
        file.truncate((256 << 20) + 1)
    for name, said in {
        "absent": "could not be read",
        ".": "no regular file",
        "pipe": "no regular file",
        "bytes": "not UTF-8",
        "large": "more than 268435456 bytes",
    }.items():
        with pytest.raises(DataError, match=said):
            SubwordTokenizer.from_file(tmp_path / name)


def write(folder: Path, config: Any, template: str | None = None) -> Path:
    byte_level().save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def test_a_directory_of_a_model(tmp_path: Path) -> None:
    config = {
        "eos_token": {"content": "<|eos|>"},
        "bos_token": "<|bos|>",
        "pad_token": None,
        "added_tokens_decoder": {
            "1": {"content": "<|eos|>", "special": True},
            "301": {"content": "<tool>", "special": False},
            "300": {"content": "<extra>", "special": True},
        },
        "chat_template": [{"name": "tools", "template": "x"}, {"name": "default", "template": "{{ eos_token }}!"}],
    }
    tokenizer, template = load_tokenizer(write(tmp_path, config))
    assert tokenizer.eos_id == 1 and tokenizer.special_ids == {0, 1, 300} and tokenizer.token_id("<tool>") == 301
    assert tokenizer.encode("<tool>").tolist() == [301] and tokenizer.decode([300, 301]) == "<tool>"
    assert template is not None and template.special == {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    assert template.render([], add_generation_prompt=False) == "<|eos|>!"
    _, template = load_tokenizer(write(tmp_path, config, "of the file"))
    assert template is not None and template.source == "of the file"


@pytest.mark.parametrize("config", [None, {}])
def test_a_directory_with_a_tokenizer_only(tmp_path: Path, config: Any) -> None:
    tokenizer, template = load_tokenizer(write(tmp_path, config))
    assert template is None and tokenizer.eos_id is None and tokenizer.fingerprint == BYTES.fingerprint


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ([], "holds a list, want an object"),
        ({"added_tokens_decoder": {"x": {"content": "a"}}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"300": "a"}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": []}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"999": {"content": "<a>"}}}, "claims id 999"),
        ({"added_tokens_decoder": {"9" * 400: {"content": "<a>"}}}, "claims id 9999999999|not a tokenizer.json"),
        ({"chat_template": 5}, "chat_template is a int"),
        ({"chat_template": [{"name": "x", "template": "y"}]}, "named 'default'"),
        ({"chat_template": "{% if %}"}, "TemplateSyntaxError"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(tmp_path: Path, config: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        load_tokenizer(write(tmp_path, config))


def test_an_eos_that_the_vocabulary_lacks_and_a_directory_without_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.json could not be read"):
        load_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match="'</s>' is not in the vocabulary"):
        load_tokenizer(write(tmp_path, {"eos_token": "</s>"}))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_link_to_nothing_is_no_folder_without_the_file(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, {})
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=f"{name} could not be read"):
        load_tokenizer(folder)


Damage = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d["model"]["merges"].append(["zz", "qq"]),
        lambda d: d["model"]["vocab"].update({"far": 2**31}),
        lambda d: d["model"]["vocab"].update({"far": 2**23}),
        lambda d: d["model"]["vocab"].update({"far": -1}),
        lambda d: d["added_tokens"].append({"id": 1}),
        lambda d: d["added_tokens"][0].update(id=17),
        lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}),
        lambda d: d.update(model={"type": "Magic"}),
        lambda d: d.update(post_processor={"type": "TemplateProcessing", "single": [], "pair": []}),
    ],
)
def test_damaged_tokenizers_are_refused(damage: Damage) -> None:
    document = json.loads(byte_level().to_str())
    damage(document)
    with pytest.raises(DataError):
        SubwordTokenizer.from_json(json.dumps(document))


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r'pip install "core\[hub\]"'):
        SubwordTokenizer.from_json(BYTES.to_json())
