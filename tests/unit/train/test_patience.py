"""Patience ends where validation got no better for long enough, however the run was interrupted."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.spi import CheckpointError, ConfigError
from turret.train.patience import Patience

LOSSES = st.lists(st.floats(0, 10, allow_nan=False), min_size=1, max_size=30)


@given(losses=LOSSES, limit=st.one_of(st.none(), st.integers(1, 5)))
def test_the_best_step_is_the_first_of_the_least_losses(losses: list[float], limit: int | None) -> None:
    patience = Patience(limit)
    for step, loss in enumerate(losses, 1):
        better = loss < min(losses[: step - 1], default=math.inf)
        assert patience.seen(step, loss) == better
        best = losses.index(min(losses[:step])) + 1
        assert (patience.best, patience.best_step, patience.since) == (losses[best - 1], best, step - best)
        assert patience.exhausted == (limit is not None and step - best >= limit)


@given(losses=LOSSES, cut=st.integers(0, 30))
def test_it_goes_on_from_its_state_as_if_never_interrupted(losses: list[float], cut: int) -> None:
    whole, first, second = Patience(3), Patience(3), Patience(3)
    for step, loss in enumerate(losses, 1):
        whole.seen(step, loss)
    cut = min(cut, len(losses))
    for step, loss in enumerate(losses[:cut], 1):
        first.seen(step, loss)
    second.load(json.loads(json.dumps(first.state())), step=cut)
    for step, loss in enumerate(losses[cut:], cut + 1):
        second.seen(step, loss)
    assert second.state() == whole.state() and second.exhausted == whole.exhausted


def test_an_equal_loss_is_no_better_one() -> None:
    patience = Patience(1)
    assert patience.seen(1, 2.0) and not patience.seen(2, 2.0) and patience.exhausted


def test_forgetting_and_an_empty_state_are_a_new_beginning() -> None:
    patience = Patience(1)
    for empty in (patience.forget, lambda: patience.load({}, step=9)):
        patience.seen(1, 2.0)
        patience.seen(2, 2.0)
        empty()
        assert not patience.exhausted and patience.state() == {} and patience.seen(9, 100.0)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "2"])
def test_a_limit_that_is_no_count_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="at least 1, or none"):
        Patience(limit)


GOOD = {"best": 1.5, "best_step": 4, "since": 2}


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        "best",
        {"best": 1.5},
        GOOD | {"best": math.nan},
        GOOD | {"best": math.inf},
        GOOD | {"best": 1},
        GOOD | {"best": "1.5"},
        GOOD | {"best_step": 0},
        GOOD | {"best_step": 11},
        GOOD | {"best_step": True},
        GOOD | {"best_step": 4.0},
        GOOD | {"since": -1},
        GOOD | {"since": 7},
        GOOD | {"since": None},
    ],
)
def test_a_state_that_no_run_has_changes_nothing(state: Any) -> None:
    patience = Patience(3)
    patience.seen(2, 0.5)
    before = patience.state()
    with pytest.raises(CheckpointError, match=r"^patience .* at step 10; wanted .*; use another checkpoint$"):
        patience.load(state, step=10)
    assert patience.state() == before
