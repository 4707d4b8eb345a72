"""Cases of whole models: logits, gradients and decoding of both families beside the float64 truth."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from turret.kv import ContiguousCache
from turret.models import LanguageModel
from turret.spi import Host
from turret.tensor import Tensor, backward, no_grad, ops

from ..bench import Bench
from ..case import Case
from ..given import Given
from ..oracle import models as oracle
from ..shaken import spread
from .drawn import CONFIGS, SHALLOW, Config, Weights, check_gradients, drawn_ids, drawn_model, drawn_targets, on_device
from .models_captured import captured_cases
from .models_paged import paged_cases
from .models_runs import run_cases

FAMILIES = ("decoder", "mini")
SIZES = ((1, 1), (3, 7), (8, 9))
"""Batch and length; 72 rows are more than a projection computes one by one."""


def cases() -> Iterator[Case]:
    """Forward, gradients, decoding, paged decoding, training, capture and checkpoints."""
    for name, config in CONFIGS.items():
        for b, t in (*SIZES, (2, config.context)):
            yield _case(f"models/forward/{name}-B{b}-T{t}", partial(_forward, config=config, size=(b, t)))
        yield _case(f"models/gradients/{name}-B3-T7", partial(_gradients, config=config, size=(3, 7)))
        yield _case(f"models/gradients/{name}-B8-T9", partial(_gradients, config=config, size=(8, 9)))
        yield _case(f"models/decode/{name}-by-token", partial(_decode, config=config, batch=1, chunks=(1,)))
        yield _case(f"models/decode/{name}-by-chunks-B3", partial(_decode, config=config, batch=3, chunks=(4, 1, 3)))
    for name in FAMILIES:
        yield _case(f"models/gradients/{name}-all-ignored", partial(_all_ignored, config=CONFIGS[name]))
        yield _case(f"models/gradients/{name}-frozen", partial(_frozen, config=CONFIGS[name]))
        yield _case(f"models/gradients/{name}-summed", partial(_summed, config=CONFIGS[name]))
        yield _case(f"models/decode/{name}-after-reset", partial(_reset, config=CONFIGS[name]))
        yield _case(f"models/forward/{name}-last", partial(_last, config=CONFIGS[name]))
    yield from paged_cases()
    yield from run_cases(SHALLOW)
    yield from captured_cases(SHALLOW)


def _case(name: str, body: Any) -> Case:
    return Case(id=name, body=body, kind="model")


def _forward(bench: Bench, config: Config, size: tuple[int, int]) -> None:
    model, weights = drawn_model(bench, config)
    ids = drawn_ids(bench, config, size)
    with no_grad():
        logits = model(on_device(bench, ids))
    _close_logits(bench, "logits", logits, config, weights, ids)


def _last(bench: Bench, config: Config) -> None:
    model, weights = drawn_model(bench, config)
    ids = drawn_ids(bench, config, (2, 7))
    with no_grad():
        logits = model(on_device(bench, ids), last=True)
    want, allowed = _logits(bench, config, weights, ids)
    bench.within("logits", bench.get(logits.value), want[:, -1:], allowed)


def _gradients(bench: Bench, config: Config, size: tuple[int, int]) -> None:
    model, weights = drawn_model(bench, config)
    ids, targets = drawn_ids(bench, config, size), drawn_targets(bench, config, size)
    loss = ops.cross_entropy(model(on_device(bench, ids)), on_device(bench, targets))
    found = backward(loss)
    got = {name: found[parameter].value for name, parameter in model.named_parameters()}
    check_gradients(bench, config, weights, ids, targets, loss.value, got)


def _all_ignored(bench: Bench, config: Config) -> None:
    """A batch without a target has loss 0 and gradients of exactly 0, not NaN."""
    model, _ = drawn_model(bench, config)
    targets = np.full((2, 5), -1, np.int32)
    loss = ops.cross_entropy(model(on_device(bench, drawn_ids(bench, config, (2, 5)))), on_device(bench, targets))
    found = backward(loss)
    bench.within("loss", bench.get(loss.value), np.zeros(()), 0.0)
    for name, parameter in model.named_parameters():
        got = bench.get(found[parameter].value)
        bench.within(f"gradient of {name}", got, np.zeros(got.shape), 0.0)


def _frozen(bench: Bench, config: Config) -> None:
    """Frozen weights get no gradient, and those of the others are what they were."""
    model, weights = drawn_model(bench, config)
    size = (3, 7)
    ids, targets = drawn_ids(bench, config, size), drawn_targets(bench, config, size)
    kept = {n: p for n, p in model.named_parameters() if "attention" in n}
    for name, parameter in model.named_parameters():
        parameter.trainable = name in kept
    loss = ops.cross_entropy(model(on_device(bench, ids)), on_device(bench, targets))
    found = backward(loss)
    bench.require(len(found) == len(kept), f"{len(found)} gradients, wanted {len(kept)}")
    got = {name: found[parameter].value for name, parameter in kept.items()}
    check_gradients(bench, config, weights, ids, targets, loss.value, got)


def _summed(bench: Bench, config: Config) -> None:
    """Two batches with the weights of their shares give the gradients of both together."""
    model, weights = drawn_model(bench, config)
    ids, targets = drawn_ids(bench, config, (4, 5)), drawn_ids(bench, config, (4, 5))
    total = None
    for part in (slice(0, 3), slice(3, 4)):
        loss = ops.cross_entropy(model(on_device(bench, ids[part])), on_device(bench, targets[part]))
        share = Tensor(bench.put(Given(np.asarray(len(ids[part]) / 4, np.float32), "float32")), bench.opened, "float32")
        gradients = backward(loss, share)
        total = gradients if total is None else total + gradients
    assert total is not None
    whole = ops.cross_entropy(model(on_device(bench, ids)), on_device(bench, targets))
    got = {name: total[parameter].value for name, parameter in model.named_parameters()}
    check_gradients(bench, config, weights, ids, targets, whole.value, got)


def _decode(bench: Bench, config: Config, batch: int, chunks: tuple[int, ...]) -> None:
    """Pieces of a sequence through the cache give the rows of the full forward."""
    model, weights = drawn_model(bench, config)
    ids = drawn_ids(bench, config, (batch, config.context))
    _through_cache(bench, model, weights, ids, _cache(bench, model, batch), chunks)


def _reset(bench: Bench, config: Config) -> None:
    """What a cache held before a reset is never seen again."""
    model, weights = drawn_model(bench, config)
    cache = _cache(bench, model, 2)
    for _ in range(2):
        _through_cache(bench, model, weights, drawn_ids(bench, config, (2, 9)), cache, (5, 1))
        cache.reset()


def _through_cache(
    bench: Bench, model: LanguageModel, weights: Weights, ids: Host, cache: ContiguousCache, chunks: tuple[int, ...]
) -> None:
    config: Config = model.config  # type: ignore[attr-defined]  # both families have one
    want, allowed = _logits(bench, config, weights, ids)
    start, step = 0, 0
    with no_grad():
        while start < ids.shape[1]:
            stop = min(ids.shape[1], start + chunks[step % len(chunks)])
            logits = model(on_device(bench, ids[:, start:stop]), cache)
            bench.within(f"positions {start}..{stop - 1}", bench.get(logits.value), want[:, start:stop], allowed)
            start, step = stop, step + 1
        full = model(on_device(bench, ids))
    bench.within("the full forward", bench.get(full.value), want, allowed)


def _cache(bench: Bench, model: LanguageModel, batch: int) -> ContiguousCache:
    return ContiguousCache(
        bench.opened,
        layers=model.blocks_count,
        batch=batch,
        capacity=model.context,
        kv_heads=model.kv_heads,
        head_size=model.head_size,
    )


def _close_logits(bench: Bench, label: str, logits: Tensor, config: Config, weights: Weights, ids: Host) -> None:
    want, allowed = _logits(bench, config, weights, ids)
    bench.require(logits.shape == want.shape, f"{label}: got {logits.shape}, wanted {want.shape}")
    bench.within(label, bench.get(logits.value), want, allowed)


def _logits(bench: Bench, config: Config, weights: Weights, ids: Host) -> tuple[Host, float]:
    """The truth and its budget."""
    want, allowed = spread(lambda moved: {"": oracle.forward(config, moved, ids)}, weights, bench.draw.rng)
    return want[""], allowed[""]
