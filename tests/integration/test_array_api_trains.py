"""A backend that is nothing but NumPy's array API namespace trains both families."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.models import DecoderConfig, MiniConfig, build_model
from turret.optim import Adam, decay_groups, warmup_cosine
from turret.registry import OpenBackend
from turret.tensor import no_grad, ops, tensor

TEXT = "a turret holds the tools and turns one into place. "  # 51 characters, 16 of them distinct
STEPS = 150


def batches(steps: int, context: int = 16, batch: int = 8) -> Any:
    """(inputs, targets) of random windows of the repeated text, and the number of distinct characters."""
    letters = sorted(set(TEXT))
    ids = np.array([letters.index(c) for c in TEXT * 3], np.int32)
    random = np.random.default_rng(0)
    for _ in range(steps):
        starts = random.integers(0, len(TEXT), batch)
        rows = np.stack([ids[s : s + context + 1] for s in starts])
        yield rows[:, :-1], rows[:, 1:]


@pytest.mark.parametrize("kind", ["decoder", "mini"])
def test_the_loss_falls_from_that_of_guessing_to_a_tenth_of_it(plain: OpenBackend, kind: str) -> None:
    vocabulary = len(set(TEXT))
    config = (
        DecoderConfig(vocabulary=vocabulary)
        if kind == "decoder"
        else MiniConfig(vocabulary=vocabulary, context=16, width=32, feed_forward=64)
    )
    model = build_model(config, seed=1)
    adam = Adam(decay_groups(model.named_parameters(), 0.01), betas=(0.9, 0.99))
    rate = warmup_cosine(1e-2, min_lr=1e-3, warmup=10, steps=STEPS)
    losses = []
    for step, (inputs, targets) in enumerate(batches(STEPS), start=1):
        loss = ops.cross_entropy(model(tensor(inputs)), tensor(targets))
        loss.backward()
        adam.step(lr=rate(step))
        losses.append(loss.item())
    guessing = np.log(vocabulary)
    assert losses[0] == pytest.approx(guessing, abs=0.1)
    assert np.mean(losses[-10:]) < 0.1 * guessing
    inputs, targets = next(iter(batches(1)))
    with no_grad():
        guesses = ops.argmax(model(tensor(inputs))).numpy()
    assert (guesses[:, 8:] == targets[:, 8:]).mean() > 0.97  # eight letters decide where in the text we are
