"""What is saved comes back bit for bit, whole or not at all; what would not come back is refused."""

from __future__ import annotations

import json
import stat
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from turret.data.chat_template import ChatTemplate
from turret.data.subword import SubwordTokenizer
from turret.models import (
    DecoderConfig,
    LanguageModel,
    MiniConfig,
    Pretrained,
    build_model,
    load_pretrained,
    save_pretrained,
)
from turret.nn import Init, Linear, RopeScaling, attach_adapters, pack_linears
from turret.registry import use_backend
from turret.spi import CheckpointError, ConfigError, NonFiniteError, Unsupported
from turret.tensor import no_grad, tensor

GPT2 = DecoderConfig(vocabulary=300, context=16, head_bias=False)
MINI = MiniConfig(vocabulary=300, context=16)
YARN = RopeScaling(kind="yarn", factor=4.0, original_context=4)
CONFIGS: dict[str, DecoderConfig | MiniConfig] = {
    "gpt2": DecoderConfig(vocabulary=300, context=16, gelu="tanh", tied_head=True, head_bias=False),
    "gpt2 untied": GPT2,
    "llama": MINI,
    "llama untied": MiniConfig(vocabulary=300, context=16, tied_head=False, attention_bias="all", rope_scaling=YARN),
    "mistral": MiniConfig(vocabulary=300, context=16, width=30, head_size=8),
    "qwen2": MiniConfig(vocabulary=300, context=16, attention_bias="qkv"),
    "qwen3": MiniConfig(vocabulary=300, context=16, query_key_norm=True, head_size=32, tied_head=False),
}
OWN = CONFIGS | {
    "decoder": DecoderConfig(vocabulary=300),
    "decoder with grouped heads": DecoderConfig(vocabulary=300, kv_heads=2),
    "mini": MiniConfig(vocabulary=300, query_key_norm=True, attention_bias="qkv"),
}


