"""Batches are a pure function of seed, step and micro-batch, uniform over all windows, on any size of corpus."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from turret.data.batches import BatchSampler, Split
from turret.data.corpora import Corpus, open_corpus
from turret.data.tokenizers import ByteTokenizer, ReservedByteTokenizer
from turret.spi.errors import ConfigError, DataError

TEXT = bytes(range(32, 127)) * 20


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "a").write_bytes(TEXT[:700])
    (tmp_path / "b").write_bytes(TEXT[700:])
    return open_corpus([tmp_path / "a", tmp_path / "b"])


def sampler(corpus: Corpus, span: tuple[int, int] | None = None, seed: int = 3) -> BatchSampler:
    return BatchSampler(corpus, ByteTokenizer(), span or (0, len(corpus)), context=16, batch=4, seed=seed)


@given(length=st.integers(40, 10**11), fraction=st.floats(0, 0.999, allow_subnormal=False), context=st.integers(1, 16))
def test_a_split_covers_everything_once(length: int, fraction: float, context: int) -> None:
    try:
        split = Split.cut(length, val_fraction=fraction, context=context)
    except DataError:
        # Too small is judged by the exact shares, rounding up or down by at most one byte.
        assert length * (1 - fraction) < context + 2 or length * fraction < context + 2
        return
    (start, border), (again, stop) = split.train, split.val
    assert (start, again, stop) == (0, border, length)
    assert abs(border - length * (1 - fraction)) <= 1 + length * 1e-15
    assert border > context and (fraction == 0 or stop - border > context)


def test_the_split_of_a_published_recipe() -> None:
    assert Split.cut(1_115_394, val_fraction=0.1, context=64) == Split(train=(0, 1_003_854), val=(1_003_854, 1_115_394))


def test_no_validation_is_an_empty_span() -> None:
    assert Split.cut(17, val_fraction=0, context=16) == Split(train=(0, 17), val=(17, 17))


@pytest.mark.parametrize(
    ("length", "fraction", "part", "got"), [(16, 0.0, "training", 16), (100, 0.1, "validation", 10)]
)
def test_too_little_text_says_how_much_is_needed(length: int, fraction: float, part: str, got: int) -> None:
    with pytest.raises(DataError, match=f"{part} part .* has {got} bytes, context 16 needs at least 17"):
        Split.cut(length, val_fraction=fraction, context=16)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan"), float("inf"), "0.1"])
def test_a_fraction_lies_in_the_half_open_unit_interval(fraction: float) -> None:
    with pytest.raises(ConfigError, match="at least 0 and below 1"):
        Split.cut(1000, val_fraction=fraction, context=16)


def test_rows_are_windows_and_targets_their_next_bytes(corpus: Corpus) -> None:
    one = sampler(corpus, (650, 750))
    inputs, targets = one.batch(5, 1)
    assert inputs.dtype == targets.dtype == np.int32
    assert inputs.shape == targets.shape == (4, 16)
    assert inputs.flags.owndata and inputs.flags.c_contiguous and targets.flags.c_contiguous
    for row, offset in enumerate(one.offsets(5, 1)):
        assert offset in range(650, 750 - 17 + 1)
        assert bytes(inputs[row].tolist()) == TEXT[offset : offset + 16]
        assert bytes(targets[row].tolist()) == TEXT[offset + 1 : offset + 17]


def test_ids_are_the_tokenizers(corpus: Corpus) -> None:
    plain = sampler(corpus).batch(0)
    reserved = BatchSampler(corpus, ReservedByteTokenizer(), (0, len(corpus)), 16, 4, 3).batch(0)
    np.testing.assert_array_equal(reserved.inputs, plain.inputs + 6)


@given(step=st.integers(0, 2**40), micro=st.integers(0, 100))
def test_a_new_sampler_continues_at_any_step(step: int, micro: int) -> None:
    corpus = open_corpus(["builtin:python-docs"], validate=False)
    running, restarted = sampler(corpus), sampler(corpus)
    running.batch(0)
    running.fixed_batches(2)
    for got, want in zip(restarted.batch(step, micro), running.batch(step, micro), strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_batches_of_a_seed_never_change(corpus: Corpus) -> None:
    assert sampler(corpus).offsets(0) == [1144, 1723, 579, 1246]
    assert sampler(corpus).offsets(7, 2) == [139, 1295, 1601, 23]


def test_steps_micro_batches_and_seeds_draw_differently(corpus: Corpus) -> None:
    draws = [
        sampler(corpus, seed=seed).offsets(step, micro) for seed in (0, 1) for step in range(5) for micro in (0, 1)
    ]
    assert len({tuple(draw) for draw in draws}) == 20
    one = sampler(corpus)
    by_step = np.array([one.offsets(step)[0] for step in range(500)])
    by_micro = np.array([one.offsets(0, micro)[0] for micro in range(500)])
    assert abs(np.corrcoef(by_step[1:], by_micro[1:])[0, 1]) < 4 / np.sqrt(500)
    assert abs(np.corrcoef(by_step[1:], by_step[:-1])[0, 1]) < 4 / np.sqrt(500)


def test_offsets_are_uniform_over_every_window(corpus: Corpus) -> None:
    one = BatchSampler(corpus, ByteTokenizer(), (100, 137), context=16, batch=64, seed=11)
    drawn = np.concatenate([one.offsets(step, micro) for step in range(50) for micro in range(4)])
    counts = np.bincount(drawn - 100, minlength=one.starts)
    assert len(counts) == one.starts == 21
    assert stats.chisquare(counts).pvalue > 0.001


def test_a_span_of_one_window_gives_it_always(corpus: Corpus) -> None:
    assert sampler(corpus, (3, 20)).offsets(9) == [3, 3, 3, 3]


def test_fixed_batches_are_the_same_for_every_seed_and_are_not_training_batches(corpus: Corpus) -> None:
    five = sampler(corpus, seed=0).fixed_batches(5)
    for got, want in zip(sampler(corpus, seed=99).fixed_batches(3), five, strict=False):
        np.testing.assert_array_equal(got.inputs, want.inputs)
        np.testing.assert_array_equal(got.targets, want.targets)
    assert len(five) == 5
    assert not np.array_equal(five[0].inputs, five[1].inputs)
    assert not np.array_equal(five[0].inputs, sampler(corpus, seed=0).batch(0).inputs)


@pytest.mark.parametrize(("step", "micro"), [(-1, 0), (0, -1), (2**64, 0)])
def test_steps_are_counted_from_zero(corpus: Corpus, step: int, micro: int) -> None:
    with pytest.raises(DataError, match="want both at least 0"):
        sampler(corpus).batch(step, micro)


@pytest.mark.parametrize("span", [(-1, 100), (100, 50), (0, len(TEXT) + 1)])
def test_a_span_outside_the_corpus_is_refused(corpus: Corpus, span: tuple[int, int]) -> None:
    with pytest.raises(DataError, match="is not inside the 1900 bytes"):
        sampler(corpus, span)


def test_a_span_shorter_than_a_window_is_refused(corpus: Corpus) -> None:
    with pytest.raises(DataError, match="has 16 bytes, context 16 needs at least 17"):
        sampler(corpus, (5, 21))


@pytest.mark.parametrize("change", [{"context": 0}, {"batch": 0}, {"batch": 2.0}, {"context": True}, {"seed": -1}])
def test_sizes_and_seed_are_checked(corpus: Corpus, change: dict[str, int]) -> None:
    (name,) = change
    with pytest.raises(ConfigError, match=f"got {name}"):
        BatchSampler(corpus, ByteTokenizer(), (0, 100), **({"context": 16, "batch": 4, "seed": 0} | change))


def test_a_count_of_fixed_batches_is_positive(corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match="got 0 fixed batches"):
        sampler(corpus).fixed_batches(0)


HUGE = """
import resource, sys
from turret.data import BatchSampler, ByteTokenizer, Split, open_corpus
unit = 1 if sys.platform == "darwin" else 1024
corpus = open_corpus([sys.argv[1]], validate=False)
split = Split.cut(len(corpus), val_fraction=0.1, context=128)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
sampler = BatchSampler(corpus, ByteTokenizer(), split.train, context=128, batch=8, seed=1)
farthest = max(max(sampler.offsets(step)) for step in range(500))
for step in range(500):
    sampler.batch(step)
assert farthest > 8_000_000_000, farthest
assert corpus.window(len(corpus) - 3, len(corpus)).tobytes() == b"end"
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs sparse files and getrusage")
def test_ten_gigabytes_are_sampled_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse.txt"
    with path.open("wb") as stream:
        stream.seek(10 * 10**9 - 3)
        stream.write(b"end")
    done = subprocess.run([sys.executable, "-c", HUGE, str(path)], capture_output=True, text=True, check=False)
    path.unlink()
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300_000_000
