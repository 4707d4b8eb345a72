"""Any configuration: what is saved is read by transformers, and what either reads of a config.json is one function.

Logits agree within float32's rounding over two small blocks: 2e-4 of the largest, where the most seen was 1e-5.
"""

from __future__ import annotations

import json
import random
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.models import DecoderConfig, LanguageModel, MiniConfig, build_model, load_pretrained, save_pretrained
from turret.nn import RopeScaling
from turret.nn.rope_scaling import ScalingKind
from turret.registry import use_backend
from turret.spi import GeluForm, Host, TurretError, Unsupported
from turret.tensor import no_grad, tensor

pytestmark = pytest.mark.slow
CONTEXT, VOCABULARY = 48, 61
ABSENT: Any = object()
NO_MODEL = (ValueError, TypeError, KeyError, RuntimeError, StrictDataclassError)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "eos_token_id": 7,
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": CONTEXT, "eos_token_id": 7}
LLAMA_EDITS: dict[str, list[Any]] = {
    "rms_norm_eps": [ABSENT, 1e-5, 0.5],
    "num_key_value_heads": [None, 4, 1],
    "head_dim": [ABSENT, None, 16],
    "tie_word_embeddings": [ABSENT, True, False],
    "rope_theta": [ABSENT, 10000, 50.0, 1e6],
    "rope_scaling": [
        None,
        {"type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "default", "rope_theta": 77.0},
        {"type": "linear", "rope_type": "yarn", "factor": 2.0},
        YARN,
        YARN | {"attention_factor": 0.7},
        YARN | {"truncate": False},
        LLAMA3,
        LLAMA3 | {"original_max_position_embeddings": 24},
    ],
    "rope_parameters": [ABSENT, None, {"rope_theta": 99.0}, {"rope_type": "linear", "factor": 2.0}],
    "original_max_position_embeddings": [ABSENT, 12, 24],
    "partial_rotary_factor": [ABSENT, 1.0, 0.5],
    "attention_bias": [ABSENT, True, False],
    "mlp_bias": [ABSENT, False, True],
    "sliding_window": [ABSENT, None, 8, CONTEXT],
    "use_sliding_window": [ABSENT, False, True],
    "max_window_layers": [ABSENT, 0, 28],
    "layer_types": [ABSENT, ["full_attention"] * 2, ["full_attention", "sliding_attention"]],
    "pretraining_tp": [1, 2],
    "hidden_act": [ABSENT, "gelu", "swish"],
    "use_cache": [False],
    "dtype": ["float16"],
}
GPT2_EDITS: dict[str, list[Any]] = {
    "activation_function": [ABSENT, "gelu", "gelu_pytorch_tanh", "quick_gelu"],
    "n_inner": [ABSENT, None, 40],
    "layer_norm_epsilon": [ABSENT, 1e-3],
    "scale_attn_weights": [True, False],
    "scale_attn_by_inverse_layer_idx": [False, True],
    "reorder_and_upcast_attn": [True],
    "tie_word_embeddings": [True, False],
    "n_ctx": [24],
    "hidden_size": [32],
    "num_attention_heads": [2, 4],
    "num_hidden_layers": [1, 2],
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Transformers warns of its own affairs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def relative_difference(got: Host, wanted: Host) -> float:
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def our_logits(model: LanguageModel, ids: Host) -> Host:
    with no_grad():
        return model(tensor(ids, backend=model.parameters()[0].backend)).numpy()


def their_logits(model: Any, ids: Host) -> Host:
    import torch

    with torch.no_grad():
        return np.asarray(model.eval()(torch.from_numpy(ids).long()).logits.numpy())


def edited(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    kind = draw.choice(["llama", "mistral", "qwen2", "qwen3", "gpt2"])
    values = dict(GPT2 if kind == "gpt2" else SIZES | {"head_dim": 8, "sliding_window": None}) | {"model_type": kind}
    edits = GPT2_EDITS if kind == "gpt2" else LLAMA_EDITS
    for key in draw.sample(list(edits), draw.randint(1, 4)):
        if (value := draw.choice(edits[key])) is ABSENT:
            values.pop(key, None)
        else:
            values[key] = value
    return values


def their_checkpoint(folder: Path, values: dict[str, Any], seed: int) -> Any:
    """The random model that transformers makes of a config.json, saved beside it."""
    import torch
    import transformers
    from safetensors.torch import save_file

    (folder / "config.json").write_text(json.dumps(values))
    config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    state = {name: value.contiguous().clone() for name, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.mark.parametrize("part", range(3))
def test_a_config_is_the_function_that_transformers_takes_it_for_or_refused(part: int, tmp_path: Path) -> None:
    agreed = 0
    for seed in range(40 * part, 40 * part + 40):
        values, folder = edited(seed), tmp_path / str(seed)
        folder.mkdir()
        try:
            ids = np.random.default_rng(seed).integers(0, VOCABULARY, (1, CONTEXT), dtype=np.int32)
            wanted = their_logits(their_checkpoint(folder, values, seed), ids)
        except NO_MODEL:  # of theirs, which ours cannot differ from
            continue
        try:
            ours = load_pretrained(folder, backend="cpu").model
        except TurretError:
            continue
        assert relative_difference(our_logits(ours, ids), wanted) < 2e-4, values
        agreed += 1
    assert agreed >= 10


@st.composite
def configurations(draw: st.DrawFn) -> DecoderConfig | MiniConfig:
    sizes = {"vocabulary": draw(st.integers(2, 40)), "context": draw(st.integers(1, 20))}
    sizes |= {"blocks": draw(st.integers(1, 2)), "feed_forward": draw(st.integers(1, 9))}
    eps, tied = draw(st.sampled_from([1e-5, 1e-3, 0.3, 1])), draw(st.booleans())
    if draw(st.booleans()):
        heads = draw(st.integers(1, 3))
        width, gelu = heads * draw(st.integers(1, 6)), draw(st.sampled_from(get_args(GeluForm)))
        return DecoderConfig(**sizes, width=width, heads=heads, gelu=gelu, eps=eps, tied_head=tied, head_bias=False)
    kv_heads = draw(st.integers(1, 2))
    heads, head_size = kv_heads * draw(st.integers(1, 3)), draw(st.sampled_from([None, 2, 6, 10]))
    kind = draw(st.sampled_from([None, *get_args(ScalingKind)]))
    scaling = None
    if kind is not None:
        scaling = RopeScaling(
            kind=kind,
            factor=draw(st.sampled_from([1, 2, 3.5, 8.0])),
            original_context=draw(st.sampled_from([1, 4, 100])),
            attention=draw(st.sampled_from([None, 0.5, 2])) if kind == "yarn" else None,
        )
    return MiniConfig(
        **sizes,
        width=heads * draw(st.sampled_from([2, 4])) if head_size is None else draw(st.integers(1, 13)),
        heads=heads,
        kv_heads=kv_heads,
        rope_theta=draw(st.sampled_from([10_000, 1.5, 1e6])),
        rope_scaling=scaling,
        eps=eps,
        tied_head=tied,
        head_size=head_size,
        attention_bias=draw(st.sampled_from(["none", "qkv", "all"])),
        query_key_norm=draw(st.booleans()),
    )


@settings(max_examples=60, deadline=None)
@given(config=configurations(), seed=st.integers(0, 2**32 - 1))
def test_what_is_saved_comes_back_and_is_the_same_to_transformers(
    config: DecoderConfig | MiniConfig, seed: int
) -> None:
    import torch
    import transformers

    numbers = np.random.default_rng(seed)
    with use_backend("cpu"):
        model = build_model(config)
    model.load_state_dict({n: numbers.normal(size=x.shape).astype(np.float32) for n, x in model.state_dict().items()})
    ids = numbers.integers(0, config.vocabulary, (1, config.context), dtype=np.int32)
    wanted = our_logits(model, ids)
    with tempfile.TemporaryDirectory() as place:
        own = save_pretrained(model, Path(place, "own"), form="safetensors")
        assert our_logits(load_pretrained(own, backend="cpu").model, ids).tobytes() == wanted.tobytes()
        try:
            folder = save_pretrained(model, Path(place, "hf"))
        except Unsupported as error:
            assert "fits no Hugging Face layout" in str(error)
            return
        again = load_pretrained(folder, backend="cpu").model.state_dict()
        assert {n: x.tobytes() for n, x in again.items()} == {n: x.tobytes() for n, x in model.state_dict().items()}
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        )
        assert relative_difference(their_logits(theirs, ids), wanted) < 2e-4
