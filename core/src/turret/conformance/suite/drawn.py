"""The models of a case: small ones of every shape, with weights at which each part of them matters."""

from __future__ import annotations

from typing import Any

import numpy as np

from turret.models import DecoderConfig, LanguageModel, MiniConfig, build_model
from turret.spi import Host
from turret.tensor import Tensor

from ..bench import Bench
from ..given import Given
from ..oracle import models as oracle
from ..shaken import spread

Config = DecoderConfig | MiniConfig
Weights = dict[str, Host]

CONFIGS: dict[str, Config] = {
    "decoder": DecoderConfig(vocabulary=27, context=16, width=32, heads=4, blocks=2, feed_forward=64),
    "decoder-tanh-grouped-tied": DecoderConfig(
        vocabulary=33, context=13, width=24, heads=6, kv_heads=2, blocks=1, feed_forward=40, gelu="tanh",
        tied_head=True, head_bias=False,
    ),
    "decoder-one-head": DecoderConfig(
        vocabulary=65, context=9, width=12, heads=1, blocks=1, feed_forward=1, head_bias=False
    ),
    "mini": MiniConfig(vocabulary=27, context=16, width=32, heads=4, kv_heads=2, blocks=2, feed_forward=48),
    "mini-one-kv-head-untied": MiniConfig(
        vocabulary=33, context=13, width=24, heads=6, kv_heads=1, blocks=1, feed_forward=20, rope_theta=50.0,
        tied_head=False,
    ),
    "mini-all-kv-heads": MiniConfig(
        vocabulary=65, context=9, width=12, heads=3, kv_heads=3, blocks=1, feed_forward=7, eps=1e-3
    ),
}  # fmt: skip
SHALLOW: dict[str, Config] = {
    "decoder": DecoderConfig(vocabulary=17, context=8, width=16, heads=4, kv_heads=2, blocks=1, feed_forward=24),
    "mini": MiniConfig(vocabulary=17, context=8, width=16, heads=4, kv_heads=2, blocks=1, feed_forward=24),
}
"""For many steps in a row."""


def drawn_model(bench: Bench, config: Config) -> tuple[LanguageModel, Weights]:
    """A model on the examined backend with weights at which every part of it matters: no zero bias, no flat softmax."""
    model = build_model(config)
    weights = {}
    for name, parameter in model.named_parameters():
        shape = parameter.shape
        if name.endswith("scale"):
            given = bench.draw.normal(*shape, scale=0.3, shift=1.0)
        elif name.endswith("bias"):
            given = bench.draw.normal(*shape, scale=0.3)
        else:
            given = bench.draw.normal(*shape, scale=1.0 if "embedding" in name else shape[-1] ** -0.5)
        weights[name] = given.host
    model.load_state_dict(weights)
    return model, weights


def drawn_ids(bench: Bench, config: Config, size: tuple[int, int]) -> Host:
    return bench.draw.integers(*size, low=0, high=config.vocabulary).host


def drawn_targets(bench: Bench, config: Config, size: tuple[int, int]) -> Host:
    """Classes, about one in five of them ignored."""
    targets, ignored = drawn_ids(bench, config, size), bench.draw.rng.random(size) < 0.2
    return np.where(ignored, -1, targets).astype(np.int32)


def on_device(bench: Bench, host: Host) -> Tensor:
    """int32 values as a tensor that must stay as it is."""
    return Tensor(bench.put(Given(np.ascontiguousarray(host), "int32")), bench.opened, "int32")


def check_gradients(
    bench: Bench, config: Config, weights: Weights, ids: Host, targets: Host, loss: Any, gradients: dict[str, Any]
) -> None:
    """Native loss and gradients by name beside the truth."""

    def truth(moved: Any) -> dict[str, Host]:
        value, parts = oracle.loss_and_gradients(config, moved, ids, targets)
        return {"": np.asarray(value), **parts}

    want, allowed = spread(truth, weights, bench.draw.rng)
    for name, native in {"": loss, **gradients}.items():
        label = f"gradient of {name}" if name else "loss"
        got = bench.get(native)
        bench.require(got.shape == want[name].shape, f"{label}: got {got.shape}, wanted {want[name].shape}")
        bench.within(label, got, want[name], allowed[name])
