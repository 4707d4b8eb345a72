"""A parameter that waits for its value costs nothing and computes nothing."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from turret.models import MiniConfig, build_model
from turret.nn import Blank
from turret.spi import GraphError
from turret.tensor import ops, tensor
from turret.tensor.pending import Pending


def test_a_model_of_a_terabyte_can_be_described() -> None:
    config = MiniConfig(vocabulary=10**6, context=4, width=2**14, heads=128, kv_heads=8, blocks=100, feed_forward=2**16)
    model = build_model(config, init=Blank())
    assert model.parameter_count() == config.parameter_count() > 2.5e11


def test_what_has_no_value_yet_says_so() -> None:
    model = build_model(MiniConfig(vocabulary=27), init=Blank())
    with pytest.raises(GraphError, match="no value yet; load the weights"):
        model(tensor([[1, 2]]))
    with pytest.raises(GraphError, match="no value yet"):
        model.state_dict()
    with pytest.raises(GraphError, match="no value yet"):
        ops.add(model.final_norm.scale, 1.0)
    with pytest.raises(GraphError, match="no value yet"):
        np.asarray(Pending((2, 3)))
    assert copy.copy(Pending((2, 3))).shape == (2, 3)
