"""The adapters of a model: attached, trained, merged and detached, with the base as it was."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest

from turret.models import DecoderConfig, LanguageModel, MiniConfig, build_model
from turret.nn import (
    AdapterSet,
    Init,
    Linear,
    LowRankAdapter,
    PackedLinear,
    attach_adapters,
    base_fingerprint,
    pack_linears,
    require_no_adapters,
)
from turret.optim import Adam
from turret.registry import OpenBackend, open_backend, use_backend
from turret.spi import ConfigError, DTypeError, NonFiniteError, ShapeError
from turret.tensor import Tensor, backward, capture, ops, tensor

IDS = np.random.default_rng(1).integers(0, 19, (2, 12)).astype(np.int32)
CONFIGS: dict[str, Any] = {
    "mini": MiniConfig(vocabulary=19, width=32, heads=4, kv_heads=2, feed_forward=48),
    "decoder": DecoderConfig(vocabulary=19, tied_head=False),
}


def model_of(kind: str, *, packed: bool = False) -> Any:
    made = build_model(CONFIGS[kind], seed=3)
    if packed:
        pack_linears(made)
    return made


def drawn(adapters: AdapterSet, *, scale: float = 0.1) -> AdapterSet:
    random = np.random.default_rng(6)
    adapters.load_state_dict(
        {n: (scale * random.normal(size=x.shape)).astype(np.float32) for n, x in adapters.state_dict().items()}
    )
    return adapters


def logits(model: LanguageModel) -> Any:
    return model(tensor(IDS)).numpy()


def loss_of(model: LanguageModel) -> Tensor:
    out = model(tensor(IDS))
    return ops.cross_entropy(out.reshape(-1, 19), tensor(np.roll(IDS, -1, axis=1).reshape(-1)))


def bits(model: LanguageModel) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_new_adapter_changes_no_bit_and_is_no_part_of_the_base(backend: OpenBackend, kind: str, packed: bool) -> None:
    model = model_of(kind, packed=packed)
    before, count, base, mark = logits(model), model.parameter_count(), bits(model), base_fingerprint(model)
    adapters = attach_adapters(model, rank=4, alpha=8)
    assert logits(model).tobytes() == before.tobytes()
    assert (model.parameter_count(), bits(model), base_fingerprint(model)) == (count, base, mark)
    names = [f"blocks.{n}.attention.{part}" for n in range(2) for part in ("query", "value")]
    assert list(adapters) == names
    wanted = [f"{name}.adapter.{part}" for name in names for part in "ab"]
    assert [name for name, _ in adapters.named_parameters()] == wanted
    assert [name for name, p in model.named_parameters() if p.trainable] == wanted
    assert adapters.parameter_count() == sum(4 * sum(x.shape) for x in adapters.values())
    assert (adapters.rank, adapters.alpha, adapters.targets) == (4, 8.0, ("query", "value"))


PATTERNS: list[tuple[Any, int]] = [
    (["query"], 2),
    ("query", 2),
    (["blocks.*.attention.query"], 2),
    (["blocks.1.*"], 7),
    (["*"], 14),
    (["[kq]*", "query", "up"], 6),
    (["blocks.?.feed_forward.down"], 2),
]


@pytest.mark.parametrize(("targets", "count"), PATTERNS)
def test_targets_are_patterns(targets: Any, count: int) -> None:
    with use_backend("cpu"):
        assert len(attach_adapters(model_of("mini"), rank=2, alpha=2, targets=targets)) == count


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ["q_proj"]}, r"target 'q_proj' matches no linear layer; wanted query, key, value, output, gate"),
        ({"targets": ["query", "nothing"]}, "target 'nothing' matches no"),
        ({"targets": ["Query"]}, "target 'Query'"),
        ({"targets": ["token_embedding"]}, "target 'token_embedding'"),
        ({"targets": [3]}, r"targets \[3\]; wanted names of linear layers"),
        ({"targets": None}, "targets None; wanted names of linear layers"),
        ({"targets": []}, "got no target"),
        ({"rank": 0}, "rank 0"),
        ({"rank": 17}, r"rank 17 is above the smaller side of blocks\.0\.attention\.value \(16, 32\)"),
        ({"alpha": math.nan}, "alpha nan"),
        ({"alpha": 0}, "alpha 0"),
        ({"dropout": 1}, "dropout 1"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(options: Any, message: str) -> None:
    with use_backend("cpu"):
        model = model_of("mini")
        with pytest.raises(ConfigError, match=message):
            attach_adapters(model, **({"rank": 2, "alpha": 4} | options))
        require_no_adapters(model)
        assert all(p.trainable for p in model.parameters())


def test_two_sets_on_one_model_are_refused(backend: OpenBackend) -> None:
    model = model_of("mini")
    first = attach_adapters(model, rank=2, alpha=4, targets=["query"])
    with pytest.raises(ConfigError, match=r"blocks\.0\.attention\.query has an adapter; call merge\(\) or detach\(\)"):
        attach_adapters(model, rank=2, alpha=4, targets=["value"])
    with pytest.raises(ConfigError, match="has an adapter"):
        require_no_adapters(model)
    with pytest.raises(ConfigError, match="has an adapter; merge"):
        pack_linears(model)
    first.detach()
    attach_adapters(model, rank=2, alpha=4, targets=["value"])


def test_a_set_that_fits_half_attaches_nothing(backend: OpenBackend) -> None:
    model = model_of("mini")
    good, bad = (LowRankAdapter(n, 32, rank=1, alpha=1, init=Init(0)) for n in (32, 31))
    with pytest.raises(ShapeError):
        AdapterSet(
            model,
            {"blocks.0.attention.query": good, "blocks.1.attention.query": bad},
            rank=1,
            alpha=1,
            targets=["query"],
        )
    require_no_adapters(model)
    with pytest.raises(ConfigError, match="adapters for nothing, which is no linear layer"):
        AdapterSet(model, {"nothing": good}, rank=1, alpha=1, targets=["query"])
    assert all(p.trainable for p in model.parameters())


@pytest.mark.parametrize("name", ["token_embedding.weight", "blocks.1.feed_forward.up.weight", "final_norm.scale"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_base_that_is_not_finite_is_refused_by_name(backend: OpenBackend, name: str, value: float) -> None:
    model = model_of("mini")
    state = model.state_dict()
    state[name].reshape(-1)[3] = value
    model.load_state_dict(state)
    with pytest.raises(NonFiniteError, match=rf"^{name} of the base has NaN or infinite"):
        attach_adapters(model, rank=2, alpha=4)
    require_no_adapters(model)


def test_packed_scales_that_are_not_finite_are_refused_by_name(backend: OpenBackend) -> None:
    model = model_of("mini", packed=True)
    layer: Any = dict(model.named_modules())["blocks.1.attention.key"]
    layer.offset = tensor(np.array(math.nan, np.float32))
    with pytest.raises(NonFiniteError, match=r"blocks\.1\.attention\.key\.offset"):
        attach_adapters(model, rank=2, alpha=4)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", CONFIGS)
def test_training_moves_adapters_alone_and_detaching_gives_the_base_back(
    backend: OpenBackend, kind: str, packed: bool
) -> None:
    model = model_of(kind, packed=packed)
    before, mark, base = logits(model), base_fingerprint(model), bits(model)
    model.final_norm.freeze()
    frozen = [name for name, p in model.named_parameters() if not p.trainable]
    adapters = attach_adapters(model, rank=4, alpha=8, targets=["*"])
    adam, losses = Adam(adapters.named_parameters(), lr=1e-2), []
    for _ in range(25):
        loss = loss_of(model)
        losses.append(loss.item())
        adam.step(backward(loss))
    assert losses[-1] < losses[0] - 0.3
    assert (bits(model), base_fingerprint(model)) == (base, mark)
    assert all(x.b.numpy().any() for x in adapters.values())
    adapters.detach()
    assert logits(model).tobytes() == before.tobytes()
    assert [name for name, p in model.named_parameters() if not p.trainable] == frozen
    for spent in (adapters.detach, adapters.merge, adapters.repack):
        with pytest.raises(ConfigError, match="is attached no more"):
            spent()


@pytest.mark.parametrize("packed", [False, True])
def test_checkpointed_blocks_give_the_same_gradients(backend: OpenBackend, packed: bool) -> None:
    """Nothing but adapters has a gradient: the first block's input has none."""
    model = model_of("mini", packed=packed)
    adapters = drawn(attach_adapters(model, rank=4, alpha=8, targets=["*"]))
    wanted = backward(loss_of(model))
    model.save_memory(checkpointing="block")
    found = backward(loss_of(model))
    for parameter in adapters.parameters():
        assert found[parameter].numpy().tobytes() == wanted[parameter].numpy().tobytes()
        assert found[parameter].numpy().any()


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_a_captured_step_trains_them(packed: bool) -> None:
    with use_backend("tpu:cpu"):
        runs = []
        for captured in (True, False):
            model = model_of("mini", packed=packed)
            adapters = attach_adapters(model, rank=4, alpha=8)
            adam = Adam(adapters.named_parameters(), lr=1e-2)

            def step(ids: Tensor, model: LanguageModel = model, adam: Adam = adam) -> Tensor:
                loss = ops.cross_entropy(model(ids).reshape(-1, 19), ids.reshape(-1))
                adam.step(backward(loss))
                return loss

            run = capture(step, state=[model, adam], enabled=captured)
            losses = [run(tensor(IDS)).item() for _ in range(4)]
            runs.append((losses, adapters.state_dict()))
        np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=1e-5)
        for name, value in runs[0][1].items():
            np.testing.assert_allclose(value, runs[1][1][name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_they_move_with_the_model(backend: OpenBackend, packed: bool) -> None:
    model, target = model_of("mini", packed=packed), open_backend("tpu:cpu")
    adapters = drawn(attach_adapters(model, rank=4, alpha=8, targets=["*"]))
    state, before = adapters.state_dict(), logits(model)
    model.to(target)
    assert {p.backend for p in adapters.parameters()} == {target}
    assert {n: x.tobytes() for n, x in adapters.state_dict().items()} == {n: x.tobytes() for n, x in state.items()}
    with use_backend(target):
        np.testing.assert_allclose(logits(model), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_merging_into_floats_adds_the_delta_rounded_once(backend: OpenBackend, kind: str) -> None:
    model = model_of(kind)
    adapters = drawn(attach_adapters(model, rank=4, alpha=8, targets=["*"]))
    state, wanted = model.state_dict(), logits(model)
    sums = {
        f"{name}.weight": (state[f"{name}.weight"].astype(np.float64) + x.delta()).astype(np.float32)
        for name, x in adapters.items()
    }
    adapters.merge()
    require_no_adapters(model)
    after = model.state_dict()
    assert {n: after[n].tobytes() for n in after} == {n: (state | sums)[n].tobytes() for n in after}
    np.testing.assert_allclose(logits(model), wanted, rtol=1e-4, atol=1e-5)
    assert all(p.trainable for p in model.parameters())


@pytest.mark.parametrize("kind", CONFIGS)
def test_merging_into_packed_layers_makes_them_linear_again(backend: OpenBackend, kind: str) -> None:
    model = model_of(kind, packed=True)
    parts = [model.blocks[n].attention.query for n in range(2)]
    whole = [each.weight.unpack().numpy() for each in parts]
    adapters = drawn(attach_adapters(model, rank=4, alpha=8, targets=["query"]))
    wanted, deltas = logits(model), [x.delta() for x in adapters.values()]
    adapters.merge()
    np.testing.assert_allclose(logits(model), wanted, rtol=1e-4, atol=1e-5)
    for n, (base, delta) in enumerate(zip(whole, deltas, strict=True)):
        layer = dict(model.named_modules())[f"blocks.{n}.attention.query"]
        assert type(layer) is Linear
        assert layer is model.blocks[n].attention.query
        assert layer.weight.dtype == "float32"
        assert layer.weight.numpy().tobytes() == (base.astype(np.float64) + delta).astype(np.float32).tobytes()
        assert not layer.weight.trainable
        assert layer.bias is None or layer.bias.trainable
    assert type(dict(model.named_modules())["blocks.0.attention.key"]) is PackedLinear


def test_a_merge_that_gives_no_number_changes_nothing(backend: OpenBackend) -> None:
    model = model_of("mini")
    adapters = drawn(attach_adapters(model, rank=4, alpha=8, targets=["*"]))
    last = list(adapters)[-1]
    for parameter in adapters[last].parameters():
        parameter.assign(tensor(np.full(parameter.shape, 1e30, np.float32)).value)
    before = bits(model)
    for merge in (adapters.merge, adapters.repack):
        with pytest.raises(NonFiniteError, match=rf"{last}\.weight with its adapter"):
            merge()
        assert bits(model) == before
    adapters.detach()


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("size", [0.001, 0.1])
def test_packing_again_tells_what_is_lost(
    backend: OpenBackend, kind: str, size: float, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of(kind, packed=True)
    adapters = drawn(attach_adapters(model, rank=4, alpha=8), scale=size)
    layers: Any = {name: dict(model.named_modules())[name] for name in adapters}
    wanted = {n: x.weight.unpack().numpy().astype(np.float64) + adapters[n].delta() for n, x in layers.items()}
    deltas = {n: x.delta() for n, x in adapters.items()}
    with caplog.at_level(logging.WARNING, logger="turret"):
        lost = adapters.repack()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{len(lost)} merged layers were packed again")
    assert f"{max(lost.values()):.3g}" in record.getMessage()
    after: Any = dict(model.named_modules())
    assert lost.keys() == wanted.keys()
    for name, each in wanted.items():
        layer = after[name]
        assert type(layer) is PackedLinear
        assert (layer.block, layer.scale_code) == (64, "dynamic")
        error = layer.weight.unpack().numpy() - each
        ratio = math.sqrt((error**2).sum() / (deltas[name] ** 2).sum())
        assert lost[name] == pytest.approx(ratio, rel=1e-3)
    require_no_adapters(model)
    assert all(p.trainable for p in model.parameters())


def test_packing_an_untrained_adapter_again_loses_nothing(backend: OpenBackend) -> None:
    model = build_model(CONFIGS["mini"], seed=3)
    pack_linears(model, scales="float32")
    before = logits(model)
    assert set(attach_adapters(model, rank=4, alpha=8).repack().values()) == {0.0}
    assert logits(model).tobytes() == before.tobytes()


def test_state_makes_a_round_trip_and_what_does_not_fit_changes_nothing(backend: OpenBackend) -> None:
    one, other = (attach_adapters(model_of("mini"), rank=4, alpha=8, seed=seed) for seed in (0, 1))
    assert one.state_dict()["blocks.0.attention.query.adapter.a"].tobytes() != (
        other.state_dict()["blocks.0.attention.query.adapter.a"].tobytes()
    )
    other.load_state_dict(drawn(one).state_dict())
    state = one.state_dict()
    assert {n: x.tobytes() for n, x in other.state_dict().items()} == {n: x.tobytes() for n, x in state.items()}
    name = "blocks.1.attention.value.adapter.b"
    for change, error in (
        ({name: np.zeros((2, 2), np.float32)}, ShapeError),
        ({name: np.zeros(state[name].shape, np.int32)}, DTypeError),
        ({"more": np.zeros(1, np.float32)}, ConfigError),
    ):
        with pytest.raises(error):
            other.load_state_dict({n: x + 1 for n, x in state.items()} | change)
        assert {n: x.tobytes() for n, x in other.state_dict().items()} == {n: x.tobytes() for n, x in state.items()}


def test_equal_seeds_give_equal_adapters_on_every_backend(backend: OpenBackend) -> None:
    here = attach_adapters(model_of("mini"), rank=4, alpha=8, seed=7).state_dict()
    with use_backend("tpu:cpu"):
        there = attach_adapters(model_of("mini"), rank=4, alpha=8, seed=7).state_dict()
    assert {n: x.tobytes() for n, x in here.items()} == {n: x.tobytes() for n, x in there.items()}
