"""The oracle's models against turret's own, finite differences and a training run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import models
from turret.models import DecoderConfig, LanguageModel, MiniConfig, build_model
from turret.optim import Adam, decay_groups
from turret.registry import use_backend
from turret.tensor import backward, ops, tensor

Config = DecoderConfig | MiniConfig
CONFIGS: dict[str, Config] = {
    "decoder": DecoderConfig(vocabulary=27),
    "decoder-tanh-grouped-tied": DecoderConfig(
        vocabulary=19, kv_heads=2, gelu="tanh", tied_head=True, head_bias=False, eps=1e-3
    ),
    "decoder-no-head-bias": DecoderConfig(vocabulary=11, head_bias=False, blocks=1, heads=1),
    "mini": MiniConfig(vocabulary=27, context=16, width=32, feed_forward=48),
    "mini-untied": MiniConfig(
        vocabulary=19, context=16, width=24, heads=6, kv_heads=3, blocks=3, tied_head=False, rope_theta=50.0
    ),
    "mini-one-head": MiniConfig(vocabulary=5, context=16, width=8, heads=4, kv_heads=1, blocks=1, eps=1e-3),
}


@pytest.fixture(params=list(CONFIGS.values()), ids=list(CONFIGS))
def config(request: pytest.FixtureRequest) -> Config:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with use_backend("cpu"):
        yield


def stirred(config: Config, seed: int = 3) -> LanguageModel:
    """Weights large enough that every part matters: norms away from one, biases away from zero."""
    model, rng = build_model(config), np.random.default_rng(seed)
    state = model.state_dict()
    model.load_state_dict({n: (v + rng.normal(size=v.shape) * 0.2).astype(np.float32) for n, v in state.items()})
    return model


def batch(config: Config, *, b: int = 3, t: int = 9, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    ids, targets = (rng.integers(0, config.vocabulary, (b, t)).astype(np.int32) for _ in range(2))
    targets[0, :2] = -1
    return ids, targets


def test_logits_are_those_of_the_product(config: Config) -> None:
    model, (ids, _) = stirred(config), batch(config)
    logits = models.forward(config, model.state_dict(), ids)
    assert logits.shape == (*ids.shape, config.vocabulary) and logits.dtype == np.float64
    np.testing.assert_allclose(model(tensor(ids)).numpy(), logits, atol=2e-5 * np.abs(logits).max())


def test_the_loss_is_the_mean_surprise_of_the_targets_that_count(config: Config) -> None:
    weights, (ids, targets) = stirred(config).state_dict(), batch(config)
    logits = models.forward(config, weights, ids)
    shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    surprises = [-np.log(shares[at][targets[at]]) for at in np.ndindex(*ids.shape) if targets[at] >= 0]
    assert len(surprises) == 25
    value, _ = models.loss_and_gradients(config, weights, ids, targets)
    assert value == pytest.approx(np.mean(surprises))


def test_every_gradient_is_the_slope_of_the_loss(config: Config) -> None:
    weights = {name: value.astype(np.float64) for name, value in stirred(config).state_dict().items()}
    ids, targets = batch(config)
    _, gradients = models.loss_and_gradients(config, weights, ids, targets)
    assert list(gradients) == list(weights)
    rng, step = np.random.default_rng(7), 1e-5
    for name, gradient in gradients.items():
        assert gradient.shape == weights[name].shape
        direction = rng.normal(size=gradient.shape)
        sides = [
            models.loss_and_gradients(config, weights | {name: weights[name] + side * direction}, ids, targets)[0]
            for side in (step, -step)
        ]
        want = (sides[0] - sides[1]) / (2 * step)
        reach = float(np.linalg.norm(gradient)) + 1e-3  # a key's bias has no gradient: softmax does not see it
        assert (gradient * direction).sum() == pytest.approx(want, abs=1e-6 * reach), name


def test_every_gradient_is_the_products(config: Config) -> None:
    model, (ids, targets) = stirred(config), batch(config)
    found = backward(ops.cross_entropy(model(tensor(ids)), tensor(targets)))
    _, gradients = models.loss_and_gradients(config, model.state_dict(), ids, targets)
    for name, parameter in model.named_parameters():
        want = gradients[name]
        np.testing.assert_allclose(found[parameter].numpy(), want, atol=2e-5 * np.abs(want).max() + 1e-7, err_msg=name)


OPTIONS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "decay": 0.1}


def losses_of_the_product(config: Config, batches: Any, max_norm: float | None) -> list[float]:
    model = build_model(config)
    groups = decay_groups(model.named_parameters(), OPTIONS["decay"])
    rates = {name: OPTIONS[name] for name in ("lr", "betas", "eps")}
    optimizer, losses = Adam(groups, max_norm=max_norm, **rates), []
    for ids, targets in batches:
        loss = ops.cross_entropy(model(tensor(ids)), tensor(targets))
        losses.append(float(loss.numpy()))
        optimizer.step(backward(loss))
    return losses


@pytest.mark.parametrize("max_norm", [0.5, None])
def test_twenty_steps_lead_where_the_product_is_led(config: Config, max_norm: float | None) -> None:
    batches = [batch(config, b=4, t=8, seed=seed % 2) for seed in range(20)]
    weights = build_model(config).state_dict()
    before = {name: value.copy() for name, value in weights.items()}
    losses = models.train(config, weights, batches, **OPTIONS, max_norm=max_norm)
    assert len(losses) == 20 and losses[-1] < losses[1] - 0.1
    np.testing.assert_allclose(losses_of_the_product(config, batches, max_norm), losses, rtol=1e-3)
    assert all(np.array_equal(before[name], value) for name, value in weights.items())
