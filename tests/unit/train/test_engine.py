"""One step of training: accumulation, determinism, and refusing what is not finite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from turret.data import BatchSampler, ByteTokenizer, Split, open_corpus
from turret.models import LanguageModel, MiniConfig, build_model
from turret.optim import Adam, constant
from turret.registry import OpenBackend
from turret.spi import NonFiniteError
from turret.train import Engine
from turret.train.objective import NextToken

CONTEXT = 8


class Made:
    """An engine over a small text, with its model."""

    def __init__(self, folder: Path, *, batch: int, accumulate: int = 1, lr: float = 1e-2, seed: int = 0) -> None:
        path = folder / "text.txt"
        path.write_text("a stitch in time saves nine. " * 40)
        corpus = open_corpus([path])
        split = Split.cut(len(corpus), val_fraction=0.2, context=CONTEXT)
        sampler = BatchSampler(corpus, ByteTokenizer(), split.train, CONTEXT, batch, seed)
        validation = BatchSampler(corpus, ByteTokenizer(), split.val, CONTEXT, batch, seed).fixed_batches(2)
        config = MiniConfig(vocabulary=256, context=CONTEXT, width=16, heads=2, kv_heads=1, blocks=1, feed_forward=32)
        self.model: LanguageModel = build_model(config, seed=seed)
        self.optimizer = Adam(self.model.named_parameters(), lr=lr)
        self.engine = Engine(
            self.model,
            self.optimizer,
            sampler,
            constant(lr),
            objective=NextToken(),
            accumulate=accumulate,
            validation=validation,
        )


def test_the_loss_falls(tmp_path: Path, backend: OpenBackend) -> None:
    made = Made(tmp_path, batch=4)
    losses = [made.engine.step(n).loss for n in range(1, 61)]
    assert losses[0] == pytest.approx(np.log(256), abs=0.2)
    assert np.mean(losses[-5:]) < 2.2
    assert made.engine.evaluate() < 2.6


def test_two_accumulated_batches_are_one_batch_of_both(tmp_path: Path, backend: OpenBackend) -> None:
    halves, whole = Made(tmp_path, batch=3, accumulate=2), Made(tmp_path, batch=6)
    parts = [halves.engine.sampler.batch(0, micro) for micro in (0, 1)]

    class Joined:
        def batch(self, step: int, micro: int = 0) -> tuple[np.ndarray, np.ndarray]:
            both = [np.concatenate(pair) for pair in zip(*parts, strict=True)]
            return type(parts[0])(*both)

    whole.engine.sampler = Joined()  # type: ignore[assignment]
    one, other = halves.engine.step(1), whole.engine.step(1)
    assert one.loss == pytest.approx(other.loss, rel=1e-6)
    assert one.stats.gradient_norm == pytest.approx(other.stats.gradient_norm, rel=1e-5)
    for (name, a), (_, b) in zip(halves.model.named_parameters(), whole.model.named_parameters(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=2e-4, err_msg=name)


def test_equal_seeds_give_bit_equal_losses(tmp_path: Path, backend: OpenBackend) -> None:
    runs = [Made(tmp_path, batch=4, seed=3) for _ in range(2)]
    first, second = ([made.engine.step(n).loss for n in range(1, 8)] for made in runs)
    assert first == second


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_first_step_that_explodes_is_refused(tmp_path: Path, backend: OpenBackend, accumulate: int) -> None:
    made = Made(tmp_path, batch=2, accumulate=accumulate)
    broken = made.model.parameters()[0]
    broken.assign(broken.backend.tools.storage.from_host(np.full(broken.shape, np.nan, np.float32)))
    with pytest.raises(NonFiniteError, match="step 1: the loss is nan"):
        made.engine.step(1)
    assert made.optimizer.steps == 0


def test_a_step_that_explodes_names_itself_and_changes_nothing(tmp_path: Path, backend: OpenBackend) -> None:
    made = Made(tmp_path, batch=2)
    made.engine.step(1)
    broken = made.model.parameters()[0]
    value = broken.numpy()
    value[:] = np.nan
    broken.assign(broken.backend.tools.storage.from_host(value))
    before = {name: p.numpy() for name, p in made.model.named_parameters()}
    with pytest.raises(NonFiniteError, match="step 2"):
        made.engine.step(2)
    assert made.optimizer.steps == 1
    for name, p in made.model.named_parameters():
        np.testing.assert_array_equal(p.numpy(), before[name], err_msg=name)


def test_validation_says_when_it_is_not_finite(tmp_path: Path, backend: OpenBackend) -> None:
    made = Made(tmp_path, batch=2)
    broken = made.model.parameters()[0]
    broken.assign(broken.backend.tools.storage.from_host(np.full(broken.shape, np.inf, np.float32)))
    with pytest.raises(NonFiniteError, match="validation loss"):
        made.engine.evaluate()
