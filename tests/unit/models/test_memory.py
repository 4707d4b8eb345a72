"""Training in less memory: the same function, and with checkpointing the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.models import DecoderConfig, LanguageModel, MiniConfig, build_model
from turret.optim import Adam
from turret.registry import use_backend
from turret.spi import ConfigError
from turret.tensor import Tensor, backward, capture, ops, tensor

CONFIGS: dict[str, Any] = {
    "decoder": DecoderConfig(vocabulary=31, context=9, width=16, heads=4, kv_heads=2, blocks=2, feed_forward=24),
    "mini": MiniConfig(vocabulary=31, context=9, width=16, heads=4, kv_heads=2, blocks=2, feed_forward=24),
}
RNG = np.random.default_rng(5)
IDS = [RNG.integers(0, 31, (2, 10), dtype=np.int32) for _ in range(3)]


def trained(model: LanguageModel, *, captured: bool) -> list[bytes]:
    """Losses of three steps and all weights after them, as bytes."""
    optimizer = Adam(model.named_parameters(), lr=1e-2)

    def step(ids: Tensor, targets: Tensor) -> Tensor:
        loss = ops.cross_entropy(model(ids), targets)
        optimizer.step(backward(loss), loss=loss)
        return loss

    run = capture(step, state=[model, optimizer], enabled=captured)
    losses = [run(tensor(ids[:, :-1]), tensor(ids[:, 1:])).numpy() for ids in IDS]
    return [x.tobytes() for x in (*losses, *model.state_dict().values())]


@pytest.mark.parametrize(
    ("spec", "family", "attention"),
    [
        ("cpu", "decoder", "flash"),
        ("cpu", "mini", "materialized"),
        ("cpu", "mini", "flash"),
        ("metal:cpu", "decoder", "materialized"),
        ("tpu:cpu", "mini", "flash"),
    ],
)
def test_checkpointing_changes_no_bit_where_operations_run_one_by_one(spec: str, family: str, attention: str) -> None:
    with use_backend(spec):
        plain, saving = (build_model(CONFIGS[family], seed=1).save_memory(attention=attention) for _ in range(2))
        saving.save_memory(attention=attention, checkpointing="block")
        assert trained(plain, captured=False) == trained(saving, captured=False)


@pytest.mark.parametrize(("spec", "family"), [("metal:cpu", "decoder"), ("tpu:cpu", "mini")])
def test_a_captured_step_with_checkpointing_is_the_same_function(spec: str, family: str) -> None:
    with use_backend(spec):
        plain, saving = (build_model(CONFIGS[family], seed=1) for _ in range(2))
        saving.save_memory(checkpointing="block")
        for one, other in zip(trained(plain, captured=True), trained(saving, captured=True), strict=True):
            a, b = (np.frombuffer(x, np.float32) for x in (one, other))
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4)  # Adam makes steps of nothing but rounding, too


@pytest.mark.parametrize("family", CONFIGS)
def test_flash_is_the_same_function(family: str) -> None:
    materialized, flash = (build_model(CONFIGS[family], seed=1) for _ in range(2))
    flash.save_memory(attention="flash")
    ids = tensor(IDS[0][:, :-1])
    np.testing.assert_allclose(materialized(ids).numpy(), flash(ids).numpy(), rtol=1e-4, atol=1e-6)


def test_checkpointing_reaches_weights_behind_frozen_inputs() -> None:
    """Nothing before the block wants a gradient: its own weights still do."""
    model = build_model(CONFIGS["decoder"], seed=1).save_memory(checkpointing="block")
    model.freeze()
    for parameter in model.parameters()[-20:-4]:
        parameter.trainable = True
    ids = IDS[0]
    found = backward(ops.cross_entropy(model(tensor(ids[:, :-1])), tensor(ids[:, 1:])))
    plain = build_model(CONFIGS["decoder"], seed=1).freeze()
    for parameter in plain.parameters()[-20:-4]:
        parameter.trainable = True
    want = backward(ops.cross_entropy(plain(tensor(ids[:, :-1])), tensor(ids[:, 1:])))
    for mine, theirs in zip(model.parameters()[-20:-4], plain.parameters()[-20:-4], strict=True):
        assert found[mine].numpy().tobytes() == want[theirs].numpy().tobytes()


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"attention": "flashy"}, "materialized, flash"),
        ({"checkpointing": "blocks"}, "none, block"),
        ({"checkpointing": ""}, "none, block"),
    ],
)
def test_unknown_words_are_refused_and_nothing_changes(options: dict[str, str], wanted: str) -> None:
    model = build_model(CONFIGS["decoder"], seed=1)
    with pytest.raises(ConfigError, match=wanted):
        model.save_memory(**options)
    assert model.checkpointing == "none"
