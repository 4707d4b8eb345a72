"""Budgets of whole models: they follow from how the truth itself moves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from turret.conformance.shaken import spread
from turret.conformance.tolerances import WHOLE_MODEL, shake
from turret.spi import Host


def squared(weights: Mapping[str, Host]) -> dict[str, Host]:
    return {"square": weights["w"] ** 2, "nothing": np.zeros(3)}


def test_a_budget_is_what_shaken_weights_do_to_the_truth() -> None:
    weights = {"w": np.full((1, 100), 3.0)}
    exact, allowed = spread(squared, weights, np.random.default_rng(0))
    np.testing.assert_array_equal(exact["square"], np.full((1, 100), 9.0))
    most = WHOLE_MODEL * 2 * 9 * shake(100) + 9 * shake(100)  # d(w^2) = 2 w dw, and the floor
    assert 0.8 * most < allowed["square"] < 1.01 * most


def test_what_does_not_move_keeps_a_floor_from_the_largest_result() -> None:
    _, allowed = spread(squared, {"w": np.full((1, 100), 3.0)}, np.random.default_rng(0))
    assert allowed["nothing"] == pytest.approx(9 * shake(100))


def test_budgets_grow_with_the_condition_of_the_case() -> None:
    weights = {"w": np.linspace(1, 2, 20).reshape(1, 20)}

    def near_a_pole(moved: Mapping[str, Host]) -> dict[str, Host]:
        return {"x": 1 / (moved["w"] - 0.999)}

    mild = spread(squared, weights, np.random.default_rng(0))[1]["square"]
    steep = spread(near_a_pole, weights, np.random.default_rng(0))[1]["x"]
    assert steep > 1000 * mild
