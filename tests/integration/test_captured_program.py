"""What a device is given for a captured training step: one program that reuses its state, and nothing on the host."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import turret
from turret.models import DecoderConfig, MiniConfig, build_model
from turret.optim import Adam, decay_groups
from turret.registry import use_backend
from turret.tensor import Tensor, ops

CONFIGS = {
    "decoder": DecoderConfig(vocabulary=27, context=8, width=16, heads=2, blocks=1, feed_forward=32),
    "mini": MiniConfig(vocabulary=27, context=8, width=16, heads=2, kv_heads=1, blocks=1, feed_forward=32),
}


def lowered(config: Any) -> tuple[str, int]:
    """StableHLO of one captured step, and how many arrays it gives away."""
    with use_backend("tpu:cpu") as backend:
        model = build_model(config, seed=1)
        optimizer = Adam(decay_groups(model.named_parameters(), 0.1))

        def step(ids: Tensor, targets: Tensor) -> Tensor:
            loss = ops.cross_entropy(model(ids), targets)
            optimizer.step(turret.backward(loss))
            return loss

        captured = turret.capture(step, state=[model, optimizer])
        ids = [turret.tensor(np.ones((2, 8), np.int32), backend=backend) for _ in range(2)]
        captured(*ids)
        (program,) = captured._programs.values()
        inputs = [t.value for t in (*program._held, *ids)]
        compiled = program._compiled
        (function,) = [each for taken, each in compiled._taking.items() if taken]  # type: ignore[attr-defined]
        return function.lower(*inputs).as_text(), 3 * len(model.parameters())


@pytest.mark.parametrize("family", CONFIGS)
def test_a_captured_step_is_one_module_that_reuses_its_state(family: str) -> None:
    text, given = lowered(CONFIGS[family])
    assert len(re.findall(r"^module @", text, re.MULTILINE)) == 1
    assert len(re.findall(r"tf\.aliasing_output|jax\.buffer_donor", text)) == given
    calls = set(re.findall(r"custom_call @(\w+)", text))
    assert not [name for name in calls if "callback" in name or "host" in name.lower()]
    assert not re.search(r"\b(infeed|outfeed|send|recv)\b", text)
    assert "f64" not in text
    precisions = re.findall(r"dot_general.*?precision = \[(\w+), (\w+)\]", text)
    assert precisions and set(precisions) == {("HIGHEST", "HIGHEST")}


@pytest.mark.parametrize("family", CONFIGS)
def test_on_cuda_it_is_one_graph_that_keeps_its_state_in_place(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with use_backend("cuda:emulated") as backend:
        model = build_model(CONFIGS[family], seed=1)
    optimizer = Adam(decay_groups(model.named_parameters(), 0.1))

    def step(ids: Tensor, targets: Tensor) -> Tensor:
        loss = ops.cross_entropy(model(ids), targets)
        optimizer.step(turret.backward(loss))
        return loss

    captured = turret.capture(step, state=[model, optimizer])
    ids = [turret.tensor(np.ones((2, 8), np.int32), backend=backend) for _ in range(2)]
    losses = [captured(*ids).item()]
    state = [*model.parameters(), *optimizer.replaced_tensors()]
    places = [t.value.data.ptr for t in state]
    did: list[str] = []
    place: Any = backend.tools.storage._place  # type: ignore[attr-defined]
    for method in ("launch", "multiply", "upload", "download"):
        original = getattr(place, method)

        def watched(*args: Any, method: str = method, original: Any = original) -> None:
            did.append(args[1] if method == "launch" else method)
            original(*args)

        monkeypatch.setattr(place, method, watched)
    losses.append(captured(*ids).item())
    # the rate and the corrections; arguments into the graph and results out of it; whether all is finite; the loss
    assert did == ["upload", "copy_many", "copy_many", "download", "download"]
    assert [t.value.data.ptr for t in state] == places
    assert losses[1] < losses[0]
