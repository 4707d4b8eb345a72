"""config.json of published layouts, read and written; what would be another function is refused by key and value."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.models import DecoderConfig, MiniConfig
from turret.models.weights.config_json import read_config, write_config
from turret.models.weights.own_layout import read_own
from turret.models.weights.room import require_room
from turret.nn import RopeScaling
from turret.spi import CheckpointError, ConfigError, TurretError, Unsupported

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "pretraining_tp": 1,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "n_ctx": 1024,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "attn_pdrop": 0.1,
    "summary_type": "cls_index",
    "reorder_and_upcast_attn": False,
    "eos_token_id": 50256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama(**changes: Any) -> dict[str, Any]:
    return LLAMA | changes


def test_every_key_arrives() -> None:
    values = llama(
        num_key_value_heads=2,
        head_dim=32,
        rope_theta=5e5,
        tie_word_embeddings=True,
        attention_bias=True,
        eos_token_id=[3, 9],
    )
    described = read_config(values)
    assert described.architecture == "llama" and described.eos_ids == (3, 9) and not described.packed
    assert described.config == MiniConfig(
        vocabulary=100,
        context=32,
        width=64,
        heads=4,
        kv_heads=2,
        blocks=2,
        feed_forward=96,
        rope_theta=5e5,
        eps=1e-5,
        tied_head=True,
        head_size=32,
        attention_bias="all",
    )


def test_what_is_left_out_has_the_default_of_the_layout() -> None:
    config = read_config(LLAMA).config
    assert isinstance(config, MiniConfig)
    assert (config.kv_heads, config.size_of_head, config.rope_theta, config.tied_head) == (4, 16, 10_000.0, False)
    gpt2 = read_config(GPT2).config
    assert gpt2 == DecoderConfig(
        vocabulary=50257,
        context=1024,
        width=768,
        heads=12,
        blocks=12,
        feed_forward=3072,
        gelu="tanh",
        tied_head=True,
        head_bias=False,
    )
    qwen = read_config(llama(model_type="qwen3")).config
    assert isinstance(qwen, MiniConfig) and qwen.head_size == 128 and qwen.query_key_norm


@pytest.mark.parametrize(
    ("kind", "bias", "wanted"),
    [
        ("llama", False, "none"),
        ("llama", True, "all"),
        ("mistral", None, "none"),
        ("qwen2", None, "qkv"),
        ("qwen3", True, "all"),
    ],
)
def test_biases_follow_the_layout(kind: str, bias: bool | None, wanted: str) -> None:
    config = read_config(llama(model_type=kind, attention_bias=bias, sliding_window=None)).config
    assert isinstance(config, MiniConfig) and config.attention_bias == wanted


def test_a_window_that_does_not_close_within_the_context_used_is_none() -> None:
    values = llama(model_type="mistral", max_position_embeddings=32768, sliding_window=4096)
    with pytest.raises(Unsupported, match="load it with context=4096 or less"):
        read_config(values)
    with pytest.raises(Unsupported, match="sliding_window is 4096"):
        read_config(values, used=4097)
    assert read_config(values, used=4096) == read_config(values | {"sliding_window": None})


@pytest.mark.parametrize(
    ("rope", "scaling"),
    [
        ({"rope_type": "default"}, None),
        ({"rope_type": "dynamic", "factor": 4.0}, None),
        ({"rope_type": "linear", "factor": 2.0}, RopeScaling(kind="linear", factor=2.0)),
        ({"type": "linear", "factor": 2.0}, RopeScaling(kind="linear", factor=2.0)),
        (LLAMA3, RopeScaling(kind="llama3", factor=32.0, original_context=8192, low=1.0, high=4.0)),
        ({"rope_type": "yarn", "factor": 4.0}, RopeScaling(kind="yarn", factor=4.0, original_context=32)),
        (
            {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 8, "attention_factor": 1.5},
            RopeScaling(kind="yarn", factor=4.0, original_context=8, attention=1.5),
        ),
    ],
)
def test_rotary_positions_are_read_in_the_old_form_and_the_new(
    rope: dict[str, Any], scaling: RopeScaling | None
) -> None:
    old = read_config(llama(rope_theta=5e4, rope_scaling=rope)).config
    new = read_config(llama(rope_parameters=rope | {"rope_theta": 5e4})).config
    assert old == new
    assert isinstance(old, MiniConfig) and old.rope_scaling == scaling and old.rope_theta == 5e4


def test_two_spellings_of_one_scaling_do_not_contradict_each_other() -> None:
    old, new = {"type": "yarn", "factor": 4.0}, {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e4}
    outside = {"original_max_position_embeddings": 8}
    config = read_config(llama(rope_scaling=old, rope_parameters=new, **outside)).config
    assert isinstance(config, MiniConfig) and config.rope_theta == 5e4
    assert config.rope_scaling == RopeScaling(kind="yarn", factor=4.0, original_context=8)
    assert read_config(llama(rope_parameters=new | outside, **outside)).config == config
    with pytest.raises(CheckpointError, match="original_max_position_embeddings is 16 inside and 8 outside"):
        read_config(llama(rope_parameters=new | {"original_max_position_embeddings": 16}, **outside))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "smollm3"}, "model_type is 'smollm3'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"no_rope_layers": [1, 1, 1, 0]}, "no_rope_layers is"),
        ({"attention_multiplier": 0.1}, "attention_multiplier is 0.1"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier is 12.0"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ({"num_local_experts": 8}, "num_local_experts is 8"),
        ({"model_type": "mistral", "sliding_window": 16}, "sliding_window is 16"),
        ({"model_type": "mistral", "sliding_window": 16, "use_sliding_window": False}, "sliding_window is 16"),
        ({"model_type": "mistral", "max_position_embeddings": 4097}, "sliding_window is None"),
        ({"model_type": "qwen3", "use_sliding_window": True}, "use_sliding_window is True"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64}, "use_sliding_window is True"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, "layer_types is"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "rope_type is 'longrope'"),
        ({"rope_scaling": {"type": "su"}}, "type is 'su'"),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [8, 8]}}, "mrope_section is"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "attention_factor": 2.0}}, "attention_factor is 2.0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}}, "mscale is 1.0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": False}}, "truncate is False"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "full_attention is"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method is 'gptq'"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "load_in_4bit is None"),
        ({"quantization_config": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}}, "quant_type is 'fp4'"),
    ],
)
def test_another_function_is_refused_by_key_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message.replace(".", r"\.").replace("[", r"\[")):
        read_config(llama(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "relu"}, "activation_function is 'relu'"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        (
            {"quantization_config": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}},
            "quantization_config is",
        ),
    ],
)
def test_another_gpt2_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        read_config(GPT2 | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": None}, "there is no 'vocab_size'"),
        ({"hidden_size": "64"}, "hidden_size is '64'; wanted a whole number"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": 2**50}, "hidden_size is 1125899906842624"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_attention_heads": 5}, "width 64 does not divide over 5 heads"),
        ({"num_key_value_heads": 3}, "4 query heads do not divide over 3"),
        ({"head_dim": 15}, "head size 15 is odd"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": 1.0}, "rope theta is 1.0; wanted more than 1"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"eos_token_id": [1, None]}, "eos_token_id is"),
        ({"rope_scaling": [1]}, "rope_scaling is"),
        ({"rope_scaling": {"rope_type": "linear"}}, "there is no 'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor is 0.5; wanted at least 1"),
        ({"rope_scaling": {"rope_type": 7}}, "rope_type is 7; wanted a text"),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 1.0}}, "differ"),
        ({"model_type": None}, "there is no 'model_type'"),
    ],
)
def test_malformed_values_are_errors_of_the_file(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=r"a/config\.json.*" + message.replace("[", r"\[")):
        read_config(llama(**changes), where="a/config.json")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
KEYS = [*LLAMA, *GPT2, "rope_scaling", "rope_parameters", "quantization_config", "eos_token_id", "head_dim"]


@given(base=st.sampled_from([LLAMA, GPT2]), junk=st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=4))
def test_no_value_gets_past_the_errors_of_turret(base: dict[str, Any], junk: dict[str, Any]) -> None:
    try:
        described = read_config(base | junk)
    except TurretError as error:
        assert "\n" not in str(error) and len(str(error)) < 500
    else:
        assert described.config.parameter_count() > 0


OWN = {"kind": "mini", "config": asdict(MiniConfig(vocabulary=9))}


@given(kind=st.sampled_from(["decoder", "mini"]), junk=st.dictionaries(st.sampled_from([*OWN["config"]]), JUNK))
def test_no_value_of_the_own_layout_gets_past_the_errors_of_turret(kind: str, junk: dict[str, Any]) -> None:
    try:
        described = read_own({"kind": kind, "config": {"vocabulary": 9} | junk}, where="config.json")
    except TurretError as error:
        assert "\n" not in str(error)
    else:
        require_room(described.config)


SCALINGS = st.one_of(
    st.none(),
    st.builds(RopeScaling, kind=st.just("linear"), factor=st.floats(1, 64)),
    st.builds(
        RopeScaling,
        kind=st.just("llama3"),
        factor=st.floats(1, 64),
        original_context=st.integers(1, 10**6),
        low=st.floats(0.5, 2),
        high=st.floats(3, 8),
    ),
    st.builds(
        RopeScaling,
        kind=st.just("yarn"),
        factor=st.floats(1, 64),
        original_context=st.integers(1, 10**6),
        fast=st.floats(3, 64),
        slow=st.floats(0.5, 2),
        attention=st.none() | st.floats(0.5, 2),
    ),
)


@st.composite
def minis(draw: st.DrawFn) -> MiniConfig:
    norm = draw(st.booleans())
    return MiniConfig(
        vocabulary=draw(st.integers(1, 1000)),
        context=draw(st.integers(1, 1000)),
        width=draw(st.sampled_from([8, 24, 64])),
        heads=4,
        kv_heads=draw(st.sampled_from([1, 2, 4])),
        blocks=draw(st.integers(1, 4)),
        feed_forward=draw(st.integers(1, 100)),
        rope_theta=draw(st.floats(1.5, 1e7)),
        eps=draw(st.floats(1e-8, 1e-2)),
        tied_head=draw(st.booleans()),
        head_size=draw(st.sampled_from([2, 6, 16])),
        attention_bias=draw(st.sampled_from(["none", "all"] if norm else ["none", "qkv", "all"])),
        query_key_norm=norm,
        rope_scaling=draw(SCALINGS),
    )


@given(config=minis(), wanted=st.sampled_from([None, "llama", "mistral", "qwen2", "qwen3"]))
def test_what_is_written_is_read_back(config: MiniConfig, wanted: str | None) -> None:
    values = json.loads(json.dumps(write_config(config, architecture=wanted)))
    assert read_config(values).config == config


@given(gelu=st.sampled_from(["erf", "tanh"]), tied=st.booleans(), hidden=st.integers(1, 99))
def test_a_decoder_is_written_as_gpt2(gelu: Any, tied: bool, hidden: int) -> None:
    config = DecoderConfig(vocabulary=9, feed_forward=hidden, gelu=gelu, tied_head=tied, head_bias=False)
    values = json.loads(json.dumps(write_config(config)))
    assert values["architectures"] == ["GPT2LMHeadModel"]
    assert read_config(values).config == config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DecoderConfig(vocabulary=9), "a head with a bias"),
        (DecoderConfig(vocabulary=9, kv_heads=2, head_bias=False), "2 key-value heads"),
        (MiniConfig(vocabulary=9, query_key_norm=True, attention_bias="qkv"), "attention_bias 'qkv'"),
        (MiniConfig(vocabulary=9, width=66, head_size=16, attention_bias="all"), "attention_bias 'all'"),
    ],
)
def test_a_configuration_that_no_layout_has_is_refused(config: Any, message: str) -> None:
    with pytest.raises(Unsupported, match=message + ".*form='safetensors'"):
        write_config(config)


def test_gpt2_has_two_names_for_a_size_and_they_agree() -> None:
    renamed = {key: value for key, value in GPT2.items() if key not in ("n_embd", "n_head", "n_layer", "n_positions")}
    renamed |= {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "max_position_embeddings": 1024}
    assert read_config(renamed).config == read_config(GPT2).config == read_config(GPT2 | renamed).config
    with pytest.raises(CheckpointError, match="num_attention_heads is 6 and n_head is 12"):
        read_config(GPT2 | {"num_attention_heads": 6})


@pytest.mark.parametrize(
    "config", [MiniConfig(vocabulary=9, eps=1, rope_theta=500), DecoderConfig(vocabulary=9, eps=1)]
)
def test_whole_numbers_are_written_as_the_floats_they_stand_for(config: Any) -> None:
    """Transformers refuses a configuration with an integer where it wants a float."""
    config = config if isinstance(config, MiniConfig) else replace(config, head_bias=False)
    values = write_config(config)
    assert all(
        type(values[key]) is float for key in ("rms_norm_eps", "layer_norm_epsilon", "rope_theta") if key in values
    )


def test_a_context_beyond_any_model_is_refused_before_its_tables_are_made() -> None:
    require_room(MiniConfig(vocabulary=9, width=2, heads=1, kv_heads=1, context=2**23))
    with pytest.raises(ConfigError, match=r"a context of 8,388,609 positions; wanted at most 8,388,608: set context"):
        require_room(MiniConfig(vocabulary=9, width=2, heads=1, kv_heads=1, context=2**23 + 1))
