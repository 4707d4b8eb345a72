"""GGUF metadata as a configuration of turret, and the names of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from turret.models.decoder import DecoderConfig
from turret.models.mini import AttentionBias, MiniConfig
from turret.nn import RopeScaling
from turret.nn.rope_scaling import frequencies
from turret.spi import CheckpointError, ConfigError, Host, Unsupported

from .config_json import Described
from .facts import Facts
from .names import EMBEDDING, HEAD, Piece, Plan, block_plan
from .rope_json import require_theta
from .source import TensorSource

ARCHITECTURES = ("gpt2", "llama", "qwen2", "qwen3")
INTERLEAVED = ("llama",)
"""Architectures whose files have the rows of queries and keys in pairs; the others have them as Hugging Face does."""

ROPE_FACTORS = "rope_freqs.weight"
LLAMA3_CONTEXT = 8192
"""Files with `ROPE_FACTORS` do not say what those were made of; every published Llama 3 has 1, 4 and this context."""

SHARED = {"block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"}
HEADS = {"attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"}
ROPE = {
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
}
KNOWN = {
    "gpt2": SHARED | HEADS | {"attention.layer_norm_epsilon"},
    "llama": SHARED | HEADS | ROPE | {"attention.layer_norm_rms_epsilon"},
}
"""What is read, or says nothing about the function, behind the architecture's prefix; anything else is refused."""

LLAMA = {
    "attention_norm.scale": "attn_norm.weight",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.output": "attn_output",
    "attention.query_norm.scale": "attn_q_norm.weight",
    "attention.key_norm.scale": "attn_k_norm.weight",
    "feed_forward_norm.scale": "ffn_norm.weight",
    "feed_forward.gate": "ffn_gate",
    "feed_forward.up": "ffn_up",
    "feed_forward.down": "ffn_down",
}
GPT2 = {"attention_norm": "attn_norm", "attention.output": "attn_output", "feed_forward_norm": "ffn_norm"}
GPT2 |= {"feed_forward.expand": "ffn_up", "feed_forward.project": "ffn_down"}


def read_metadata(metadata: Mapping[str, Any], source: TensorSource) -> Described:
    """The model of a GGUF file: what its metadata says, and what is told by which tensors there are.

    Raises: Unsupported naming the key and value of what turret does not have; CheckpointError for a value that is
    missing, malformed or contradicts another one.
    """
    where = str(source.path)
    architecture = Facts(metadata, where).word("general.architecture")
    if architecture not in ARCHITECTURES:
        raise Facts(metadata, where).unsupported("general.architecture", f"wanted one of {', '.join(ARCHITECTURES)}")
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    facts = Facts(own, f"{where}: {architecture}")
    for key in own:
        if key not in KNOWN["gpt2" if architecture == "gpt2" else "llama"]:
            raise facts.unsupported(key, "wanted a file without that key")
    names = frozenset(source.names())
    if "token_embd.weight" not in names:
        raise CheckpointError(f"{where}: there is no tensor 'token_embd.weight'; wanted a whole language model")
    try:
        config = _gpt2(facts, source, names) if architecture == "gpt2" else _llama(facts, source, names, architecture)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error
    eos = Facts(metadata, where).ids("tokenizer.ggml.eos_token_id") + Facts(metadata, where).ids(
        "tokenizer.ggml.eot_token_id"
    )
    return Described(config=config, architecture=architecture, eos_ids=eos)


def gguf_plan(config: DecoderConfig | MiniConfig, architecture: str) -> Plan:
    """The plan of a GGUF file."""
    plan = {EMBEDDING: Piece("token_embd.weight")}
    for n in range(config.blocks):
        ours, theirs = f"blocks.{n}", f"blk.{n}"
        if isinstance(config, DecoderConfig):
            plan |= _gpt2_block(ours, theirs)
        else:
            turned = {"attention.query": config.heads, "attention.key": config.kv_heads}
            heads = turned.get if architecture in INTERLEAVED else None
            plan |= block_plan(config, ours, theirs, LLAMA, heads)
    plan["final_norm.scale"] = Piece("output_norm.weight")
    if isinstance(config, DecoderConfig):
        plan["final_norm.bias"] = Piece("output_norm.bias")
        plan["position_embedding.weight"] = Piece("position_embd.weight")
    return plan if config.tied_head else plan | {HEAD: Piece("output.weight")}


def _gpt2_block(ours: str, theirs: str) -> Plan:
    plan: Plan = {}
    for third, name in enumerate(("query", "key", "value")):
        for part in ("weight", "bias"):
            plan[f"{ours}.attention.{name}.{part}"] = Piece(f"{theirs}.attn_qkv.{part}", third=third)
    for name, stored in GPT2.items():
        plan[f"{ours}.{name}.{'scale' if name.endswith('norm') else 'weight'}"] = Piece(f"{theirs}.{stored}.weight")
        plan[f"{ours}.{name}.bias"] = Piece(f"{theirs}.{stored}.bias")
    return plan


