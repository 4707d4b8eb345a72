"""A corpus as subword ids: the ids of its pieces, kept in a file that is verified, in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.data import BatchSampler, ByteTokenizer, Split, TokenCorpus, WindowSampler, kept_tokens, open_corpus
from turret.data.subword import SubwordTokenizer
from turret.data.token_corpus import RECORD_FILE, TOKENS_FILE, pieces
from turret.data.tokenizer_training import train_byte_pairs
from turret.files import partial
from turret.spi.errors import DataError

PARTIAL = partial(Path(TOKENS_FILE)).name
TEXT = "the cat sat on the mat, the dog ate the hat;\nand so on and on\n\n  it went: caf\u00e9 12345\r\n" * 40
MESSY = st.text(st.sampled_from("ab \n\r\t\u00e9\u3000\U0001f600.,1"), max_size=60)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SubwordTokenizer:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text(TEXT, newline="")
    return SubwordTokenizer(train_byte_pairs(open_corpus([path]), 300), eos_id="<|endoftext|>")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, text in zip(paths, (TEXT[:1500], TEXT[1500:]), strict=True):
        path.write_text(text, newline="")
    return paths


def ids_of(tokens: TokenCorpus) -> list[int]:
    return tokens.windows([0], len(tokens))[0].tolist()


@given(text=MESSY, size=st.integers(1, 12), chunk=st.integers(1, 9))
def test_pieces_are_the_text_and_do_not_depend_on_chunks(text: str, size: int, chunk: int) -> None:
    raw = text.encode()
    whole = list(pieces([raw], size=size))
    assert "".join(whole) == text
    assert all(0 < len(each) <= size for each in whole)
    assert list(pieces((raw[i : i + chunk] for i in range(0, len(raw), chunk)), size=size)) == whole


@given(text=MESSY, size=st.integers(2, 12))
def test_a_piece_ends_between_print_and_blank_where_it_can(text: str, size: int) -> None:
    for left, right in pairwise(pieces([text.encode()], size=size)):
        window = left + right[:1] if len(left) < size else left
        borders = [i for i in range(1, len(window)) if window[i].isspace() and not window[i - 1].isspace()]
        good = right[0].isspace() and not left[-1].isspace()
        assert good or not borders


@given(text=st.text(st.sampled_from("the cat\n sat\r\n.,'s12\u00e9 "), max_size=200), size=st.integers(20, 40))
def test_pieces_give_the_ids_of_the_whole_with_a_tokenizer_of_ours(
    tokenizer: SubwordTokenizer, text: str, size: int
) -> None:
    cut = list(pieces([text.encode()], size=size))
    if all(right[0].isspace() and not left[-1].isspace() for left, right in pairwise(cut)):
        got = np.concatenate([tokenizer.encode(each) for each in cut]) if cut else np.zeros(0, np.int32)
        np.testing.assert_array_equal(got, tokenizer.encode(text))


def test_ids_are_those_of_the_files_with_the_end_between_them(
    tmp_path: Path, files: list[Path], tokenizer: SubwordTokenizer
) -> None:
    tokens = kept_tokens(tmp_path / "run", open_corpus(files), tokenizer)
    assert tokenizer.eos_id is not None
    first, second = (tokenizer.encode(path.read_bytes().decode()).tolist() for path in files)
    assert ids_of(tokens) == [*first, tokenizer.eos_id, *second]
    assert (tmp_path / "run" / TOKENS_FILE).stat().st_size == 4 * len(tokens)


def test_text_that_looks_like_the_end_is_text(tmp_path: Path, tokenizer: SubwordTokenizer) -> None:
    (tmp_path / "a.txt").write_text("before <|endoftext|> after")
    tokens = kept_tokens(tmp_path, open_corpus([tmp_path / "a.txt"]), tokenizer)
    assert tokenizer.eos_id not in ids_of(tokens)
    assert tokenizer.decode(ids_of(tokens)) == "before <|endoftext|> after"


def test_a_second_call_reads_what_the_first_wrote(
    tmp_path: Path, files: list[Path], tokenizer: SubwordTokenizer
) -> None:
    first = kept_tokens(tmp_path / "run", open_corpus(files), tokenizer)
    written = (tmp_path / "run" / TOKENS_FILE).stat()
    again = kept_tokens(tmp_path / "run", open_corpus(files), tokenizer)
    assert (tmp_path / "run" / TOKENS_FILE).stat().st_ino == written.st_ino
    assert ids_of(again) == ids_of(first)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [TOKENS_FILE, RECORD_FILE]


@pytest.mark.parametrize("left", [[], [RECORD_FILE], [RECORD_FILE, PARTIAL]], ids=str)
def test_what_a_killed_call_left_is_made_anew(
    tmp_path: Path, files: list[Path], tokenizer: SubwordTokenizer, left: list[str]
) -> None:
    run = tmp_path / "run"
    whole = ids_of(kept_tokens(run, open_corpus(files), tokenizer))
    (run / TOKENS_FILE).rename(run / PARTIAL)
    for path in list(run.iterdir()):
        if path.name not in left:
            path.unlink()
    assert ids_of(kept_tokens(run, open_corpus(files), tokenizer)) == whole


def test_tokens_of_other_text_or_another_tokenizer_are_made_anew(
    tmp_path: Path, files: list[Path], tokenizer: SubwordTokenizer
) -> None:
    run = tmp_path / "run"
    kept_tokens(run, open_corpus(files), tokenizer)
    other = kept_tokens(run, open_corpus(files[:1]), tokenizer)
    assert ids_of(other) == tokenizer.encode(files[0].read_bytes().decode()).tolist()
    small = SubwordTokenizer(train_byte_pairs(open_corpus(files), 260))
    assert ids_of(kept_tokens(run, open_corpus(files[:1]), small)) == small.encode(TEXT[:1500]).tolist()


def test_a_damaged_token_file_is_refused(tmp_path: Path, files: list[Path], tokenizer: SubwordTokenizer) -> None:
    run = tmp_path / "run"
    kept_tokens(run, open_corpus(files), tokenizer)
    whole = (run / TOKENS_FILE).read_bytes()
    for data in (whole[:-4], whole + whole[:4], bytes([whole[0] ^ 1]) + whole[1:], b""):
        (run / TOKENS_FILE).write_bytes(data)
        with pytest.raises(DataError, match=rf"{TOKENS_FILE} has \d+ bytes with SHA-256 .* remove it"):
            kept_tokens(run, open_corpus(files), tokenizer)
    (run / TOKENS_FILE).unlink()
    kept_tokens(run, open_corpus(files), tokenizer)


def test_tokens_without_a_record_are_not_ours(tmp_path: Path, files: list[Path], tokenizer: SubwordTokenizer) -> None:
    (tmp_path / TOKENS_FILE).write_bytes(b"mine")
    with pytest.raises(DataError, match=r"has no tokens\.json beside it"):
        kept_tokens(tmp_path, open_corpus(files), tokenizer)
    assert (tmp_path / TOKENS_FILE).read_bytes() == b"mine"


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "{", '{"corpus": 1}', "\x00", "[" * 100_000])
def test_a_record_that_is_none_is_refused(
    tmp_path: Path, files: list[Path], tokenizer: SubwordTokenizer, text: str
) -> None:
    (tmp_path / TOKENS_FILE).write_bytes(b"1234")
    (tmp_path / RECORD_FILE).write_text(text)
    with pytest.raises(DataError, match="is not the record of a token file"):
        kept_tokens(tmp_path, open_corpus(files), tokenizer)


@pytest.mark.parametrize("change", [{"tokens": "12"}, {"tokens": None}, {"sha256": 5}, {"tokens": -1}], ids=str)
def test_a_record_with_nonsense_is_refused(
    tmp_path: Path, files: list[Path], tokenizer: SubwordTokenizer, change: dict[str, object]
) -> None:
    kept_tokens(tmp_path, open_corpus(files), tokenizer)
    raw = json.loads((tmp_path / RECORD_FILE).read_text())
    (tmp_path / RECORD_FILE).write_text(json.dumps(raw | change))
    with pytest.raises(DataError, match="remove"):
        kept_tokens(tmp_path, open_corpus(files), tokenizer)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, files: list[Path], tokenizer: SubwordTokenizer) -> None:
    with pytest.raises(DataError, match=r"cannot keep the tokens of a\.txt and 1 more in "):
        kept_tokens(files[0] / "run", open_corpus(files), tokenizer)


def test_a_file_that_changes_in_use_is_refused(tmp_path: Path, files: list[Path], tokenizer: SubwordTokenizer) -> None:
    tokens = kept_tokens(tmp_path, open_corpus(files), tokenizer)
    ids_of(tokens)
    with (tmp_path / TOKENS_FILE).open("r+b") as stream:
        stream.truncate(8)
    with pytest.raises(DataError, match="changed while it was in use"):
        ids_of(tokens)


def test_windows_outside_are_refused(tmp_path: Path, files: list[Path], tokenizer: SubwordTokenizer) -> None:
    tokens = kept_tokens(tmp_path, open_corpus(files), tokenizer)
    for start in (-1, len(tokens) - 3):
        with pytest.raises(DataError, match=rf"window \[{start}, {start + 4}\) is not inside the {len(tokens)} tokens"):
            tokens.windows([0, start], 4)


def test_windows_are_rows_of_the_ids_and_drawn_as_those_of_bytes(
    tmp_path: Path, files: list[Path], tokenizer: SubwordTokenizer
) -> None:
    tokens = kept_tokens(tmp_path / "run", open_corpus(files), tokenizer)
    ids = ids_of(tokens)
    sampler = WindowSampler(tokens, (10, len(ids)), context=16, batch=5, seed=3)
    inputs, targets = sampler.batch(4, 1)
    assert inputs.dtype == targets.dtype == np.int32
    assert inputs.flags.owndata and inputs.flags.c_contiguous and targets.flags.c_contiguous
    for row, start in enumerate(sampler.offsets(4, 1)):
        assert inputs[row].tolist() == ids[start : start + 16]
        assert targets[row].tolist() == ids[start + 1 : start + 17]
    corpus = open_corpus(files)
    assert BatchSampler(corpus, ByteTokenizer(), (10, len(ids)), 16, 5, 3).offsets(4, 1) == sampler.offsets(4, 1)


def test_errors_count_tokens(tmp_path: Path, files: list[Path], tokenizer: SubwordTokenizer) -> None:
    tokens = kept_tokens(tmp_path / "run", open_corpus(files), tokenizer)
    with pytest.raises(DataError, match="the training part of the corpus has 16 tokens, context 16 needs at least 17"):
        Split.cut(16, val_fraction=0, context=16, unit=tokens.unit)
    with pytest.raises(DataError, match=f"is not inside the {len(tokens)} tokens of a.txt and 1 more"):
        WindowSampler(tokens, (0, len(tokens) + 1), 16, 2, 0)


LARGE = """
import resource, sys
from pathlib import Path
from turret.data import kept_tokens, open_corpus
from turret.data.subword import SubwordTokenizer
unit = 1 if sys.platform == "darwin" else 1024
tokenizer = SubwordTokenizer.from_file(sys.argv[1])
for name in sys.argv[2:]:
    kept_tokens(Path(name + "-run"), open_corpus([name]), tokenizer).close()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs getrusage")
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, tokenizer: SubwordTokenizer) -> None:
    (tmp_path / "t.json").write_text(tokenizer.to_json())
    for name, repeats in (("small", 600), ("large", 6000)):
        (tmp_path / name).write_text(TEXT * repeats, newline="")
    arguments = [str(tmp_path / name) for name in ("t.json", "small", "large")]
    done = subprocess.run([sys.executable, "-c", LARGE, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    small, large = map(int, done.stdout.split())
    assert large - small < 8_000_000
