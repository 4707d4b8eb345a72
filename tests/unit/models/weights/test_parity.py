"""Checkpoints of transformers, tiny and random, give the logits and the greedy texts that transformers gives.

The tolerance is that of float32: both programs round every product, in different orders. Over two blocks of width 64
the logits, up to 8 large, were at most 1.6e-5 apart; 5e-5 leaves room for other machines.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turret.generate import SamplingConfig, generate_ids
from turret.models import load_pretrained, save_pretrained
from turret.nn import PackedLinear
from turret.spi import Host
from turret.tensor import no_grad, tensor

pytestmark = pytest.mark.slow
TOLERANCE = 5e-5
GREEDY = SamplingConfig(temperature=0.0)
PROMPT = [5, 17, 3, 90, 41, 8]

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 7,
}
GPT2: dict[str, Any] = {"vocab_size": 97, "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64}
GPT2 |= {"initializer_range": 0.2, "bos_token_id": None, "eos_token_id": 7}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32, "rope_theta": 500.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2 untied, exact gelu": ("GPT2", GPT2 | {"tie_word_embeddings": False, "activation_function": "gelu"}),
    "gpt2 with its own inner size": ("GPT2", GPT2 | {"n_inner": 80, "layer_norm_epsilon": 1e-3}),
    "llama": ("Llama", SIZES),
    "llama tied": ("Llama", SIZES | {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "llama with biases": ("Llama", SIZES | {"attention_bias": True}),
    "llama, one key-value head a head": ("Llama", SIZES | {"num_key_value_heads": 4}),
    "llama with its own head size": ("Llama", SIZES | {"head_dim": 32}),
    "llama linear": ("Llama", SIZES | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "llama dynamic": ("Llama", SIZES | {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}}),
    "llama3": ("Llama", SIZES | {"rope_parameters": LLAMA3}),
    "llama yarn": ("Llama", SIZES | {"rope_parameters": YARN}),
    "mistral": ("Mistral", SIZES | {"sliding_window": None, "head_dim": 24}),
    "mistral with a window that never closes": ("Mistral", SIZES | {"sliding_window": 64}),
    "qwen2": ("Qwen2", SIZES | {"tie_word_embeddings": True}),
    "qwen2 yarn": ("Qwen2", SIZES | {"rope_parameters": YARN | {"attention_factor": 1.3, "beta_fast": 16.0}}),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 32}),
    "qwen3 tied with biases": ("Qwen3", SIZES | {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
}


@functools.cache
def libraries() -> tuple[Any, Any]:
    """torch and transformers, which take seconds to import: not where tests are only collected."""
    import torch
    import transformers

    return torch, transformers


def theirs(kind: str, settings: dict[str, Any], *, seed: int = 0) -> Any:
    """A random model of transformers, with norms and biases that are not what they begin as."""
    torch, transformers = libraries()
    config = getattr(transformers, f"{kind}Config")(**settings)
    torch.manual_seed(seed)
    model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


def their_logits(model: Any, ids: list[int]) -> Host:
    torch, _ = libraries()
    with torch.no_grad():
        return np.asarray(model(torch.tensor([ids])).logits.float().numpy()[0])


def our_logits(model: Any, ids: list[int]) -> Host:
    with no_grad():
        return model(tensor(np.array([ids], np.int32), backend=model.parameters()[0].backend)).numpy()[0]


def their_text(model: Any, count: int) -> list[int]:
    torch, _ = libraries()
    made = model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT)),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [int(each) for each in made[0, len(PROMPT) :]]


def our_text(model: Any, count: int) -> list[int]:
    return list(itertools.islice(generate_ids(model, PROMPT, GREEDY), count))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Transformers warns of its own affairs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("case", CASES)
def test_logits_and_greedy_text_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    model = theirs(*CASES[case])
    model.save_pretrained(tmp_path)
    loaded = load_pretrained(tmp_path, backend="cpu")
    assert loaded.form == "hf" and loaded.architecture == model.config.model_type
    assert loaded.eos_ids == (7,) and loaded.tokenizer is None and loaded.allowed == 97 and loaded.prefix == ()
    ids = [int(each) for each in np.random.default_rng(1).integers(0, 97, 60)]
    wanted = their_logits(model, ids)
    assert float(np.abs(wanted).max()) > 0.3
    np.testing.assert_allclose(our_logits(loaded.model, ids), wanted, rtol=TOLERANCE, atol=TOLERANCE)
    assert our_text(loaded.model, 20) == their_text(model, 20)


@pytest.mark.parametrize("case", CASES)
def test_transformers_loads_what_was_saved(case: str, tmp_path: Path) -> None:
    model = theirs(*CASES[case])
    model.save_pretrained(tmp_path / "theirs")
    loaded = load_pretrained(tmp_path / "theirs", backend="cpu")
    save_pretrained(loaded, tmp_path / "ours")
    torch, transformers = libraries()
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    assert type(again) is type(model)
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    np.testing.assert_array_equal(their_logits(again, PROMPT), their_logits(model, PROMPT))
    assert again.generation_config.eos_token_id == 7


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["GPT2", "Qwen3"])
def test_half_precision_files_are_widened_exactly(kind: str, dtype: str, tmp_path: Path) -> None:
    torch, transformers = libraries()
    model = theirs(kind, GPT2 if kind == "GPT2" else SIZES | {"head_dim": 32}).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    wide = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    loaded = load_pretrained(tmp_path, backend="cpu").model
    ids = PROMPT * 4
    np.testing.assert_allclose(our_logits(loaded, ids), their_logits(wide, ids), rtol=TOLERANCE, atol=TOLERANCE)


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    model = theirs("Llama", SIZES)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    loaded = load_pretrained(tmp_path, backend="cpu").model
    np.testing.assert_allclose(our_logits(loaded, PROMPT), their_logits(model, PROMPT), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["GPT2", "Llama"])
def test_a_body_saved_without_the_prefix_is_found(kind: str, tmp_path: Path) -> None:
    settings = GPT2 if kind == "GPT2" else SIZES | {"tie_word_embeddings": True}
    model = theirs(kind, settings)
    (model.transformer if kind == "GPT2" else model.model).save_pretrained(tmp_path)
    loaded = load_pretrained(tmp_path, backend="cpu").model
    np.testing.assert_allclose(our_logits(loaded, PROMPT), their_logits(model, PROMPT), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("spec", ["metal:cpu", "tpu:cpu"])
def test_other_backends_load_the_same_bits(spec: str, tmp_path: Path) -> None:
    model = theirs("Qwen3", SIZES | {"head_dim": 32})
    model.save_pretrained(tmp_path)
    ours, other = load_pretrained(tmp_path, backend="cpu").model, load_pretrained(tmp_path, backend=spec).model
    for name, value in ours.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], value)
    np.testing.assert_allclose(our_logits(other, PROMPT), their_logits(model, PROMPT), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["GPT2", "Llama"])
def test_packed_while_loading_is_packed_after_loading(kind: str, tmp_path: Path) -> None:
    theirs(kind, GPT2 if kind == "GPT2" else SIZES | {"attention_bias": True}).save_pretrained(tmp_path)
    whole = load_pretrained(tmp_path, backend="cpu").model
    packed = load_pretrained(tmp_path, backend="cpu", quantize="nf4", block=32, scales="float32").model
    layers = {name: each for name, each in packed.named_modules() if isinstance(each, PackedLinear)}
    assert len(layers) == 2 * (6 if kind == "GPT2" else 7) and "language_model_head" not in layers
    plain = dict(whole.named_modules())
    for name, layer in layers.items():
        wanted = PackedLinear.of(plain[name], block=32, scales="float32")  # type: ignore[arg-type]  # they are Linear
        for part, array in wanted.weight.arrays().items():
            np.testing.assert_array_equal(layer.weight.arrays()[part], array)
        if layer.bias is not None:
            np.testing.assert_array_equal(layer.bias.numpy(), plain[name].bias.numpy())
    assert np.isfinite(our_logits(packed, PROMPT)).all()
