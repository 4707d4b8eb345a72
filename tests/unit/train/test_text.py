"""What a run reads: the tokenizer it names or has stored, and the very ids it was trained on."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from turret.data import open_corpus
from turret.data.subword import SubwordTokenizer
from turret.data.tokenizer_training import train_byte_pairs
from turret.spi import CheckpointError, ConfigError, DataError
from turret.train import RunConfig
from turret.train.checkpoint import CheckpointContent
from turret.train.run import require_fresh
from turret.train.text import RunText, read_tokenizer, require_same_tokenizer, stored_tokenizer, tokenizer_of

MakeContent = Callable[[int], CheckpointContent]
TEXT = "the cat sat on the mat and the dog ate the hat " * 30


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text(TEXT)
    return tmp_path / "a.txt"


@pytest.fixture
def file(tmp_path: Path, corpus: Path) -> Path:
    (tmp_path / "t.json").write_text(train_byte_pairs(open_corpus([corpus]), 275).to_str(pretty=True))
    return tmp_path / "t.json"


@pytest.fixture
def config(corpus: Path, file: Path) -> RunConfig:
    return RunConfig(corpus=(str(corpus),), tokenizer_file=str(file))


def stored(make_content: MakeContent, file: Path, text: RunText | None = None) -> CheckpointContent:
    return replace(
        make_content(1),
        tokenizer="subword",
        tokenizer_json=read_tokenizer(file).to_json(),
        data={} if text is None else text.provenance.to_dict(),
        extra={} if text is None else text.facts(),
    )


def test_a_file_gives_its_tokenizer_with_the_end_of_text(config: RunConfig, file: Path) -> None:
    tokenizer = tokenizer_of(config, None)
    assert isinstance(tokenizer, SubwordTokenizer)
    assert (tokenizer.vocabulary_size, tokenizer.eos_id) == (275, 0)
    assert config.model_config(275).vocabulary == 275


def test_without_a_file_a_run_is_on_bytes() -> None:
    assert tokenizer_of(RunConfig(), None).name == "bytes"
    assert tokenizer_of(RunConfig(model="mini"), None).name == "reserved-bytes"


def test_a_tokenizer_without_a_known_end_has_none(tmp_path: Path, file: Path) -> None:
    raw = json.loads(file.read_text())
    raw["added_tokens"][0]["content"] = "<|stop|>"
    raw["model"]["vocab"]["<|stop|>"] = raw["model"]["vocab"].pop("<|endoftext|>")
    (tmp_path / "other.json").write_text(json.dumps(raw))
    assert read_tokenizer(tmp_path / "other.json").eos_id is None


def test_the_size_of_the_model_is_not_guessed(config: RunConfig) -> None:
    with pytest.raises(ConfigError, match="decides the model's size; pass it"):
        config.model_config()


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", '{"model": {"type": "BPE"}}', "\x00\xff"])
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"t\.json"):
        tokenizer_of(RunConfig(tokenizer_file=str(tmp_path / "t.json")), None)


def test_the_stored_tokenizer_is_the_one_that_was_read(make_content: MakeContent, file: Path) -> None:
    original, back = read_tokenizer(file), stored_tokenizer(stored(make_content, file))
    assert isinstance(back, SubwordTokenizer)
    assert (back.fingerprint, back.eos_id) == (original.fingerprint, original.eos_id)
    assert back.to_json() == original.to_json()
    assert back.encode(TEXT).tolist() == original.encode(TEXT).tolist()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("subword", None, "it lacks its tokenizer.json"),
        ("bytes", "{}", "it has a tokenizer.json"),
        ("subword", "{}", "cannot be used: .*not a tokenizer.json"),
        ("subword", "[" * 100_000, "cannot be used"),
        ("words", None, "cannot be used: unknown tokenizer 'words'"),
    ],
    ids=["lacking", "superfluous", "foreign", "deep", "unknown"],
)
def test_a_checkpoint_whose_tokenizer_is_none_is_refused(
    make_content: MakeContent, name: str, text: str | None, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        stored_tokenizer(replace(make_content(1), tokenizer=name, tokenizer_json=text))


def test_a_checkpoint_of_another_kind_than_the_configuration_is_refused(
    make_content: MakeContent, config: RunConfig, file: Path
) -> None:
    with pytest.raises(ConfigError, match="has the tokenizer 'bytes'"):
        tokenizer_of(config, make_content(1))
    with pytest.raises(ConfigError, match="has the tokenizer 'subword'"):
        tokenizer_of(RunConfig(), stored(make_content, file))


def test_a_resumed_run_compares_tokenizers_by_content(
    tmp_path: Path, make_content: MakeContent, corpus: Path, file: Path
) -> None:
    checkpoint = stored(make_content, file)
    (tmp_path / "copy.json").write_text(file.read_text())
    require_same_tokenizer(checkpoint, tmp_path / "copy.json")
    (tmp_path / "other.json").write_text(train_byte_pairs(open_corpus([corpus]), 270).to_str())
    with pytest.raises(ConfigError, match="is not the tokenizer of this run; leave --tokenizer out"):
        require_same_tokenizer(checkpoint, tmp_path / "other.json")
    with pytest.raises(ConfigError, match="a resumed run keeps its bytes"):
        require_same_tokenizer(make_content(1), file)
    with pytest.raises(DataError, match="absent"):
        require_same_tokenizer(checkpoint, tmp_path / "absent.json")


def test_a_run_goes_on_with_the_ids_it_was_trained_on_and_no_others(
    tmp_path: Path, make_content: MakeContent, config: RunConfig, file: Path
) -> None:
    tokenizer, run = tokenizer_of(config, None), tmp_path / "run"
    text = RunText(config, tokenizer, run, None)
    checkpoint = stored(make_content, file, text)
    assert text.bytes_per_token == len(TEXT) / len(text.source)
    assert RunText(config, tokenizer, run, checkpoint).facts() == text.facts()
    (run / "tokens.bin").unlink()
    assert RunText(config, tokenizer, run, checkpoint).facts() == text.facts()
    changed = replace(checkpoint, extra={"tokens": {**text.facts()["tokens"], "sha256": "0" * 64}})
    with pytest.raises(DataError, match=r"the corpus gives \d+ tokens .*, this run was trained on \d+"):
        RunText(config, tokenizer, run, changed)
    for extra in ({}, {"tokens": 5}):
        with pytest.raises(CheckpointError, match="does not say which 'tokens' it was trained on"):
            RunText(config, tokenizer, run, replace(checkpoint, extra=extra))


def test_bytes_are_kept_nowhere(tmp_path: Path, corpus: Path) -> None:
    config = RunConfig(corpus=(str(corpus),))
    text = RunText(config, config.byte_tokenizer, tmp_path / "run", None)
    assert (text.bytes_per_token, text.facts(), text.tokenizer_json) == (1, {}, None)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_kept_tokens_alone_is_still_new(
    tmp_path: Path, config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    with caplog.at_level(logging.INFO, "turret"):
        RunText(config, tokenizer_of(config, None), run, None)
    assert f"making tokens of {len(TEXT)} bytes" in caplog.text
    require_fresh(run)
    (run / "tokens.json").unlink()
    with pytest.raises(ConfigError, match="not empty"):
        require_fresh(run)
