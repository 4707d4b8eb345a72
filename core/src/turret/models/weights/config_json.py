"""config.json of the Hugging Face layouts as a configuration of turret, and the other way round.

Whatever would change the function and is not there in turret is refused by key and value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turret.models.decoder import DecoderConfig
from turret.models.mini import AttentionBias, MiniConfig
from turret.spi import CheckpointError, ConfigError, GeluForm, Unsupported

from .facts import Facts
from .rope_json import read_rope, write_rope

ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""The layouts by `model_type`, and the class that each has in transformers."""

GELU: dict[str, GeluForm] = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "erf"}

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "partial_rotary_factor": (1,),
    "rotary_pct": (1,),
    "rope_interleaved": (False,),
    "no_rope_layers": (),
    "mlp_bias": (False,),
    "use_qk_norm": (False,),
    "qk_norm": (False,),
    "clip_qkv": (),
    "alibi": (False,),
    "parallel_attn": (False,),
    "use_parallel_residual": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "attention_multiplier": (),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "num_local_experts": (),
    "num_experts": (),
    "n_routed_experts": (),
    "moe_intermediate_size": (),
    "pruned_heads": ({},),
}
"""Keys that name another function, with the values at which it is the one that turret computes."""


ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
"""What transformers takes for a key of gpt2 as well."""

MISTRAL_WINDOW = 4096
"""The window of a mistral whose file has no such key; null means none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a file says about its model. eos_ids: the tokens that end a generation."""

    config: DecoderConfig | MiniConfig
    architecture: str
    eos_ids: tuple[int, ...] = ()
    packed: bool = False
    """Whether linear weights are stored as NF4 by bitsandbytes."""


def read_config(values: Mapping[str, Any], *, where: str = "config.json", used: int | None = None) -> Described:
    """The model of a config.json; `where` names the file in errors.

    used: the positions that will be used, where they are fewer than the model's: a window that does not close within
    them is no window.
    Raises: Unsupported naming the key and value of what turret does not have; CheckpointError for a value that is
    missing, malformed or contradicts another one.
    """
    facts = Facts(values, where)
    architecture = facts.word("model_type")
    if architecture not in ARCHITECTURES:
        raise facts.unsupported("model_type", f"wanted one of {', '.join(ARCHITECTURES)}")
    facts.refuse_unless(NEUTRAL)
    packed = _is_packed(facts)
    if packed and architecture == "gpt2":
        raise facts.unsupported("quantization_config", "wanted none for gpt2: load it as floats with quantize='nf4'")
    try:
        config = _gpt2(facts) if architecture == "gpt2" else _llama(facts, architecture, used)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error
    return Described(config=config, architecture=architecture, eos_ids=facts.ids("eos_token_id"), packed=packed)


