"""A float16 step whose masks make the loss overflow is judged by the loss it had, however batches are counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from turret.data import BatchSampler, ByteTokenizer, Split, open_corpus
from turret.models import DecoderConfig, build_model
from turret.optim import Adam, constant
from turret.registry import use_backend
from turret.spi import NonFiniteError
from turret.tensor import RandomStream
from turret.train import Engine
from turret.train.objective import NextToken
from turret.train.precision import LossScale


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_that_only_its_masks_make_infinite_is_no_fault_of_the_scale(tmp_path: Path, accumulate: int) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a stitch in time saves nine. " * 40)
    corpus = open_corpus([path])
    split = Split.cut(len(corpus), val_fraction=0.2, context=8)
    with use_backend("minimal"):
        config = DecoderConfig(vocabulary=256, context=8, width=16, heads=2, blocks=1, feed_forward=32)
        model = build_model(config, seed=0).regularize(residual=0.99)
        named = dict(model.named_parameters())
        for name in ("blocks.0.feed_forward.project.bias", "blocks.0.attention.output.bias"):
            # 2000 is far from 65504, and 2000 / (1 - 0.99) is past it
            named[name].assign(named[name].backend.tools.storage.from_host(np.full(16, 2000, np.float32)))
        engine = Engine(
            model,
            Adam(model.named_parameters(), lr=1e-2),
            BatchSampler(corpus, ByteTokenizer(), split.train, 8, 4, 0),
            constant(1e-2),
            objective=NextToken(),
            accumulate=accumulate,
            dropout=RandomStream(0),
            precision="float16",
            scale=LossScale(1024.0),
        )
        with pytest.raises(NonFiniteError, match="the loss is nan"):
            engine.step(1)
        assert engine.scale is not None and (engine.scale.value, engine.scale.skipped) == (1024.0, 0)
