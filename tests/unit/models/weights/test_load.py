"""Loading folders: what is ignored, what is refused by name, and how much memory it takes."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from turret.models import DecoderConfig, LanguageModel, MiniConfig, build_model, load_pretrained, save_pretrained
from turret.models.weights import room
from turret.nn import PackedLinear, pack_linears
from turret.quant import PackedWeight
from turret.quant.bitsandbytes import write_weight
from turret.registry import use_backend
from turret.spi import CheckpointError, ConfigError, DataError, Host, NonFiniteError, Unsupported
from turret.tensor import no_grad, tensor

MINI = MiniConfig(vocabulary=40, context=32, width=32, feed_forward=48, tied_head=False, attention_bias="qkv")
TIED = MiniConfig(vocabulary=40, context=32, width=32, feed_forward=48)
GPT2 = DecoderConfig(vocabulary=40, context=32, width=32, feed_forward=48, head_bias=False, tied_head=True)
QUERY = "model.layers.1.self_attn.q_proj.weight"


def made(config: DecoderConfig | MiniConfig, folder: Path, **more: Any) -> LanguageModel:
    """A random model, saved."""
    with use_backend("cpu"):
        model = build_model(config, seed=5)
        save_pretrained(model, folder, **more)
    return model


def change_tensors(folder: Path, change: Callable[[dict[str, Host]], Any]) -> None:
    arrays = load_file(folder / "model.safetensors")
    change(arrays)
    save_file(arrays, folder / "model.safetensors")


def change_config(folder: Path, **changes: Any) -> None:
    place = folder / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | changes))


def same(model: LanguageModel, other: LanguageModel) -> None:
    state, wanted = model.state_dict(), other.state_dict()
    assert state.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(state[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("config", "buffers"),
    [
        (GPT2, ["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"]),
        (MINI, ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]),
    ],
)
def test_buffers_of_old_files_are_ignored(config: Any, buffers: list[str], tmp_path: Path) -> None:
    model = made(config, tmp_path / "m")
    change_tensors(tmp_path / "m", lambda arrays: arrays.update({name: np.ones(3, np.float32) for name in buffers}))
    same(load_pretrained(tmp_path / "m", backend="cpu").model, model)


@pytest.mark.parametrize(("config", "prefix"), [(GPT2, "transformer."), (MINI, "model.")])
def test_a_body_without_the_prefix_is_found(config: Any, prefix: str, tmp_path: Path) -> None:
    model = made(config, tmp_path / "m")

    def bare(arrays: dict[str, Host]) -> None:
        for name in list(arrays):
            arrays[name.removeprefix(prefix)] = arrays.pop(name)
        arrays["h.0.attn.bias" if config is GPT2 else "rotary_emb.inv_freq"] = np.ones(3, np.float32)

    change_tensors(tmp_path / "m", bare)
    same(load_pretrained(tmp_path / "m", backend="cpu").model, model)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (GPT2, "transformer.h.0.attn.bias2"),
        (GPT2, "transformer.h.0.crossattention.bias"),
        (MINI, "model.layers.0.self_attn.o_proj.bias"),
        (MINI, "score.weight"),
        (MINI, f"{QUERY}.absmax"),
    ],
)
def test_an_unexpected_tensor_is_named(config: Any, name: str, tmp_path: Path) -> None:
    made(config, tmp_path / "m")
    change_tensors(tmp_path / "m", lambda arrays: arrays.update({name: np.ones(3, np.float32)}))
    with pytest.raises(CheckpointError, match=rf"tensor '{name}' has no place in this model"):
        load_pretrained(tmp_path / "m", backend="cpu")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    made(MINI, tmp_path / "m")
    change_tensors(tmp_path / "m", lambda arrays: arrays.pop(QUERY))
    with pytest.raises(CheckpointError, match=rf"no tensor '{QUERY}' for blocks\.1\.attention\.query\.weight"):
        load_pretrained(tmp_path / "m", backend="cpu")


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    made(MINI, tmp_path / "m")
    change_tensors(tmp_path / "m", lambda arrays: arrays.update({QUERY: np.ones((32, 31), np.float32)}))
    with pytest.raises(CheckpointError, match=rf"tensor '{QUERY}' has shape \(32, 31\); wanted \(32, 32\)"):
        load_pretrained(tmp_path / "m", backend="cpu")


def test_gpt2_tensors_lie_the_other_way(tmp_path: Path) -> None:
    made(GPT2, tmp_path / "m")
    name = "transformer.h.0.mlp.c_fc.weight"
    change_tensors(tmp_path / "m", lambda arrays: arrays.update({name: arrays[name].T.copy()}))
    with pytest.raises(CheckpointError, match=rf"tensor '{name}' has shape \(48, 32\); wanted \(32, 48\)"):
        load_pretrained(tmp_path / "m", backend="cpu")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_tensor_that_is_not_finite_is_named(value: float, tmp_path: Path) -> None:
    made(MINI, tmp_path / "m")
    change_tensors(tmp_path / "m", lambda arrays: arrays[QUERY].__setitem__((3, 4), value))
    for quantize in (None, "nf4"):
        with pytest.raises(NonFiniteError, match=rf"tensor '{QUERY}' has 1 values that are NaN or infinite"):
            load_pretrained(tmp_path / "m", backend="cpu", quantize=quantize)  # type: ignore[arg-type]


def test_integers_are_no_weights(tmp_path: Path) -> None:
    made(MINI, tmp_path / "m")
    change_tensors(tmp_path / "m", lambda arrays: arrays.update({QUERY: np.ones((32, 32), np.int32)}))
    with pytest.raises(CheckpointError, match=rf"tensor '{QUERY}' is I32"):
        load_pretrained(tmp_path / "m", backend="cpu")


def test_a_tied_head_may_be_stored_too_if_it_is_equal(tmp_path: Path) -> None:
    model = made(TIED, tmp_path / "m")
    embedding = "model.embed_tokens.weight"
    change_tensors(tmp_path / "m", lambda arrays: arrays.update({"lm_head.weight": arrays[embedding]}))
    same(load_pretrained(tmp_path / "m", backend="cpu").model, model)
    change_tensors(tmp_path / "m", lambda arrays: arrays["lm_head.weight"].__setitem__((1, 2), 0.5))
    with pytest.raises(CheckpointError, match=r"the head is tied, and 'lm_head.weight' differs"):
        load_pretrained(tmp_path / "m", backend="cpu")


def test_a_tied_head_alone_is_the_embedding(tmp_path: Path) -> None:
    model = made(TIED, tmp_path / "m")
    embedding = "model.embed_tokens.weight"
    change_tensors(tmp_path / "m", lambda arrays: arrays.update({"lm_head.weight": arrays.pop(embedding)}))
    same(load_pretrained(tmp_path / "m", backend="cpu").model, model)


def test_an_untied_head_has_to_be_there(tmp_path: Path) -> None:
    made(TIED, tmp_path / "m")
    change_config(tmp_path / "m", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"no tensor 'lm_head.weight', and tie_word_embeddings is false"):
        load_pretrained(tmp_path / "m", backend="cpu")


def test_all_ends_of_a_generation_count_once_and_inside_the_vocabulary(tmp_path: Path) -> None:
    made(TIED, tmp_path / "m", eos_ids=(7,))
    change_config(tmp_path / "m", eos_token_id=[7, 9, 50256])
    (tmp_path / "m" / "generation_config.json").write_text('{"eos_token_id": [9, 3]}')
    assert load_pretrained(tmp_path / "m", backend="cpu").eos_ids == (7, 9, 3)


def test_weights_of_bitsandbytes_are_taken_as_they_are(tmp_path: Path) -> None:
    model = made(MINI, tmp_path / "m")
    names = {f"model.layers.{n}.mlp.{part}_proj.weight": (n, part) for n in (0, 1) for part in ("gate", "up", "down")}
    with use_backend("cpu"):
        weights = {
            name: PackedWeight.pack(getattr(model.blocks[n].feed_forward, part).weight, scales="dynamic")
            for name, (n, part) in names.items()
        }

    def pack(arrays: dict[str, Host]) -> None:
        for name, weight in weights.items():
            del arrays[name]
            arrays.update(write_weight(name, weight))

    change_tensors(tmp_path / "m", pack)
    how = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    with pytest.raises(CheckpointError, match=r"has shape"):
        load_pretrained(tmp_path / "m", backend="cpu")  # the configuration does not say so
    change_config(tmp_path / "m", quantization_config=how)
    loaded = load_pretrained(tmp_path / "m", backend="cpu").model
    for name, (n, part) in names.items():
        layer = getattr(loaded.blocks[n].feed_forward, part)
        assert isinstance(layer, PackedLinear)
        for key, array in weights[name].arrays().items():
            np.testing.assert_array_equal(layer.weight.arrays()[key], array)
    query = "blocks.1.attention.query.weight"
    np.testing.assert_array_equal(loaded.state_dict()[query], model.state_dict()[query])
    with pytest.raises(ConfigError, match="4 bits already; leave quantize out"):
        load_pretrained(tmp_path / "m", backend="cpu", quantize="nf4")


def test_packed_while_loading_is_packed_afterwards(tmp_path: Path) -> None:
    made(MINI, tmp_path / "m")
    loaded = load_pretrained(tmp_path / "m", backend="cpu", quantize="nf4", block=32).model
    whole = load_pretrained(tmp_path / "m", backend="cpu").model
    assert len(pack_linears(whole, block=32)) == 14
    ids = tensor(np.array([[1, 2, 3, 4]], np.int32), backend=loaded.parameters()[0].backend)
    with no_grad():
        np.testing.assert_array_equal(loaded(ids).numpy(), whole(ids).numpy())
    same(loaded, whole)


def test_peak_memory_is_the_packed_model_and_one_tensor(tmp_path: Path) -> None:
    """What NumPy allocates is counted: 20 layers of 1 MB would be 20 MB as floats."""
    config = MiniConfig(vocabulary=16, context=8, width=512, heads=8, kv_heads=8, blocks=3, feed_forward=512)
    made(config, tmp_path / "m")
    load_pretrained(tmp_path / "m", backend="cpu", quantize="nf4")
    tracemalloc.start()
    load_pretrained(tmp_path / "m", backend="cpu", quantize="nf4")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 4 * config.parameter_count() > 21_000_000
    assert peak < 12_000_000


@pytest.mark.parametrize("values", ["[]", "{", '{"model_type": "llama", "model_type": "llama"}', "\xff", "NaN", ""])
def test_a_configuration_that_is_no_json_object_is_refused(values: str, tmp_path: Path) -> None:
    made(TIED, tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(values, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_pretrained(tmp_path / "m", backend="cpu")


def test_a_configuration_without_end_is_refused(tmp_path: Path) -> None:
    made(TIED, tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text("{" + " " * 20_000_000 + "}")
    with pytest.raises(CheckpointError, match=r"config\.json: has 20000002 bytes; wanted at most 16000000"):
        load_pretrained(tmp_path / "m", backend="cpu")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    made(TIED, tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: weights alone; give their folder"):
        load_pretrained(tmp_path / "m" / "model.safetensors", backend="cpu")
    for place in (
        tmp_path,
        tmp_path / "absent",
        tmp_path / "m" / "config.json",
        tmp_path / "a\0b",
        tmp_path / ("a" * 5_000),
    ):
        with pytest.raises(CheckpointError):
            load_pretrained(place, backend="cpu")
    with pytest.raises(ConfigError, match=r"quantize is 'int8'; wanted 'nf4' or None"):
        load_pretrained(tmp_path / "m", backend="cpu", quantize="int8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="block"):
        load_pretrained(tmp_path / "m", backend="cpu", quantize="nf4", block=33)


def test_the_context_of_learned_positions_is_fixed(tmp_path: Path) -> None:
    made(GPT2, tmp_path / "m")
    with pytest.raises(ConfigError, match="context is fixed in a model with learned positions"):
        load_pretrained(tmp_path / "m", backend="cpu", context=8)


@pytest.mark.parametrize(
    "changes", [{"num_hidden_layers": 10**9}, {"vocab_size": 10**11}, {"max_position_embeddings": 10**12}]
)
def test_a_model_that_no_memory_holds_is_refused_before_it_is_built(changes: dict[str, int], tmp_path: Path) -> None:
    made(TIED, tmp_path / "m")
    change_config(tmp_path / "m", **changes)
    for quantize in (None, "nf4"):
        with pytest.raises(ConfigError, match=r"needs at least [\d,.]+ GB of memory and this machine has"):
            load_pretrained(tmp_path / "m", backend="cpu", quantize=quantize)  # type: ignore[arg-type]


def test_packing_counts_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    config = MiniConfig(vocabulary=16, context=8, width=512, heads=8, kv_heads=8, blocks=3, feed_forward=512)
    monkeypatch.setattr(room, "machine_memory", lambda: 4_000_000)
    room.require_room(config, packed=True)
    with pytest.raises(ConfigError, match="or quantize='nf4'"):
        room.require_room(config)


def test_more_blocks_than_tensors_are_refused(tmp_path: Path) -> None:
    made(TIED, tmp_path / "m")
    change_config(tmp_path / "m", num_hidden_layers=1000)
    with pytest.raises(CheckpointError, match="1000 blocks and 20 tensors"):
        load_pretrained(tmp_path / "m", backend="cpu")


def test_another_vocabulary_file_is_said_to_be_unread(tmp_path: Path) -> None:
    model = made(TIED, tmp_path / "m")
    (tmp_path / "m" / "tokenizer.model").write_bytes(b"")
    with pytest.raises(Unsupported, match=r"holds tokenizer\.model and no tokenizer\.json"):
        load_pretrained(tmp_path / "m", backend="cpu")
    same(load_pretrained(tmp_path / "m", backend="cpu", tokenizer=False).model, model)


def test_a_damaged_tokenizer_is_an_error(tmp_path: Path) -> None:
    made(TIED, tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json.*; tokenizer=False loads the weights alone"):
        load_pretrained(tmp_path / "m", backend="cpu")