def _gpt2(facts: Facts) -> DecoderConfig:
    facts = _without_aliases(facts)
    facts.refuse_unless({"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)})
    word, width = facts.word("activation_function", "gelu_new"), facts.size("n_embd")
    if word not in GELU:
        raise facts.unsupported("activation_function", f"wanted one of {', '.join(GELU)}")
    return DecoderConfig(
        vocabulary=facts.size("vocab_size"),
        context=facts.size("n_positions", facts.size("n_ctx", 1024)),
        width=width,
        heads=facts.size("n_head"),
        blocks=facts.size("n_layer"),
        feed_forward=facts.size("n_inner", 4 * width),
        gelu=GELU[word],
        eps=facts.number("layer_norm_epsilon", 1e-5),
        tied_head=facts.flag("tie_word_embeddings", True),
        head_bias=False,
    )


def _without_aliases(facts: Facts) -> Facts:
    """The facts by gpt2's own keys. Raises: CheckpointError where a key and its alias differ."""
    values = dict(facts.values)
    for alias, key in ALIASES.items():
        if facts.has(alias):
            if facts.has(key) and facts.size(alias) != facts.size(key):
                raise CheckpointError(
                    f"{facts.where}: {alias} is {values[alias]!r:.40} and {key} is {values[key]!r:.40}, which mean the "
                    f"same; wanted one of them"
                )
            values[key] = values[alias]
    return Facts(values, facts.where)


def _llama(facts: Facts, architecture: str, used: int | None) -> MiniConfig:
    if facts.word("hidden_act", "silu") not in ("silu", "swish"):
        raise facts.unsupported("hidden_act", "wanted silu")
    context = facts.size("max_position_embeddings")
    _refuse_windows(facts, architecture, context if used is None else min(context, used))
    theta, scaling = read_rope(facts, context)
    head_size = facts.size("head_dim") if facts.has("head_dim") else None
    if head_size is None and architecture == "qwen3" and "head_dim" not in facts.values:
        head_size = 128  # what its configuration says where the file does not
    heads = facts.size("num_attention_heads")
    return MiniConfig(
        vocabulary=facts.size("vocab_size"),
        context=context,
        width=facts.size("hidden_size"),
        heads=heads,
        kv_heads=facts.size("num_key_value_heads", heads),
        blocks=facts.size("num_hidden_layers"),
        feed_forward=facts.size("intermediate_size"),
        rope_theta=theta,
        rope_scaling=scaling,
        eps=facts.number("rms_norm_eps", 1e-6),
        tied_head=facts.flag("tie_word_embeddings", False),
        head_size=head_size,
        attention_bias=_bias(facts, architecture),
        query_key_norm=architecture == "qwen3",
    )


def _bias(facts: Facts, architecture: str) -> AttentionBias:
    if architecture == "qwen2":
        return "qkv"
    if architecture == "mistral":
        facts.refuse_unless({"attention_bias": (False,)})
        return "none"
    return "all" if facts.flag("attention_bias", False) else "none"


def _refuse_windows(facts: Facts, architecture: str, context: int) -> None:
    """Raises: Unsupported where a query does not see every token before it."""
    absent = "sliding_window" not in facts.values
    if architecture == "mistral":
        # It has no switch: a window that is there counts.
        if (absent or facts.has("sliding_window")) and facts.size("sliding_window", MISTRAL_WINDOW) < context:
            wanted = (
                f"wanted null, or at least the context of {context}; absent it is {MISTRAL_WINDOW}: within the window "
                f"the model is exact, so load it with context={facts.size('sliding_window', MISTRAL_WINDOW)} or less"
            )
            raise facts.unsupported("sliding_window", wanted)
    elif facts.flag("use_sliding_window", False) and (absent or facts.has("sliding_window")):
        raise facts.unsupported("use_sliding_window", "wanted false")
    layers = facts.values.get("layer_types")
    if layers is not None and not (isinstance(layers, list) and all(each == "full_attention" for each in layers)):
        raise facts.unsupported("layer_types", "wanted full_attention in every layer")


def _is_packed(facts: Facts) -> bool:
    """Whether weights are NF4 of bitsandbytes; another quantization is refused."""
    if not facts.has("quantization_config"):
        return False
    how = facts.part("quantization_config")
    method = how.word("quant_method", "bitsandbytes")
    if method != "bitsandbytes":
        raise how.unsupported("quant_method", "wanted bitsandbytes, or a checkpoint of floats")
    if not how.flag("load_in_4bit", how.flag("_load_in_4bit", False)):
        raise how.unsupported("load_in_4bit", "wanted true: only its nf4 values are read")
    if how.word("bnb_4bit_quant_type", "fp4") != "nf4":
        raise how.unsupported("bnb_4bit_quant_type", "wanted nf4")
    return True


def write_config(config: DecoderConfig | MiniConfig, *, architecture: str | None = None) -> dict[str, Any]:
    """The config.json of the layout that has what `config` has; `architecture`: the one to take where it does.

    Raises: Unsupported for a configuration that no layout has.
    """
    values = _written_gpt2(config) if isinstance(config, DecoderConfig) else _written_llama(config, architecture)
    name = ARCHITECTURES[values["model_type"]]
    return {"architectures": [name], **values, "dtype": "float32", "torch_dtype": "float32"}


def _written_gpt2(config: DecoderConfig) -> dict[str, Any]:
    if config.head_bias or config.key_value_heads != config.heads:
        got = "a head with a bias" if config.head_bias else f"{config.key_value_heads} key-value heads"
        raise Unsupported(
            f"a decoder with {got} fits no Hugging Face layout; gpt2 has no head bias and kv_heads = heads: "
            f"save it with form='safetensors'"
        )
    return {
        "model_type": "gpt2",
        "vocab_size": config.vocabulary,
        "n_positions": config.context,
        "n_embd": config.width,
        "n_head": config.heads,
        "n_layer": config.blocks,
        "n_inner": config.feed_forward,
        "activation_function": "gelu_new" if config.gelu == "tanh" else "gelu",
        "layer_norm_epsilon": float(config.eps),
        "tie_word_embeddings": config.tied_head,
        "scale_attn_weights": True,
    }


def _written_llama(config: MiniConfig, wanted: str | None) -> dict[str, Any]:
    fitting = [name for name in ("llama", "mistral", "qwen2", "qwen3") if _has(name, config)]
    if not fitting:
        raise Unsupported(
            f"a mini model with attention_bias {config.attention_bias!r} and query_key_norm {config.query_key_norm} "
            f"fits no Hugging Face layout: save it with form='safetensors'"
        )
    name = wanted if wanted in fitting else fitting[0]
    values = {
        "model_type": name,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "hidden_size": config.width,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.size_of_head,
        "num_hidden_layers": config.blocks,
        "intermediate_size": config.feed_forward,
        "hidden_act": "silu",
        "rms_norm_eps": float(config.eps),
        "tie_word_embeddings": config.tied_head,
        **write_rope(config.rope_theta, config.rope_scaling),
    }
    if name in ("llama", "qwen3"):
        values["attention_bias"] = config.attention_bias == "all"
    if name == "mistral":
        values["sliding_window"] = None
    return values


def _has(name: str, config: MiniConfig) -> bool:
    """Whether a layout has what varies."""
    if name == "qwen3":
        return config.query_key_norm and config.attention_bias != "qkv"
    bias = {"llama": ("none", "all"), "mistral": ("none",), "qwen2": ("qkv",)}[name]
    # Heads of a size of their own are in every layout, but Llama's wants the heads to divide the width all the same.
    whole = name != "llama" or config.width % config.heads == 0
    return not config.query_key_norm and config.attention_bias in bias and whole
