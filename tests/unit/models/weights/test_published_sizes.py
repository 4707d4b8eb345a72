"""Configurations of published models, as their config.json has them, have the published number of parameters."""

from __future__ import annotations

from typing import Any

import pytest

from turret.models.weights.config_json import read_config

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


def published(
    kind: str, blocks: int, width: int, heads: int, kv: int, hidden: int, vocabulary: int, **more: Any
) -> Any:
    """The config.json of a published model with a tied head."""
    return {
        "model_type": kind,
        "num_hidden_layers": blocks,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": hidden,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        **more,
    }


PUBLISHED: list[tuple[str, dict[str, Any], int]] = [
    ("GPT-2", GPT2, 124_439_808),
    (
        "SmolLM2-135M",
        published("llama", 30, 576, 9, 3, 1536, 49152, rope_theta=100000, max_position_embeddings=8192),
        134_515_008,
    ),
    (
        "SmolLM2-360M",
        published("llama", 32, 960, 15, 5, 2560, 49152, rope_theta=100000, max_position_embeddings=8192),
        361_821_120,
    ),
    (
        "Qwen2.5-0.5B",
        published(
            "qwen2",
            24,
            896,
            14,
            2,
            4864,
            151936,
            rope_theta=1000000.0,
            max_position_embeddings=32768,
            sliding_window=32768,
            use_sliding_window=False,
            max_window_layers=21,
        ),
        494_032_768,
    ),
    (
        "Qwen3-0.6B",
        published(
            "qwen3",
            28,
            1024,
            16,
            8,
            3072,
            151936,
            head_dim=128,
            attention_bias=False,
            rope_theta=1000000,
            rope_scaling=None,
            max_position_embeddings=40960,
            sliding_window=None,
            use_sliding_window=False,
        ),
        596_049_920,
    ),
    (
        "Llama-3.2-1B",
        published(
            "llama",
            16,
            2048,
            32,
            8,
            8192,
            128256,
            head_dim=64,
            rope_theta=500000.0,
            rope_scaling=LLAMA3,
            max_position_embeddings=131072,
            eos_token_id=[128001, 128008, 128009],
        ),
        1_235_814_400,
    ),
]


@pytest.mark.parametrize(("name", "values", "parameters"), PUBLISHED)
def test_published_models_have_their_number_of_parameters(name: str, values: dict[str, Any], parameters: int) -> None:
    described = read_config(values)
    assert described.config.parameter_count() == parameters
    assert described.config.tied_head
