"""A captured call is the call: also inside `dropping` and `computing`, where it is another program."""

from __future__ import annotations

import numpy as np
import pytest

from turret.models import DecoderConfig, build_model
from turret.nn import computing, dropping
from turret.registry import use_backend
from turret.tensor import RandomStream, capture, no_grad, tensor

CONFIG = DecoderConfig(vocabulary=31, context=9, width=16)
IDS = np.random.default_rng(0).integers(0, 31, (2, 9), dtype=np.int32)


@pytest.mark.parametrize("first", ["inside", "outside"])
def test_dropping_is_on_where_it_is_on(first: str) -> None:
    with use_backend("metal:cpu"), no_grad():
        model = build_model(CONFIG, seed=1).regularize(attention=0.5, residual=0.5, embedding=0.5)
        stream, ids = RandomStream(0), tensor(IDS)
        run = capture(lambda ids: model(ids), state=[model, stream])
        plain = model(ids).numpy()
        if first == "outside":
            np.testing.assert_allclose(run(ids).numpy(), plain, rtol=1e-5, atol=1e-6)
        with dropping(stream):
            dropped = run(ids).numpy()
        assert stream.counter == 7
        with dropping(RandomStream(0)):
            np.testing.assert_allclose(dropped, model(ids).numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(run(ids).numpy(), plain, rtol=1e-5, atol=1e-6)
        assert run.compiles == 2


def test_the_format_is_that_of_the_call() -> None:
    with use_backend("metal:cpu"), no_grad():
        model, ids = build_model(CONFIG, seed=1), tensor(IDS)
        run = capture(lambda ids: model(ids), state=[model])
        dtypes = [run(ids).dtype]
        with computing("float16"):
            dtypes.append(run(ids).dtype)
        dtypes.append(run(ids).dtype)
    assert dtypes == ["float32", "float16", "float32"]
    assert run.compiles == 2
