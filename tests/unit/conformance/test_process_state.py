"""What a backend must leave as it found it."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

from turret.conformance.process_state import changed, snapshot


def test_nothing_has_changed_where_nothing_was_done() -> None:
    assert changed(snapshot(), snapshot()) == ""


def test_a_changed_error_state_is_named() -> None:
    before = snapshot()
    with np.errstate(over="ignore", divide="raise"):
        assert "NumPy's error state" in changed(before, snapshot())


def test_one_drawn_number_is_seen() -> None:
    before, state = snapshot(), np.random.get_state()
    kept = random.getstate()
    try:
        np.random.random()
        random.random()
        found = changed(before, snapshot())
    finally:
        np.random.set_state(state)
        random.setstate(kept)
    assert "NumPy's random state" in found
    assert "random's state" in found


def test_an_import_may_add_variables_but_not_change_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURRET_TEST_KEPT", "1")
    before = snapshot()
    monkeypatch.setenv("TURRET_TEST_ADDED", "1")
    assert changed(before, snapshot(), imported=True) == ""
    assert "TURRET_TEST_ADDED" in changed(before, snapshot())
    monkeypatch.setenv("TURRET_TEST_KEPT", "2")
    assert "environment" in changed(before, snapshot(), imported=True)


def test_a_warning_filter_that_was_dropped_is_seen() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)
        before = snapshot()
        warnings.resetwarnings()
        assert "warning filters" in changed(before, snapshot(), imported=True)
