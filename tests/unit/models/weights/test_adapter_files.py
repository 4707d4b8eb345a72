"""Adapter files: what is written, what is refused, and that a refusal leaves the model as it was."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from turret.models import DecoderConfig, LanguageModel, MiniConfig, build_model
from turret.models.weights.adapter_files import load_adapter, save_adapter
from turret.nn import AdapterSet, attach_adapters, base_fingerprint, pack_linears, require_no_adapters
from turret.registry import use_backend
from turret.spi import CheckpointError, ConfigError, NonFiniteError, TurretError, Unsupported
from turret.tensor import tensor

CONFIGS: dict[str, Any] = {
    "mini": MiniConfig(vocabulary=19, width=32, heads=4, kv_heads=2, feed_forward=48),
    "decoder": DecoderConfig(vocabulary=19, tied_head=False),
}
Q0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with use_backend("cpu"):
        yield


def model_of(kind: str = "mini") -> LanguageModel:
    return build_model(CONFIGS[kind], seed=3)


def drawn(adapters: AdapterSet) -> AdapterSet:
    random = np.random.default_rng(6)
    adapters.load_state_dict(
        {n: random.normal(size=x.shape).astype(np.float32) for n, x in adapters.state_dict().items()}
    )
    return adapters


def saved(folder: Path, kind: str = "mini", **options: Any) -> AdapterSet:
    model = model_of(kind)
    adapters = drawn(attach_adapters(model, **({"rank": 4, "alpha": 8} | options)))
    save_adapter(folder, model, adapters)
    return adapters


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    facts = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in facts.items() if value is not ...}))


def change_arrays(folder: Path, changes: dict[str, Any], metadata: dict[str, str] | None = None) -> None:
    path = folder / "adapter_model.safetensors"
    arrays = load_file(path) | changes
    save_file({key: value for key, value in arrays.items() if value is not None}, path, metadata)


def refused(folder: Path, error: type[TurretError], message: str, kind: str = "mini") -> None:
    model = model_of(kind)
    before = base_fingerprint(model)
    with pytest.raises(error, match=message):
        load_adapter(folder, model)
    require_no_adapters(model)
    assert base_fingerprint(model) == before
    assert all(p.trainable for p in model.parameters())


@pytest.mark.parametrize("targets", [["query", "value"], ["*"], ["key"], ["blocks.1.*"]])
@pytest.mark.parametrize("kind", CONFIGS)
def test_what_is_saved_comes_back(kind: str, targets: list[str], tmp_path: Path) -> None:
    written = saved(tmp_path / "made" / "here", kind, targets=targets, rank=3, alpha=2.5, dropout=0.125)
    read = load_adapter(tmp_path / "made" / "here", model_of(kind))
    assert list(read) == list(written)
    state = written.state_dict()
    assert {n: x.tobytes() for n, x in read.state_dict().items()} == {n: x.tobytes() for n, x in state.items()}
    assert {(x.rank, x.alpha, x.dropout) for x in read.values()} == {(3, 2.5, 0.125)}
    assert sorted(each.name for each in (tmp_path / "made" / "here").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_a_fresh_adapter_comes_back_with_its_ranks(tmp_path: Path) -> None:
    """Nothing of the block structure can be seen in a b of zeros."""
    model = model_of("decoder")
    fresh = attach_adapters(model, rank=3, alpha=5)
    save_adapter(tmp_path, model, fresh)
    read = load_adapter(tmp_path, model_of("decoder"))
    assert {n: (x.rank, x.alpha) for n, x in read.items()} == {n: (3, 5.0) for n in fresh}


def test_saving_replaces_what_was_there(tmp_path: Path) -> None:
    saved(tmp_path, rank=2)
    written = saved(tmp_path, rank=5, targets=["key"])
    read = load_adapter(tmp_path, model_of())
    assert (list(read), read.rank) == (list(written), 5)


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    saved(tmp_path)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    model = model_of()
    adapters = drawn(attach_adapters(model, rank=2, alpha=2, targets=["*"]))
    with pytest.raises(ConfigError, match="has no name in the checkpoint"):
        save_adapter(tmp_path, model, adapters, names={"blocks.0.attention.query": "q"})
    with pytest.raises(ConfigError, match="attached to another model"):
        save_adapter(tmp_path, model_of(), adapters)
    b = adapters["blocks.1.attention.key"].b
    b.assign(tensor(np.full(b.shape, math.nan, np.float32)).value)
    with pytest.raises(NonFiniteError, match=r"blocks\.1\.attention\.key\.adapter\.b has NaN"):
        save_adapter(tmp_path, model, adapters)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
    (tmp_path / "file").write_text("")
    other = model_of()
    with pytest.raises(CheckpointError, match="could not be written"):
        save_adapter(tmp_path / "file", other, attach_adapters(other, rank=1, alpha=1))


def test_an_adapter_fits_the_base_it_was_trained_on_alone(tmp_path: Path) -> None:
    saved(tmp_path)
    other = build_model(CONFIGS["mini"], seed=4)
    with pytest.raises(ConfigError, match=r"trained on a base with fingerprint .* or pass any_base=True"):
        load_adapter(tmp_path, other)
    require_no_adapters(other)
    assert len(load_adapter(tmp_path, other, any_base=True)) == 4
    packed = model_of()
    pack_linears(packed)
    with pytest.raises(ConfigError, match="fingerprint"):
        load_adapter(tmp_path, packed)
    assert len(load_adapter(tmp_path, packed, any_base=True)) == 4


def test_a_file_without_a_fingerprint_fits_by_its_shapes(tmp_path: Path) -> None:
    saved(tmp_path)
    change_arrays(tmp_path, {}, {"format": "pt"})
    assert len(load_adapter(tmp_path, build_model(CONFIGS["mini"], seed=4))) == 4


def test_half_precision_arrays_become_float32(tmp_path: Path) -> None:
    saved(tmp_path)
    arrays = load_file(tmp_path / "adapter_model.safetensors")
    change_arrays(tmp_path, {name: x.astype(np.float16) for name, x in arrays.items()})
    read = load_adapter(tmp_path, model_of())
    wanted = arrays[Q0].astype(np.float16).astype(np.float32)
    assert read["blocks.0.attention.query"].a.numpy().tobytes() == wanted.tobytes()


def test_a_second_adapter_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    model = model_of()
    first = load_adapter(tmp_path, model)
    with pytest.raises(ConfigError, match="has an adapter; call merge"):
        load_adapter(tmp_path, model)
    first.detach()
    load_adapter(tmp_path, model)


@pytest.mark.parametrize("key", ["use_dora", "use_rslora", "lora_bias", "use_qalora"])
def test_variants_are_refused_by_name(key: str, tmp_path: Path) -> None:
    saved(tmp_path)
    change_config(tmp_path, **{key: True})
    refused(tmp_path, Unsupported, f"{key} is True, which turret does not have")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"peft_type": "IA3"}, Unsupported, "peft_type is 'IA3'; wanted 'LORA'"),
        ({"peft_type": ...}, Unsupported, "peft_type is None"),
        ({"bias": "all"}, Unsupported, "bias is 'all'; wanted 'none'"),
        ({"init_lora_weights": "pissa"}, Unsupported, "init_lora_weights is 'pissa', which may change the base"),
        ({"init_lora_weights": "loftq"}, Unsupported, "init_lora_weights"),
        ({"modules_to_save": ["lm_head"]}, Unsupported, "modules_to_save is"),
        ({"layers_to_transform": [0]}, Unsupported, "layers_to_transform is"),
        ({"layer_replication": [[0, 1]]}, Unsupported, "layer_replication is"),
        ({"something_new": 3}, Unsupported, "something_new is 3"),
        ({"rank_pattern": {".*q_proj": 4}}, Unsupported, r"rank_pattern has the expression '\.\*q_proj'"),
        ({"rank_pattern": [4]}, CheckpointError, "rank_pattern is"),
        ({"rank_pattern": {"q_proj": 5}}, CheckpointError, r"lora_A\.weight has shape \(4, 32\); wanted \(5, 32\)"),
        ({"alpha_pattern": {"q_proj": -1}}, CheckpointError, "the alpha q_proj is"),
        ({"r": 0}, CheckpointError, "the rank r is 0"),
        ({"r": 4.0}, CheckpointError, "the rank r is 4.0"),
        ({"r": True}, CheckpointError, "the rank r is True"),
        ({"r": ...}, CheckpointError, "the rank r is None"),
        ({"r": 5}, CheckpointError, "wanted "),
        ({"lora_alpha": "8"}, CheckpointError, "lora_alpha is '8'; wanted a number"),
        ({"lora_alpha": 0}, CheckpointError, "wanted a number above 0"),
        ({"lora_alpha": 10**400}, CheckpointError, "wanted a number"),
        ({"lora_alpha": ...}, CheckpointError, "lora_alpha is None"),
        ({"lora_dropout": 1}, CheckpointError, r"lora_dropout is 1\.0"),
        ({"target_modules": 3}, CheckpointError, "target_modules is 3"),
        ({"target_modules": [3]}, CheckpointError, "target_modules"),
        ({"target_modules": ["q_proj"]}, CheckpointError, "v_proj' has arrays and is no target"),
        ({"target_modules": ["q_proj", "v_proj", "k_proj"]}, CheckpointError, "'k_proj' has no arrays"),
    ],
)
def test_configurations_that_are_not_understood_are_refused(
    changes: Any, error: type[TurretError], message: str, tmp_path: Path
) -> None:
    saved(tmp_path)
    change_config(tmp_path, **changes)
    refused(tmp_path, error, message)


def test_what_has_no_meaning_here_may_be_anything(tmp_path: Path) -> None:
    written = saved(tmp_path)
    change_config(
        tmp_path,
        base_model_name_or_path="x",
        revision="main",
        task_type=None,
        fan_in_fan_out=True,
        megatron_core="megatron.core",
        new_thing=None,
        target_modules=".*_proj",
        use_dora=...,
        modules_to_save=[],
    )
    assert list(load_adapter(tmp_path, model_of())) == list(written)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({Q0: None}, CheckpointError, r"lora_B\.weight' lacks '.*lora_A\.weight'"),
        ({Q0: np.zeros((4, 31), np.float32)}, CheckpointError, r"has shape \(4, 31\); wanted \(4, 32\)"),
        ({Q0: np.zeros((32, 4), np.float32)}, CheckpointError, "has shape"),
        ({Q0: np.full((4, 32), np.nan, np.float32)}, CheckpointError, "has NaN or infinite values"),
        ({Q0: np.zeros((4, 32), np.int32)}, CheckpointError, "I32"),
        ({"extra": np.zeros(1, np.float32)}, Unsupported, "tensor 'extra'"),
        (
            {"base_model.model.lm_head.base_layer.weight": np.zeros((2, 2), np.float32)},
            Unsupported,
            "save_embedding_layers=False",
        ),
        (
            {Q0.replace("layers.0", "layers.9").replace("_A", s): np.zeros((4, 4), np.float32) for s in ("_A", "_B")},
            CheckpointError,
            r"'model\.layers\.9\.self_attn\.q_proj' is no linear layer of this mini",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    changes: Any, error: type[TurretError], message: str, tmp_path: Path
) -> None:
    saved(tmp_path)
    change_arrays(tmp_path, changes)
    refused(tmp_path, error, message)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ('{"transformer.h.0.attn.c_attn": [4, 0, 5]}', "wanted 8 in all"),
        ('{"transformer.h.0.attn.c_attn": [4, 4]}', "for 3 layers"),
        ('{"transformer.h.0.attn.c_attn": [-4, 8, 4]}', "wanted 8 in all"),
        ('{"transformer.h.0.attn.c_attn": [0, 4, 4]}', "values outside of its layers' ranks"),
        ('{"transformer.h.0.attn.c_attn": [4.0, 0, 4]}', "wanted whole numbers"),
        ('{"transformer.h.0.attn.c_attn": 8}', "wanted whole numbers"),
        ('{"transformer.h.0.mlp.c_fc": [4]}', "wanted whole numbers"),
        ("[1]", "wanted an object"),
        ("{", "JSON that cannot be read"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(ranks: str, message: str, tmp_path: Path) -> None:
    saved(tmp_path, "decoder")
    change_arrays(tmp_path, {}, {"turret_ranks": ranks})
    refused(tmp_path, CheckpointError, message, "decoder")


def test_one_adapter_of_a_joint_module_becomes_three_that_share_a(tmp_path: Path) -> None:
    """As PEFT writes it: nothing says that the ranks belong to one of queries, keys and values."""
    written = saved(tmp_path, "decoder")
    change_arrays(tmp_path, {}, {"format": "pt"})
    read = load_adapter(tmp_path, model_of("decoder"))
    assert list(read) == [f"blocks.{n}.attention.{x}" for n in range(2) for x in ("query", "key", "value")]
    for name, adapter in read.items():
        wanted = written[name].delta() if name in written else np.zeros((32, 32))
        np.testing.assert_allclose(adapter.delta(), wanted, rtol=1e-6, atol=1e-6)
    save_adapter(tmp_path / "again", read.model, read)  # type: ignore[arg-type]
    arrays = load_file(tmp_path / "again" / "adapter_model.safetensors")
    assert {n: x.tobytes() for n, x in arrays.items()} == {
        n: x.tobytes() for n, x in load_file(tmp_path / "adapter_model.safetensors").items()
    }


def test_missing_files_are_named(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", CheckpointError, "adapter_config.json")
    saved(tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    refused(tmp_path, CheckpointError, "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text("[" * 100_000)
    refused(tmp_path, CheckpointError, "JSON that cannot be read")
    (tmp_path / "adapter_config.json").write_text(" " * (1 << 20) + "{}")
    refused(tmp_path, CheckpointError, "wanted at most 1048576")


def test_other_names_may_be_given(tmp_path: Path) -> None:
    saved(tmp_path)
    words = [(n, x) for n in range(2) for x in ("query", "value")]
    names = {f"blocks.{n}.attention.{x}": f"model.layers.{n}.self_attn.{x[0]}_proj" for n, x in words}
    assert len(load_adapter(tmp_path, model_of(), names=names)) == 4
    refused_names = {name: theirs + "x" for name, theirs in names.items()}
    with pytest.raises(CheckpointError, match="is no linear layer"):
        load_adapter(tmp_path, model_of(), names=refused_names)


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 2000), byte=st.integers(0, 255), which=st.booleans(), cut=st.booleans())
def test_damage_is_refused_or_loads(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int, which: bool, cut: bool
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    with use_backend("cpu"):
        saved(folder)
        path = folder / ("adapter_config.json" if which else "adapter_model.safetensors")
        data = bytearray(path.read_bytes())
        place %= len(data)
        if cut:
            del data[place:]
        else:
            data[place] = byte
        path.write_bytes(bytes(data))
        model = model_of()
        try:
            load_adapter(folder, model).detach()
        except TurretError:
            require_no_adapters(model)
        assert all(p.trainable for p in model.parameters())
    shutil.rmtree(folder)
