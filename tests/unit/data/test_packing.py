"""Packed rows hold every example once, whole and apart from its neighbours."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.data.packing import Packing, pack
from turret.data.supervision import TokenizedExample
from turret.spi.errors import ConfigError, DataError


def example(size: int, line: int, seed: int = 0) -> TokenizedExample:
    """Ids that tell the example and the place: line * 1000 + place."""
    learned = np.random.default_rng([seed, line]).random(size) < 0.6
    learned[0] = False
    ids = np.arange(line * 1000, line * 1000 + size, dtype=np.int32)
    return TokenizedExample(ids=ids, learned=learned, response=size, line=line)


def examples(sizes: list[int]) -> list[TokenizedExample]:
    return [example(size, line) for line, size in enumerate(sizes, 1)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[TokenizedExample], int]:
    context = draw(st.integers(1, 40))
    return examples(draw(st.lists(st.integers(2, context + 1), min_size=1, max_size=40))), context


@given(cases())
def test_every_token_of_every_example_is_there_exactly_once(case: tuple[list[TokenizedExample], int]) -> None:
    given_examples, context = case
    packing = pack(given_examples, context, pad_id=7)
    seen: dict[int, list[int]] = {}
    learned = 0.0
    for index in range(len(packing)):
        row = packing.row(index)
        assert [(part.shape, part.dtype) for part in row] == [
            ((context,), np.dtype(np.float32 if name == "weights" else np.int32)) for name in row._fields
        ]
        members = len(packing.rows[index])
        assert (np.diff(row.segments) >= 0).all() and set(np.diff(row.segments).tolist()) <= {0, 1}
        assert row.segments[0] == 0 and members - 1 <= row.segments[-1] <= members
        for segment in range(members):
            here = row.segments == segment
            line = int(row.inputs[here][0]) // 1000
            own = given_examples[line - 1]
            assert line not in seen
            seen[line] = [*row.inputs[here].tolist(), int(row.targets[here][-1])]
            assert row.targets[here].tolist() == own.ids[1:].tolist()
            assert row.weights[here].tolist() == own.learned[1:].tolist()
            assert row.positions[here].tolist() == list(range(len(own.ids) - 1))
        padding = row.segments == members
        assert not row.weights[padding].any()
        assert (row.inputs[padding] == 7).all() and (row.targets[padding] == 7).all()
        assert row.positions[padding].tolist() == list(range(int(padding.sum())))
        learned += float(row.weights.sum())
    assert seen == {one.line: one.ids.tolist() for one in given_examples}
    assert learned == sum(int(one.learned.sum()) for one in given_examples)


def first_fit_decreasing(sizes: list[int], capacity: int) -> list[list[int]]:
    """As textbooks define it: each item, the largest first, into the first bin that it fits in."""
    bins: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        for members in bins:
            if sum(sizes[member] for member in members) + sizes[index] <= capacity:
                members.append(index)
                break
        else:
            bins.append([index])
    return bins


@given(cases())
def test_rows_are_those_of_first_fit_decreasing(case: tuple[list[TokenizedExample], int]) -> None:
    given_examples, context = case
    sizes = [len(one.ids) - 1 for one in given_examples]
    packing = pack(given_examples, context)
    assert [list(row) for row in packing.rows] == first_fit_decreasing(sizes, context)
    assert packing.fill == pytest.approx(sum(sizes) / (len(packing.rows) * context))


def test_two_examples_and_padding_written_out() -> None:
    first = TokenizedExample(
        ids=np.array([5, 6, 7, 8], np.int32), learned=np.array([False, False, True, True]), response=2, line=1
    )
    second = TokenizedExample(ids=np.array([9, 4], np.int32), learned=np.array([False, True]), response=1, line=2)
    row = pack([second, first], 6).row(0)
    assert row.inputs.tolist() == [5, 6, 7, 9, 0, 0]
    assert row.targets.tolist() == [6, 7, 8, 4, 0, 0]
    assert row.weights.tolist() == [0, 1, 1, 1, 0, 0]
    assert row.positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert row.segments.tolist() == [0, 0, 0, 1, 2, 2]


def test_a_blank_row_counts_for_nothing() -> None:
    row = pack([example(4, 1)], 6, pad_id=3).blank_row()
    assert row.inputs.tolist() == row.targets.tolist() == [3] * 6
    assert not row.weights.any() and not row.segments.any() and row.positions.tolist() == list(range(6))


def test_rows_are_the_callers_own() -> None:
    packing = pack([example(4, 1)], 6)
    for part in packing.row(0):
        part[:] = 99
    assert packing.row(0).inputs.tolist() == [1000, 1001, 1002, 0, 0, 0]


def test_many_examples_are_packed_quickly() -> None:
    sizes = np.random.default_rng(0).integers(2, 258, 30_000).tolist()
    given_examples = [
        TokenizedExample(ids=np.zeros(n, np.int32), learned=np.zeros(n, bool), response=n, line=1) for n in sizes
    ]
    start = time.process_time()
    packing = pack(given_examples, 256)
    assert time.process_time() - start < 10  # trying every row for every example would take minutes
    assert packing.fill > 0.95


@pytest.mark.parametrize("size", [0, 1, 10])
def test_an_example_that_no_row_can_hold_is_refused(size: int) -> None:
    bad = TokenizedExample(ids=np.zeros(size, np.int32), learned=np.zeros(size, bool), response=0, line=5)
    with pytest.raises(
        DataError, match=f"line 5 has {size} tokens and {size} marks, want as many of both, from 2 to 9"
    ):
        pack([example(3, 1), bad], 8)


def test_marks_are_as_many_as_ids() -> None:
    bad = TokenizedExample(ids=np.zeros(4, np.int32), learned=np.zeros(3, bool), response=0, line=5)
    with pytest.raises(DataError, match="has 4 tokens and 3 marks"):
        pack([bad], 8)


def test_nothing_cannot_be_packed() -> None:
    with pytest.raises(DataError, match="got no examples to pack"):
        pack([], 8)


@pytest.mark.parametrize("change", [{"context": 0}, {"context": 8.0}, {"pad_id": -1}, {"pad_id": 2**31}])
def test_context_and_pad_id_are_checked(change: dict[str, int]) -> None:
    (name,) = change
    with pytest.raises(ConfigError, match=f"got {name}"):
        pack([example(3, 1)], **({"context": 8} | change))


@pytest.mark.parametrize("index", [-1, 1])
def test_a_row_is_one_of_those_there_are(index: int) -> None:
    packing: Packing = pack([example(3, 1)], 8)
    with pytest.raises(DataError, match=f"got row {index}, want one of 1"):
        packing.row(index)
