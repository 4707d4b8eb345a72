"""Truth of whole models: logits, loss, the gradient of every weight, and the losses of a training run.

Weights go by the names of `state_dict()`; everything is float64, a batch at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np

from turret.models import DecoderConfig, MiniConfig

from . import adam, loss
from .arrays import Array
from .models_layers import Backward, Layer, Pass, residual

Config = DecoderConfig | MiniConfig
IGNORED = -1


def forward(config: Config, weights: Mapping[str, Array], ids: Array) -> Array:
    """Logits (B, T, V) of token ids (B, T)."""
    logits, _ = _run(config, Pass(weights), ids)
    return logits


def loss_and_gradients(
    config: Config, weights: Mapping[str, Array], ids: Array, targets: Array
) -> tuple[Array, dict[str, Array]]:
    """The mean cross entropy over the targets (B, T) that are not -1, and its gradient for every weight."""
    model = Pass(weights)
    logits, backward = _run(config, model, ids)
    flat = logits.reshape(-1, logits.shape[-1])
    value, gradient = loss.cross_entropy_grad(flat, targets.reshape(-1), None, ignore=IGNORED)
    backward(gradient.reshape(logits.shape))
    return value, {name: model.gradients[name] for name in model.weights}


def train(
    config: Config,
    weights: Mapping[str, Array],
    batches: Iterable[tuple[Array, Array]],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    max_norm: float | None,
) -> list[Array]:
    """One Adam step for each batch of ids and targets (B, T); the loss of each before its step.

    Matrices and tables decay, vectors do not. `max_norm` None: no clipping. `weights` stays as it is.
    """
    names = list(weights)
    params = tuple(weights[name].astype(np.float64) for name in names)
    first: adam.Arrays = tuple(np.zeros(p.shape) for p in params)
    second = first
    losses = []
    for step, (ids, targets) in enumerate(batches, start=1):
        value, gradients = loss_and_gradients(config, dict(zip(names, params, strict=True)), ids, targets)
        losses.append(value)
        params, first, second, _, _ = adam.update(
            params,
            [gradients[name] for name in names],
            first,
            second,
            lr=lr,
            correction1=1 - betas[0] ** step,
            correction2=1 - betas[1] ** step,
            betas=betas,
            eps=eps,
            decay=[decay if p.ndim >= 2 else 0.0 for p in params],
            max_norm=math.inf if max_norm is None else max_norm,
        )
    return losses


def _run(config: Config, model: Pass, ids: Array) -> tuple[Array, Callable[[Array], None]]:
    """Logits, and the function that takes their gradient down to the embeddings. Source: Xiong et al. 2020, fig. 1b."""
    x, embed_backward = _embedded(config, model, ids)
    backwards: list[Backward] = []
    for block in range(config.blocks):
        attention, feed_forward = _layers(config, model, f"blocks.{block}", ids.shape[1])
        for name, layer in (("attention", attention), ("feed_forward", feed_forward)):
            x, backward = residual(x, _norm(config, model, f"blocks.{block}.{name}_norm"), layer)
            backwards.append(backward)
    x, backward = _norm(config, model, "final_norm")(x)
    shared = "token_embedding.weight" if config.tied_head else ""
    logits, head_backward = model.linear("language_model_head", x, weight=shared)
    backwards += [backward, head_backward]

    def run_backward(gradient: Array) -> None:
        for backward in reversed(backwards):
            gradient = backward(gradient)
        embed_backward(gradient)

    return logits, run_backward


def _embedded(config: Config, model: Pass, ids: Array) -> tuple[Array, Callable[[Array], None]]:
    tokens, tokens_backward = model.embed("token_embedding.weight", ids)
    if isinstance(config, MiniConfig):
        return tokens, tokens_backward
    positions, positions_backward = model.positions("position_embedding.weight", ids.shape[1])

    def backward(dy: Array) -> None:
        tokens_backward(dy)
        positions_backward(dy)

    return tokens + positions, backward


def _norm(config: Config, model: Pass, name: str) -> Layer:
    norm = model.rms_norm if isinstance(config, MiniConfig) else model.layer_norm
    return partial(norm, name, eps=config.eps)


def _layers(config: Config, model: Pass, name: str, count: int) -> tuple[Layer, Layer]:
    """Attention and feed-forward layer of one block."""
    attention = partial(model.attention, f"{name}.attention", heads=config.heads)
    if isinstance(config, MiniConfig):
        rotation = _rotation(count, config.width // config.heads, config.rope_theta)
        gated = partial(model.gated_feed_forward, f"{name}.feed_forward")
        return partial(attention, kv_heads=config.kv_heads, rotation=rotation), gated
    plain = partial(model.feed_forward, f"{name}.feed_forward", form=config.gelu)
    return partial(attention, kv_heads=config.key_value_heads, rotation=None), plain


def _rotation(count: int, size: int, theta: float) -> tuple[Array, Array]:
    """cos and sin (count, size / 2) of position * theta^(-2i / size). Source: Su et al. 2021, eq. 15."""
    angles = np.arange(count)[:, None] * theta ** (-np.arange(0, size, 2) / size)
    return np.cos(angles), np.sin(angles)
