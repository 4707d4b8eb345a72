"""Byte-pair encoding learned from text: the pairs of the algorithm, the same each time, and lossless."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.data import Corpus, open_corpus
from turret.data.subword import SubwordTokenizer
from turret.data.tokenizer_training import bytes_per_token, train_byte_pairs
from turret.spi.errors import ConfigError, DataError

TEXT = "low lower lowest newer newest wider widest lowly slowly and so on " * 12 + "the end of low hats " * 5


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "a.txt").write_text(TEXT)
    return open_corpus([tmp_path / "a.txt"])


def test_each_merge_is_of_a_most_frequent_pair(corpus: Corpus) -> None:
    made = json.loads(train_byte_pairs(corpus, 257 + 30).to_str())
    words = Counter(re.findall(r" ?\w+| ", TEXT))
    split = {word: list(word.replace(" ", "\u0120")) for word in words}
    assert len(made["model"]["merges"]) == 30
    for left, right in made["model"]["merges"]:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(split[word]):
                pairs[pair] += count
        assert pairs[left, right] == max(pairs.values())
        for word, parts in split.items():
            merged: list[str] = []
            for part in parts:
                if merged and (merged[-1], part) == (left, right):
                    merged[-1] += part
                else:
                    merged.append(part)
            split[word] = merged


def test_every_byte_and_every_special_token_has_an_id(corpus: Corpus) -> None:
    tokenizer = SubwordTokenizer(train_byte_pairs(corpus, 290, ["<|user|>", "<|tool|>"]))
    assert [tokenizer.token_id(text) for text in ("<|endoftext|>", "<|user|>", "<|tool|>")] == [0, 1, 2]
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.vocabulary_size == 290
    singles = {tokenizer.decode_bytes([token_id]) for token_id in range(3, 259)}
    assert singles == {bytes([byte]) for byte in range(256)}


TRAINED: dict[str, SubwordTokenizer] = {}


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=80))
def test_any_text_comes_back_exactly(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    if not TRAINED:
        path = tmp_path_factory.mktemp("text") / "a.txt"
        path.write_text(TEXT)
        TRAINED["it"] = SubwordTokenizer(train_byte_pairs(open_corpus([path]), 400), eos_id="<|endoftext|>")
    ids = TRAINED["it"].encode(text)
    assert TRAINED["it"].decode(ids) == text
    assert 0 not in ids


def test_the_same_text_gives_the_same_tokenizer_in_any_process(tmp_path: Path, corpus: Corpus) -> None:
    code = (
        "import sys\nfrom turret.data import open_corpus\n"
        "from turret.data.tokenizer_training import train_byte_pairs\n"
        "sys.stdout.write(train_byte_pairs(open_corpus([sys.argv[1]]), 320).to_str())"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "a.txt")],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
        ).stdout
        for seed, threads in (("0", "1"), ("1", "4"))
    }
    assert made == {train_byte_pairs(corpus, 320).to_str()}


def test_a_corpus_without_more_pairs_gives_fewer_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefg")
    assert train_byte_pairs(open_corpus([tmp_path / "a.txt"]), 5000).get_vocab_size() == 257


def test_bytes_per_token_is_that_of_the_ids(tmp_path: Path, corpus: Corpus) -> None:
    made = train_byte_pairs(corpus, 300)
    count = len(made.encode(TEXT, add_special_tokens=False).ids)
    assert bytes_per_token(corpus, made) == len(TEXT) / count
    assert bytes_per_token(corpus, train_byte_pairs(corpus, 257)) == 1


@pytest.mark.parametrize("vocabulary", [0, 1, -5, 256, 257, 1_000_001, 2**70, 300.0, True, "300"])
def test_a_vocabulary_that_makes_no_sense_is_refused(corpus: Corpus, vocabulary: int) -> None:
    with pytest.raises(ConfigError, match=r"wanted 258 \(256 bytes and 2 special tokens\) to 1000000"):
        train_byte_pairs(corpus, vocabulary, ["<|user|>"])


@pytest.mark.parametrize(
    ("special", "message"),
    [
        ([""], "wanted 2 to 100"),
        (["a"], "wanted 2 to 100"),
        (["x" * 101], "wanted 2 to 100"),
        ([" <|a|>"], "no blank"),
        (["<|a\n|>"], "printable"),
        (["<|a\ud800|>"], "printable"),
        (["<|a|>", "<|a|>"], "given twice"),
        (["<|endoftext|>"], "given twice"),
    ],
)
def test_special_tokens_that_make_no_sense_are_refused(corpus: Corpus, special: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_byte_pairs(corpus, 300, special)


def test_a_special_token_that_is_a_word_of_the_text_is_refused(corpus: Corpus) -> None:
    with pytest.raises(DataError, match="'low'"):
        bytes_per_token(corpus, train_byte_pairs(corpus, 400, ["low"]))
