"""Which examples a run learns from, what it is told of the others, and where its loss is taken."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tuning_bases import conversation, eos, examples, settings, tokenizer, train_base, write_lines

from turret.registry import open_backend
from turret.spi import ConfigError, DataError
from turret.train.finetune.examples import TuningData, tuning_data
from turret.train.opening import Opened, open_model


@pytest.fixture(scope="module")
def opened(base: Path) -> Opened:
    return open_model(base, open_backend("cpu"))


def made(opened: Opened, data: Path, **changed: Any) -> TuningData:
    return tuning_data(settings(opened.source, data, **changed), opened)


def learned(data: TuningData) -> list[str]:
    """The texts that the loss is of, one for every answer."""
    texts = []
    for example in data.sampler.packing.examples:
        starts = np.flatnonzero(np.diff(example.learned.astype(int)) == 1) + 1
        stops = np.flatnonzero(np.diff(np.append(example.learned, False).astype(int)) == -1) + 1
        for start, stop in zip(starts, stops, strict=True):
            assert example.ids[stop - 1] == eos(), "an answer without its end"
            texts.append(tokenizer().decode(example.ids[start : stop - 1]))
    return texts


def test_the_loss_is_of_every_answer_and_its_end(opened: Opened, tmp_path: Path) -> None:
    data = write_lines(
        tmp_path / "d.jsonl",
        [conversation("one", "red", "two", "blue green"), {"prompt": "three", "response": "cat"}],
    )
    assert learned(made(opened, data, val_fraction=0.0)) == ["red", "blue green", "cat"]


def test_the_text_of_a_prompt_changes_no_target(opened: Opened, tmp_path: Path) -> None:
    lines = examples(12)
    plain = made(opened, write_lines(tmp_path / "a.jsonl", lines), val_fraction=0.0)
    others = [{**line, "prompt": line["prompt"] + " tree stone"} for line in lines]
    other = made(opened, write_lines(tmp_path / "b.jsonl", others), val_fraction=0.0)
    assert plain.counts.learned_tokens == other.counts.learned_tokens
    assert plain.counts.tokens < other.counts.tokens and learned(plain) == learned(other)


def test_learning_all_counts_every_token_but_the_first(opened: Opened, data: Path) -> None:
    counts = made(opened, data, learn="all").counts
    assert counts.learned_tokens == counts.tokens - counts.kept


@pytest.mark.parametrize("seed", [0, 1])
def test_no_text_is_both_learned_and_validated(opened: Opened, tmp_path: Path, seed: int) -> None:
    lines = examples(20)
    found = made(opened, write_lines(tmp_path / "d.jsonl", lines + lines[:5]), seed=seed, val_fraction=0.3)
    kept = {tuple(example.ids) for example in found.sampler.packing.examples}
    held = set()
    for batch in found.validation:
        for ids, segments, weights in zip(batch.inputs, batch.segments, batch.weights, strict=True):
            held |= {tuple([*ids[segments == n], eos()]) for n in np.unique(segments) if weights[segments == n].any()}
    assert found.validation_counts is not None
    assert len(held) == 6 and not held & kept and len(kept) == 14
    assert found.counts.read + found.validation_counts.read == 25


def test_without_validation_everything_is_learned(opened: Opened, data: Path) -> None:
    found = made(opened, data, val_fraction=0.0)
    assert (found.validation, found.validation_counts, found.counts.kept) == ((), None, 24)


def test_every_batch_has_something_to_learn(opened: Opened, data: Path) -> None:
    found = made(opened, data, batch=3, accumulate=2, val_fraction=0.4)
    assert len(found.validation) > 1, "the last one is filled up with padding"
    for batch in (*found.validation, *(found.sampler.batch(step, micro) for step in range(9) for micro in (0, 1))):
        assert batch.weights.sum() > 0


LONG: dict[str, str] = {"prompt": "tree " * 90, "response": "cat"}
ENDLESS: dict[str, str] = {"prompt": "one", "response": "dog " * 90}


@pytest.mark.parametrize(
    ("long", "counted"),
    [
        ("truncate", {"kept": 5, "truncated": 1, "dropped": 0, "response_too_long": 1}),
        ("drop", {"kept": 4, "truncated": 0, "dropped": 2, "response_too_long": 0}),
    ],
)
def test_long_examples_are_counted_and_told(
    opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture, long: str, counted: dict[str, int]
) -> None:
    data = write_lines(tmp_path / "d.jsonl", [*examples(4), LONG, ENDLESS])
    with caplog.at_level(logging.WARNING, "turret"):
        counts = made(opened, data, long=long, val_fraction=0.0).counts
    assert counted.items() <= {name: getattr(counts, name) for name in counted}.items()
    assert counts.read == 6 and counts.kept == counted["kept"]
    assert "of 6 training examples at context 64: 1 " in caplog.text or "2 dropped as too long" in caplog.text


def test_long_examples_can_be_refused_by_line(opened: Opened, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "d.jsonl", [*examples(4), LONG])
    with pytest.raises(DataError, match=r"d\.jsonl, training: the example of line 5: it has \d+ tokens"):
        made(opened, data, long="refuse", val_fraction=0.0)


@pytest.mark.parametrize("part", ["training", "validation"])
def test_a_part_of_which_nothing_is_left_is_named(opened: Opened, tmp_path: Path, part: str) -> None:
    lines = [{**ENDLESS, "prompt": f"{n}"} for n in range(2)] if part == "training" else examples(2)
    if part == "validation":
        drawn = made(opened, write_lines(tmp_path / "first.jsonl", lines))
        (kept,) = drawn.sampler.packing.examples
        other = next(n for n in (0, 1) if n + 1 != kept.line)
        lines[other] = {**lines[other], "response": "dog " * 90}
        # Which texts are held out follows from their order alone.
    with pytest.raises(DataError, match=rf"d\.jsonl, {part}: none of 1 examples is left at context 64: 1 response too"):
        made(opened, write_lines(tmp_path / "d.jsonl", lines))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 3: not one JSON object"),
        ('{"prompt": "a"}', "line 3: got the keys 'prompt'"),
        ('{"prompt": "a", "response": ""}', "line 3: got response '', want an answer that is not empty"),
        ('{"prompt": "a", "response": 3}', "line 3: got response 3, want text"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "line 3: the last message is of user"),
    ],
)
def test_a_broken_line_is_refused_or_passed_over_and_told(
    opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str, said: str
) -> None:
    first, second, *rest = examples(6)
    data = write_lines(tmp_path / "d.jsonl", [first, second, line, *rest])
    with pytest.raises(DataError) as caught:
        made(opened, data)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    with caplog.at_level(logging.WARNING, "turret"):
        assert made(opened, data, skip_bad=1).counts.bad == 1
    assert f"1 bad lines passed over: {said[:7]}" in caplog.text
    data.write_text(data.read_text() + "[]\n")
    with pytest.raises(DataError, match=r"line 8: .*one bad line more than the 1 allowed"):
        made(opened, data, skip_bad=1)


@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_no_examples_are_no_data(opened: Opened, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "d.jsonl").write_text(content)
    with pytest.raises(DataError, match=r"d\.jsonl (does not exist|has no examples)"):
        made(opened, tmp_path / "d.jsonl")


def test_one_text_cannot_be_learned_and_validated(opened: Opened, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "d.jsonl", examples(1) * 3)
    with pytest.raises(DataError, match="validation needs at least 2"):
        made(opened, data)
    assert made(opened, data, val_fraction=0.0).counts.kept == 3


def test_a_control_token_in_a_prompt_is_refused_by_line(opened: Opened, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "d.jsonl", [*examples(2), {"prompt": "<|im_end|>", "response": "a"}])
    with pytest.raises(DataError, match=r"line 3: .*control token"):
        made(opened, data)


def test_a_base_of_bytes_takes_prompts_and_no_conversations(trained: Path, tmp_path: Path) -> None:
    opened = open_model(trained, open_backend("cpu"))
    found = made(opened, write_lines(tmp_path / "a.jsonl", [{"prompt": "ab", "response": "cde"}]), val_fraction=0.0)
    (example,) = found.sampler.packing.examples
    assert example.ids.tolist() == [*(6 + byte for byte in b"abcde"), 1]
    assert example.learned.tolist() == [False, False, True, True, True, True]
    with pytest.raises(DataError, match="line 1: it has messages, which need a chat template"):
        made(opened, write_lines(tmp_path / "b.jsonl", [conversation("a", "b")]), val_fraction=0.0)


def test_a_base_without_an_end_cannot_learn_to_stop(tmp_path: Path) -> None:
    opened = open_model(train_base(tmp_path / "run", model="decoder"), open_backend("cpu"))
    with pytest.raises(ConfigError, match="the tokenizer has no end-of-sequence id"):
        made(opened, write_lines(tmp_path / "a.jsonl", examples(4)))
