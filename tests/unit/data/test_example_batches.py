"""Every epoch has every example once, any step can be drawn by itself, and no text is on both sides of a split."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.data.counter import Stream, permutation
from turret.data.example_batches import ExampleBatch, ExampleSampler, split_examples
from turret.data.instructions import Example, Message
from turret.data.packing import Packing, pack
from turret.data.supervision import TokenizedExample
from turret.spi.errors import ConfigError, DataError


def packing_of(count: int, context: int = 12) -> Packing:
    """Examples of different sizes whose every input is their number, from 1."""
    sizes = np.random.default_rng(count).integers(2, context + 2, count).tolist()
    return pack(
        [
            TokenizedExample(ids=np.full(size, line, np.int32), learned=np.arange(size) > 0, response=1, line=line)
            for line, size in enumerate(sizes, 1)
        ],
        context,
    )


def lines_of(batch: ExampleBatch) -> Counter[int]:
    """How often each example is in a batch, told by its first position."""
    return Counter(batch.inputs[(batch.positions == 0) & (batch.weights > 0)].tolist())


@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2**64 - 1))
def test_each_epoch_has_every_row_exactly_once(count: int, batch: int, accumulate: int, seed: int) -> None:
    packing = packing_of(count)
    sampler = ExampleSampler(packing, batch, seed, accumulate=accumulate)
    epochs = 3
    steps = -(-epochs * len(packing) // (batch * accumulate))
    drawn = [row for step in range(steps) for micro in range(accumulate) for row in sampler.rows(step, micro)]
    for epoch in range(epochs):
        part = drawn[epoch * len(packing) : (epoch + 1) * len(packing)]
        assert sorted(part) == list(range(len(packing)))


def test_each_epoch_has_every_example_exactly_once() -> None:
    packing = packing_of(40)
    sampler = ExampleSampler(packing, len(packing), seed=3)
    for epoch in range(3):
        assert lines_of(sampler.batch(epoch)) == Counter(range(1, 41))


def test_a_batch_is_the_rows_it_says() -> None:
    packing = packing_of(40)
    sampler = ExampleSampler(packing, 3, seed=9, accumulate=2)
    batch = sampler.batch(5, 1)
    for place, index in enumerate(sampler.rows(5, 1)):
        for part, row in zip(batch, packing.row(index), strict=True):
            assert part[place].tolist() == row.tolist()
    assert [part.shape for part in batch] == [(3, 12)] * 5
    assert [part.dtype for part in batch] == [np.int32, np.int32, np.float32, np.int32, np.int32]
    assert all(part.flags.owndata for part in batch)


def test_a_batch_depends_on_seed_step_and_micro_only() -> None:
    packing = packing_of(40)
    calls = [(step, micro) for step in range(30) for micro in range(2)]
    forward = ExampleSampler(packing, 3, seed=9, accumulate=2)
    in_order = {call: forward.batch(*call) for call in calls}
    backward = ExampleSampler(packing_of(40), 3, seed=9, accumulate=2)
    for call in reversed(calls):
        for got, want in zip(backward.batch(*call), in_order[call], strict=True):
            assert got.tobytes() == want.tobytes()


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    packing = packing_of(60)
    orders = [
        tuple(ExampleSampler(packing, len(packing), seed).rows(epoch)) for seed in (0, 1, 2**64 - 1) for epoch in (0, 1)
    ]
    assert len(set(orders)) == 6


def test_place_says_where_a_step_begins() -> None:
    packing = packing_of(40)
    rows = len(packing)
    sampler = ExampleSampler(packing, 3, seed=0, accumulate=2)
    assert sampler.place(0) == (0, 0)
    assert sampler.place(0, 1) == (0, 3)
    assert sampler.place(rows) == (6, 0)
    assert sampler.place(rows, 1) == (6, 3)
    assert sampler.context == 12


def test_a_batch_larger_than_an_epoch_goes_through_several() -> None:
    packing = packing_of(3)
    rows = ExampleSampler(packing, 3 * len(packing), seed=4).rows(0)
    assert Counter(rows) == dict.fromkeys(range(len(packing)), 3)


@pytest.mark.parametrize(("step", "micro"), [(-1, 0), (2**64, 0), (0, -1), (0, 2), (2**64 - 1, 1)])
def test_a_step_that_is_none_is_refused(step: int, micro: int) -> None:
    sampler = ExampleSampler(packing_of(1), 4, seed=0, accumulate=2)
    with pytest.raises(DataError, match="step"):
        sampler.batch(step, micro)


@pytest.mark.parametrize("change", [{"batch": 0}, {"batch": True}, {"accumulate": 0}, {"seed": -1}, {"seed": None}])
def test_sizes_and_seed_are_checked(change: dict[str, int]) -> None:
    (name,) = change
    with pytest.raises(ConfigError, match=f"got {name}"):
        ExampleSampler(packing_of(3), **({"batch": 2, "seed": 0} | change))


@pytest.mark.parametrize("batch", [1, 3, 50])
def test_all_fixed_batches_have_every_example_once_and_padding_behind(batch: int) -> None:
    packing = packing_of(40)
    batches = ExampleSampler(packing, batch, seed=8).fixed_batches()
    assert len(batches) == -(-len(packing) // batch)
    assert {part.shape for one in batches for part in one} == {(batch, 12)}
    assert sum((lines_of(one) for one in batches), Counter()) == Counter(range(1, 41))
    assert sum(float(one.weights.sum()) for one in batches) == sum(len(one.ids) - 1 for one in packing.examples)


def test_some_fixed_batches_are_the_first_of_all_whatever_the_seed() -> None:
    packing = packing_of(40)
    every = ExampleSampler(packing, 3, seed=8).fixed_batches()
    some = ExampleSampler(packing, 3, seed=1).fixed_batches(2)
    assert len(some) == 2
    for got, want in zip(some, every[:2], strict=True):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True))
    assert len(ExampleSampler(packing, 3, seed=1).fixed_batches(10**9)) == len(every)


def test_a_count_of_fixed_batches_is_positive() -> None:
    with pytest.raises(ConfigError, match="got 0 fixed batches"):
        ExampleSampler(packing_of(3), 1, seed=0).fixed_batches(0)


def test_permutations_are_uniform() -> None:
    drawn = Counter(tuple(permutation(1, Stream.EXAMPLE_ORDER, (0, n), 3).tolist()) for n in range(6000))
    assert len(drawn) == 6
    assert sum((got - 1000) ** 2 / 1000 for got in drawn.values()) < 20.5  # chi-squared, 5 degrees: p = 0.001


def example(text: int, line: int, chat: bool = False) -> Example:
    return Example(messages=(Message("user", f"q{text}"), Message("assistant", "a")), chat=chat, line=line)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=60),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 2**64 - 1),
)
def test_a_split_has_each_example_on_one_side_and_no_text_on_both(
    drawn: list[tuple[int, bool]], fraction: float, seed: int
) -> None:
    given_examples = [example(text, line, chat) for line, (text, chat) in enumerate(drawn)]
    texts = {one.messages for one in given_examples}
    if fraction > 0 and len(texts) < 2:
        with pytest.raises(DataError, match="have 1 text, validation needs at least 2 different ones"):
            split_examples(given_examples, val_fraction=fraction, seed=seed)
        return
    train, val = split_examples(given_examples, val_fraction=fraction, seed=seed)
    assert sorted(one.line for one in train + val) == list(range(len(drawn)))
    for side in (train, val):
        assert [one.line for one in side] == sorted(one.line for one in side)
    val_texts = {one.messages for one in val}
    assert not val_texts & {one.messages for one in train}
    assert train and bool(val) == (fraction > 0)
    if fraction > 0:
        assert len(val_texts) == min(max(1, int(fraction * len(texts))), len(texts) - 1)


def test_the_seed_decides_what_is_for_validation() -> None:
    given_examples = [example(text, text) for text in range(100)]
    splits = {
        seed: tuple(one.line for one in split_examples(given_examples, val_fraction=0.1, seed=seed).val)
        for seed in (0, 1, 2)
    }
    assert len(set(splits.values())) == 3 and all(len(lines) == 10 for lines in splits.values())
    again = split_examples(given_examples, val_fraction=0.1, seed=1).val
    assert tuple(one.line for one in again) == splits[1]


def test_a_fraction_just_below_one_leaves_a_text_for_training() -> None:
    train, val = split_examples([example(text, text) for text in range(3)], val_fraction=1 - 2**-53, seed=0)
    assert (len(train), len(val)) == (1, 2)


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5, float("nan"), "0.1", None])
def test_a_fraction_is_below_one(fraction: object) -> None:
    with pytest.raises(ConfigError, match="got val_fraction"):
        split_examples([example(0, 0)], val_fraction=fraction, seed=0)  # type: ignore[arg-type]


def test_nothing_cannot_be_split() -> None:
    with pytest.raises(DataError, match="got no examples to split"):
        split_examples([], val_fraction=0.5, seed=0)
