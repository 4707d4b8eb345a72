"""`turret tokenizer train` writes one new file, says what it is, and refuses the rest in one line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from turret.cli import main
from turret.data.subword import SubwordTokenizer

TEXT = "the cat sat on the mat and the dog ate the hat " * 30


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    (tmp_path / "a.txt").write_text(TEXT)
    return str(tmp_path / "a.txt")


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    status = main(["tokenizer", "train", *args])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_tokenizer_is_written_and_described(tmp_path: Path, corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.json"
    status, printed, err = call(
        capsys, "--corpus", corpus, "--vocabulary", "270", "--out", str(out), "--special", "<|user|>"
    )
    assert (status, err) == (0, "")
    (line,) = printed.splitlines()
    tokenizer = SubwordTokenizer.from_file(out)
    assert json.loads(line) == {
        "vocabulary": 270,
        "bytes_per_token": round(len(TEXT) / len(tokenizer.encode(TEXT)), 4),
        "file": str(out),
        "sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
    }
    assert tokenizer.token_id("<|user|>") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "t.json"]


def test_the_same_text_gives_the_same_file(tmp_path: Path, corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("1.json", "2.json"):
        assert call(capsys, "--corpus", corpus, "--vocabulary", "280", "--out", str(tmp_path / name))[0] == 0
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()


def test_nothing_is_overwritten(tmp_path: Path, corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link", "."):
        status, out, err = call(capsys, "--corpus", corpus, "--vocabulary", "280", "--out", str(tmp_path / name))
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert "is there already and stays as it is" in err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_corpus_with_too_few_pairs_says_so(tmp_path: Path, corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "--corpus", corpus, "--vocabulary", "5000", "--out", str(tmp_path / "t.json"))
    assert status == 0
    assert 257 < json.loads(out)["vocabulary"] < 5000
    assert err.count("\n") == 1 and "not 5000; more text gives more" in err


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"--vocabulary": "256"}, 2, "vocabulary 256; wanted 257"),
        ({"--vocabulary": "-1"}, 2, "vocabulary -1; wanted 257"),
        ({"--vocabulary": "99999999"}, 2, "to 1000000"),
        ({"--vocabulary": "9" * 400}, 2, "wanted 257"),
        ({"--vocabulary": "many"}, 2, "many"),
        ({"--special": ""}, 2, "special token ''"),
        ({"--special": "<|endoftext|>"}, 2, "given twice"),
        ({"--corpus": "nowhere.txt"}, 1, "does not exist"),
        ({"--corpus": "builtin:nothing"}, 2, "unknown built-in corpus"),
        ({"--corpus": ""}, 1, "empty corpus path"),
        ({"--out": ""}, 2, "an empty path"),
        ({"--out": "no/such/folder/t.json"}, 2, "is no folder"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_in_one_line(
    tmp_path: Path,
    corpus: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"--corpus": corpus, "--vocabulary": "280", "--out": "t.json"} | change
    got, out, err = call(capsys, *(word for option in options.items() for word in option))
    assert (got, out, err.count("\n")) == (status, "", 1)
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("data", [b"", b"caf\xe9 of \xff"], ids=["empty", "binary"])
def test_a_corpus_that_is_no_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    status, _, err = call(
        capsys, "--corpus", str(tmp_path / "a"), "--vocabulary", "280", "--out", str(tmp_path / "t.json")
    )
    assert (status, err.count("\n")) == (1, 1)
    assert "empty" in err or "is not UTF-8" in err
    assert not (tmp_path / "t.json").exists()
