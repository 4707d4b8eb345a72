"""Where each parameter of a model lies in a file: its name there, and how the tensor lies in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from turret.models.decoder import DecoderConfig
from turret.models.mini import MiniConfig
from turret.spi import Host, Shape

EMBEDDING, HEAD = "token_embedding.weight", "language_model_head.weight"


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor of a file, or a third of one, that is a parameter.

    transposed: stored as (inputs, outputs). third: 0, 1 or 2 of a tensor that holds queries, keys and values along its
    outputs. heads: rows of every head are stored as the pairs (i, i + d/2), one after the other.
    """

    stored: str
    transposed: bool = False
    third: int | None = None
    heads: int | None = None

    def stored_shape(self, shape: Shape) -> Shape:
        """The shape in the file of a parameter of this shape."""
        outputs = shape[0] if self.third is None else 3 * shape[0]
        return (*shape[1:], outputs) if self.transposed else (outputs, *shape[1:])

    def taken(self, array: Host) -> Host:
        """The parameter in a tensor of the file: a view wherever that is possible."""
        if self.transposed:
            array = array.T
        if self.third is not None:
            rows = len(array) // 3
            array = array[self.third * rows : (self.third + 1) * rows]
        if self.heads is not None:
            pairs = array.reshape(self.heads, -1, 2, *array.shape[1:])
            array = pairs.swapaxes(1, 2).reshape(array.shape)
        return array


Plan = dict[str, Piece]
"""The piece of each parameter, by its name in turret."""


def join(parts: Iterable[tuple[Piece, Host]]) -> Host:
    """The tensor of a file from the parameters in it, for layouts without interleaved heads: C-contiguous."""
    pieces = sorted(parts, key=lambda part: part[0].third or 0)
    array = pieces[0][1] if len(pieces) == 1 else np.concatenate([host for _, host in pieces])
    return np.ascontiguousarray(array.T if pieces[0][0].transposed else array)


def hugging_face(config: DecoderConfig | MiniConfig) -> Plan:
    """The plan of a checkpoint of transformers, by the names that it writes."""
    return _gpt2(config) if isinstance(config, DecoderConfig) else _llama(config)


def base_prefix(config: DecoderConfig | MiniConfig) -> str:
    """What the names of the body begin with where the head was saved beside it, and do not where it was not."""
    return "transformer." if isinstance(config, DecoderConfig) else "model."


def is_buffer(config: DecoderConfig | MiniConfig, name: str) -> bool:
    """Whether a tensor is a constant that old versions of transformers stored: masks and rotary frequencies."""
    name = name.removeprefix(base_prefix(config))
    pattern = r"h\.\d{1,6}\.attn\.(masked_)?bias" if isinstance(config, DecoderConfig) else ROTARY
    return re.fullmatch(pattern, name) is not None


ROTARY = r"(layers\.\d{1,6}\.self_attn\.)?rotary_emb\.inv_freq"


def _gpt2(config: DecoderConfig) -> Plan:
    plan = {EMBEDDING: Piece("transformer.wte.weight"), "position_embedding.weight": Piece("transformer.wpe.weight")}
    for n in range(config.blocks):
        ours, theirs = f"blocks.{n}", f"transformer.h.{n}"
        plan |= _affine(f"{ours}.attention_norm", f"{theirs}.ln_1", "scale")
        for third, name in enumerate(("query", "key", "value")):
            stored = f"{theirs}.attn.c_attn"
            plan[f"{ours}.attention.{name}.weight"] = Piece(f"{stored}.weight", transposed=True, third=third)
            plan[f"{ours}.attention.{name}.bias"] = Piece(f"{stored}.bias", third=third)
        plan |= _affine(f"{ours}.attention.output", f"{theirs}.attn.c_proj", transposed=True)
        plan |= _affine(f"{ours}.feed_forward_norm", f"{theirs}.ln_2", "scale")
        plan |= _affine(f"{ours}.feed_forward.expand", f"{theirs}.mlp.c_fc", transposed=True)
        plan |= _affine(f"{ours}.feed_forward.project", f"{theirs}.mlp.c_proj", transposed=True)
    plan |= _affine("final_norm", "transformer.ln_f", "scale")
    return plan | _head(config.tied_head, "lm_head.weight")


def _affine(ours: str, theirs: str, weight: str = "weight", *, transposed: bool = False) -> Plan:
    return {
        f"{ours}.{weight}": Piece(f"{theirs}.weight", transposed=transposed),
        f"{ours}.bias": Piece(f"{theirs}.bias"),
    }


def _head(tied: bool, stored: str) -> Plan:
    return {} if tied else {HEAD: Piece(stored)}


LLAMA = {
    "attention_norm.scale": "input_layernorm.weight",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm.scale": "self_attn.q_norm.weight",
    "attention.key_norm.scale": "self_attn.k_norm.weight",
    "feed_forward_norm.scale": "post_attention_layernorm.weight",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}


HEAD_NORMS = ("attention.query_norm.scale", "attention.key_norm.scale")


def _llama(config: MiniConfig) -> Plan:
    plan = {EMBEDDING: Piece("model.embed_tokens.weight")}
    for n in range(config.blocks):
        plan |= block_plan(config, f"blocks.{n}", f"model.layers.{n}", LLAMA)
    plan["final_norm.scale"] = Piece("model.norm.weight")
    return plan | _head(config.tied_head, "lm_head.weight")


def block_plan(
    config: MiniConfig, ours: str, theirs: str, names: dict[str, str], turned: Callable[[str], int | None] | None = None
) -> Plan:
    """The plan of one block of the second family. names: of ours in the block to theirs; turned: heads of a layer."""
    biased = {"none": 0, "qkv": 3, "all": 4}[config.attention_bias]
    with_bias = ("attention.query", "attention.key", "attention.value", "attention.output")[:biased]
    plan: Plan = {}
    for name, stored in names.items():
        if name in HEAD_NORMS and not config.query_key_norm:
            continue
        if name.endswith(".scale"):
            plan[f"{ours}.{name}"] = Piece(f"{theirs}.{stored}")
            continue
        heads = None if turned is None else turned(name)
        plan[f"{ours}.{name}.weight"] = Piece(f"{theirs}.{stored}.weight", heads=heads)
        if name in with_bias:
            plan[f"{ours}.{name}.bias"] = Piece(f"{theirs}.{stored}.bias", heads=heads)
    return plan
