"""A data position that disagrees with itself cannot exist."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.data.position import DataPosition
from turret.spi.errors import DataError

GOOD = {"step": 5, "tokens_seen": 5 * 2 * 8 * 16, "accumulate": 2, "batch": 8, "context": 16}


@given(
    step=st.integers(0, 10**9), accumulate=st.integers(1, 64), batch=st.integers(1, 512), context=st.integers(1, 8192)
)
def test_tokens_follow_from_steps(step: int, accumulate: int, batch: int, context: int) -> None:
    position = DataPosition.at(step, accumulate=accumulate, batch=batch, context=context)
    assert position.tokens_seen == step * accumulate * batch * context
    assert DataPosition.from_dict(json.loads(json.dumps(position.to_dict()))) == position


def test_a_position_that_disagrees_says_both_sides() -> None:
    with pytest.raises(DataError, match=r"tokens_seen is 1281, but step 5 x .* is 1280"):
        DataPosition.from_dict(GOOD | {"tokens_seen": 1281})
    with pytest.raises(DataError, match="is 1536"):
        DataPosition.from_dict(GOOD | {"step": 6})


@pytest.mark.parametrize(
    "change", [{"step": -1}, {"batch": 0}, {"context": 16.0}, {"accumulate": True}, {"tokens_seen": "1280"}]
)
def test_malformed_entries_are_named(change: dict[str, object]) -> None:
    (name,) = change
    with pytest.raises(DataError, match=f"has {name}"):
        DataPosition.from_dict(GOOD | change)


def test_missing_and_unknown_entries_are_refused() -> None:
    for raw in ({key: GOOD[key] for key in GOOD if key != "step"}, GOOD | {"epoch": 1}):
        with pytest.raises(DataError, match="want exactly"):
            DataPosition.from_dict(raw)