def _gpt2(facts: Facts, source: TensorSource, names: frozenset[str]) -> DecoderConfig:
    width, heads = facts.size("embedding_length"), facts.size("attention.head_count")
    _require_plain_heads(facts, heads)
    return DecoderConfig(
        vocabulary=_rows(source),
        context=facts.size("context_length"),
        width=width,
        heads=heads,
        blocks=facts.size("block_count"),
        feed_forward=facts.size("feed_forward_length"),
        gelu="tanh",
        eps=_short(facts.number("attention.layer_norm_epsilon")),
        tied_head="output.weight" not in names,
        head_bias=False,
    )


def _llama(facts: Facts, source: TensorSource, names: frozenset[str], architecture: str) -> MiniConfig:
    width, heads, context = (
        facts.size(f"{key}") for key in ("embedding_length", "attention.head_count", "context_length")
    )
    head_size = facts.size("attention.key_length", width // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if facts.size(key, head_size) != head_size:
            raise facts.unsupported(key, f"wanted the head size, {head_size}")
    theta = require_theta(_short(facts.number("rope.freq_base", 10_000.0)), facts.where)
    scaling = _scaling(facts, context)
    if ROPE_FACTORS in names:
        if scaling is not None:
            raise facts.unsupported("rope.scaling.type", f"wanted none beside the tensor {ROPE_FACTORS}")
        scaling = _llama3(source.read(ROPE_FACTORS), head_size, theta, str(source.path))
    bias: AttentionBias = "none"
    if "blk.0.attn_q.bias" in names:
        bias = "all" if "blk.0.attn_output.bias" in names else "qkv"
    return MiniConfig(
        vocabulary=_rows(source),
        context=context,
        width=width,
        heads=heads,
        kv_heads=facts.size("attention.head_count_kv", heads),
        blocks=facts.size("block_count"),
        feed_forward=facts.size("feed_forward_length"),
        rope_theta=theta,
        rope_scaling=scaling,
        eps=_short(facts.number("attention.layer_norm_rms_epsilon")),
        tied_head="output.weight" not in names,
        head_size=head_size,
        attention_bias=bias,
        query_key_norm=architecture == "qwen3",
    )


def _rows(source: TensorSource) -> int:
    """The vocabulary: what the embedding has rows."""
    shape = source.shape("token_embd.weight")
    if len(shape) != 2:
        raise CheckpointError(f"{source.path}: 'token_embd.weight' has shape {shape}; wanted (vocabulary, width)")
    return shape[0]


def _require_plain_heads(facts: Facts, heads: int) -> None:
    for key in ("attention.key_length", "attention.value_length"):
        if facts.has(key):
            raise facts.unsupported(key, "wanted none: heads divide the width")
    if facts.size("attention.head_count_kv", heads) != heads:
        raise facts.unsupported("attention.head_count_kv", f"wanted {heads}")


def _scaling(facts: Facts, context: int) -> RopeScaling | None:
    # A factor without a type is linear to llama.cpp.
    kind = facts.word("rope.scaling.type", "linear" if facts.has("rope.scaling.factor") else "none")
    if kind == "none":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=facts.number("rope.scaling.factor"))
    if kind == "yarn":
        original = facts.size("rope.scaling.original_context_length", context)
        return RopeScaling(kind="yarn", factor=facts.number("rope.scaling.factor"), original_context=original)
    raise facts.unsupported("rope.scaling.type", "wanted none, linear or yarn")


def _llama3(divisors: Host, head_size: int, theta: float, where: str) -> RopeScaling:
    """The scaling that divides each frequency by one of `divisors` (d/2,)."""
    error = Unsupported(
        f"{where}: {ROPE_FACTORS} is not what the scaling of Llama 3 gives for any factor; wanted that, or no such "
        f"tensor"
    )
    factor = float(divisors.max()) if divisors.size else 0.0
    if divisors.shape != (head_size // 2,) or not 1 <= factor < 2**20:
        raise error
    made = RopeScaling(kind="llama3", factor=factor, original_context=LLAMA3_CONTEXT, low=1.0, high=4.0)
    wanted = frequencies(head_size, theta, None) / frequencies(head_size, theta, made)
    if not np.allclose(divisors, wanted, rtol=1e-5, atol=0.0):
        raise error
    return made


def _short(number: float) -> float:
    """The shortest number that float32 rounds to the same: files have these as float32, and 1e-5 was meant."""
    return float(str(np.float32(number)))
