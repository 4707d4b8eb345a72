"""A made-up checkpoint whose arrays tell which step they are of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from turret.train.checkpoint import CheckpointContent

MakeContent = Callable[[int], CheckpointContent]


def content_of(step: int) -> CheckpointContent:
    generator = np.random.default_rng(step)
    weight = generator.normal(size=(3, 5)).astype(np.float32)
    return CheckpointContent(
        model={"kind": "decoder", "config": {"width": 32, "heads": 4, "dropout": 0.0}},
        train={"lr": 1e-3, "schedule": "cosine", "clip": None},
        tokenizer="bytes",
        data={"source": "builtin:python-docs", "sha256": "ab" * 32, "files": [{"name": "a.txt", "bytes": 7}]},
        step=step,
        tokens_seen=step * 768,
        position={"step": step, "tokens_seen": step * 768, "batch": 12},
        random={"bit_generator": "PCG64", "state": 2**120 + 1},
        extra={"best": 0.1 + 0.2, "name": "grün"},
        parameters={"head.weight": weight, "head.bias": np.full(5, step, np.float32)},
        optimizer={"head.weight.m": weight * 2, "count": np.array(step, np.int64)},
    )


@pytest.fixture
def make_content() -> MakeContent:
    return content_of