def random_model(config: DecoderConfig | MiniConfig) -> LanguageModel:
    """No parameter is what it begins as."""
    random = np.random.default_rng(2)
    with use_backend("cpu"):
        model = build_model(config)
    state = {name: random.normal(size=value.shape).astype(np.float32) for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    return model


def logits(model: LanguageModel) -> Any:
    with no_grad():
        return model(tensor(np.array([[1, 2, 3]], np.int32), backend=model.parameters()[0].backend)).numpy()


def words() -> tuple[SubwordTokenizer, ChatTemplate]:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE(vocab={each: n for n, each in enumerate(letters)}, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<s>", "<|im_end|>"])
    source = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}<|im_end|>{% endfor %}"
    return SubwordTokenizer(library, eos_id="<|im_end|>"), ChatTemplate(source, special={"bos_token": "<s>"})


def same(model: LanguageModel, other: LanguageModel) -> None:
    state, wanted = model.state_dict(), other.state_dict()
    assert list(state) == list(wanted)
    for name, value in wanted.items():
        assert state[name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize("name", CONFIGS)
def test_a_hugging_face_folder_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = random_model(CONFIGS[name])
    assert save_pretrained(model, tmp_path / "m") == tmp_path / "m"
    loaded = load_pretrained(tmp_path / "m", backend="cpu")
    assert (loaded.form, loaded.architecture, loaded.eos_ids) == ("hf", name.split()[0], ())
    same(loaded.model, model)
    assert logits(loaded.model).tobytes() == logits(model).tobytes()


@pytest.mark.parametrize("name", OWN)
def test_every_model_fits_the_own_layout(name: str, tmp_path: Path) -> None:
    model = random_model(OWN[name])
    save_pretrained(model, tmp_path / "m", form="safetensors", eos_ids=(4,))
    assert load_file(tmp_path / "m" / "model.safetensors").keys() == model.state_dict().keys()
    loaded = load_pretrained(tmp_path / "m", backend="cpu")
    assert (loaded.form, loaded.architecture, loaded.eos_ids) == ("safetensors", model.kind, (4,))
    same(loaded.model, model)
    assert logits(loaded.model).tobytes() == logits(model).tobytes()


def test_the_layout_that_a_model_came_in_is_kept(tmp_path: Path) -> None:
    save_pretrained(random_model(MINI), tmp_path / "m")
    place = tmp_path / "m" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"model_type": "mistral"}))
    save_pretrained(load_pretrained(tmp_path / "m", backend="cpu"), tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["architectures"] == ["MistralForCausalLM"]


@pytest.mark.parametrize("form", ["hf", "safetensors"])
def test_tokenizer_template_and_ends_come_back(form: Any, tmp_path: Path) -> None:
    tokenizer, template = words()
    model = random_model(MINI)
    save_pretrained(model, tmp_path / "m", form=form, tokenizer=tokenizer, template=template, eos_ids=(257, 3))
    first = load_pretrained(tmp_path / "m", backend="cpu")
    save_pretrained(first, tmp_path / "again", form=form)
    for loaded in (first, load_pretrained(tmp_path / "again", backend="cpu")):
        assert loaded.eos_ids == (257, 3) and loaded.allowed == 258
        assert loaded.tokenizer is not None and loaded.template is not None
        assert loaded.tokenizer.fingerprint == tokenizer.fingerprint and loaded.tokenizer.eos_id == 257
        messages = [{"role": "user", "content": "hé"}]
        for prompt in (True, False):
            wanted = template.encode(tokenizer, messages, add_generation_prompt=prompt).tolist()
            assert loaded.template.encode(loaded.tokenizer, messages, add_generation_prompt=prompt).tolist() == wanted


def test_a_tokenizer_larger_than_the_model_is_of_another_one(tmp_path: Path) -> None:
    tokenizer, _ = words()
    small = random_model(MiniConfig(vocabulary=257, context=16))
    with pytest.raises(ConfigError, match="258 ids and the model 257"):
        save_pretrained(small, tmp_path / "m", tokenizer=tokenizer)
    save_pretrained(small, tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_text(tokenizer.to_json())
    with pytest.raises(CheckpointError, match="the tokenizer has 258 ids and the model 257"):
        load_pretrained(tmp_path / "m", backend="cpu")


def test_packed_weights_are_saved_as_the_floats_they_stand_for(tmp_path: Path) -> None:
    for form in ("hf", "safetensors"):
        model = random_model(CONFIGS["gpt2 untied"])
        wanted = {name: each.weight.unpack().numpy() for name, each in _packed(model).items()}
        assert len(wanted) == 12
        save_pretrained(model, tmp_path / form, form=form)  # type: ignore[arg-type]
        state = load_pretrained(tmp_path / form, backend="cpu").model.state_dict()
        for name, value in wanted.items():
            np.testing.assert_array_equal(state[f"{name}.weight"], value)
        assert state.keys() > model.state_dict().keys()


def _packed(model: LanguageModel) -> dict[str, Any]:
    names, found = pack_linears(model, block=32), dict(model.named_modules())
    return {name: found[name] for name in names}


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    model = random_model(MINI)
    (tmp_path / "empty").mkdir()
    save_pretrained(model, tmp_path / "empty")
    (tmp_path / "file").write_text("kept")
    for place in (tmp_path / "empty", tmp_path, tmp_path / "file"):
        with pytest.raises(CheckpointError, match="is there already and not empty; wanted a new folder"):
            save_pretrained(model, place)
    assert (tmp_path / "file").read_text() == "kept"
    for place in (tmp_path / "file" / "m", tmp_path / "a\0b"):
        with pytest.raises(CheckpointError, match="could not be written"):
            save_pretrained(model, place)


def test_parents_are_made_and_files_can_be_read_by_others(tmp_path: Path) -> None:
    save_pretrained(random_model(MINI), tmp_path / "a" / "b" / "m")
    beside = tmp_path / "touched"
    beside.touch()
    for each in (tmp_path / "a" / "b" / "m").iterdir():
        assert stat.S_IMODE(each.stat().st_mode) == stat.S_IMODE(beside.stat().st_mode)
    assert [each.name for each in (tmp_path / "a" / "b").iterdir()] == ["m"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    model = random_model(MINI)
    state = model.state_dict()
    state["final_norm.scale"][3] = np.nan
    model.load_state_dict(state)
    with pytest.raises(NonFiniteError, match=r"tensor 'model\.norm\.weight' has 1 values that are NaN"):
        save_pretrained(model, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_live_adapter_is_refused(tmp_path: Path) -> None:
    model = random_model(MINI)
    adapters = attach_adapters(model, rank=2, alpha=4)
    with pytest.raises(ConfigError, match=r"has an adapter; call merge\(\) or detach\(\)"):
        save_pretrained(model, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
    adapters.detach()
    save_pretrained(model, tmp_path / "m")


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    tokenizer, template = words()
    model = random_model(MINI)
    save_pretrained(model, tmp_path / "m")
    loaded = load_pretrained(tmp_path / "m", backend="cpu")
    assert isinstance(loaded, Pretrained)
    target = tmp_path / "new"
    with pytest.raises(ConfigError, match="form is 'gguf'; wanted 'hf' or 'safetensors'"):
        save_pretrained(model, target, form="gguf")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a Pretrained brings its tokenizer"):
        save_pretrained(loaded, target, tokenizer=tokenizer)
    with pytest.raises(ConfigError, match="a chat template without a tokenizer"):
        save_pretrained(model, target, template=template)
    with pytest.raises(ConfigError, match=r"eos_ids are \(300,\); wanted ids below the vocabulary, 300"):
        save_pretrained(model, target, eos_ids=(300,))
    with pytest.raises(ConfigError, match="got Linear; wanted a Decoder"):
        save_pretrained(Linear(2, 2, init=Init(0)), target)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="form='safetensors'"):
        save_pretrained(random_model(DecoderConfig(vocabulary=9)), target)
    assert not target.exists()


def test_one_tensor_at_a_time_is_on_the_host(tmp_path: Path) -> None:
    config = MiniConfig(vocabulary=16, context=8, width=512, heads=8, kv_heads=8, blocks=3, feed_forward=512)
    model = random_model(config)
    tracemalloc.start()
    save_pretrained(model, tmp_path / "m")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 4 * config.parameter_count() > 21_000_000
    assert peak < 4_000_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "other"}, "there is no model family 'other'"),
        ({"kind": None}, "there is no 'kind'"),
        ({"config": {"vocabulary": 300, "widht": 3}}, "did you mean 'width'"),
        ({"config": [1]}, "config is"),
        ({"config": {"vocabulary": 300, "heads": 3}}, "does not divide"),
    ],
)
def test_an_own_configuration_is_read_strictly(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_pretrained(random_model(MINI), tmp_path / "m", form="safetensors")
    place = tmp_path / "m" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | changes))
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(tmp_path / "m", backend="cpu")


@pytest.mark.parametrize("form", ["hf", "safetensors"])
@pytest.mark.parametrize("changes", [{"rope_theta": 0.5}, {"eps": 10**20}])
def test_what_could_not_be_loaded_again_is_not_saved(form: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    model = random_model(replace(MINI, **changes))
    with pytest.raises(Unsupported, match=r"could not be loaded again: config\.json: .*; change the configuration"):
        save_pretrained(model, tmp_path / "model", form=form)
    assert not list(tmp_path.iterdir())
