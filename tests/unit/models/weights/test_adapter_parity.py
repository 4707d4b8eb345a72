"""Adapter files both ways with PEFT: the same logits, and the same gradients of a and b."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turret.models import Decoder, DecoderConfig, LanguageModel, Mini, MiniConfig
from turret.models.weights.adapter_files import load_adapter, save_adapter
from turret.models.weights.names import hugging_face
from turret.nn import AdapterSet, attach_adapters, pack_linears
from turret.registry import use_backend
from turret.spi import Host
from turret.tensor import backward, ops, tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of three large libraries, about themselves
    import peft
    import torch
    import transformers

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
IDS = np.random.default_rng(3).integers(0, 41, (2, 13)).astype(np.int32)
Pairs = tuple[Any, LanguageModel]


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    torch.manual_seed(11)
    with use_backend("cpu"):
        yield


def llama() -> Pairs:
    theirs: Any = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=41,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
            rms_norm_eps=1e-5,
            initializer_range=0.2,
        )
    )
    config = MiniConfig(vocabulary=41, context=32, width=32, feed_forward=48, tied_head=False)
    return theirs.eval(), filled(Mini(config), theirs)


def gpt2() -> Pairs:
    theirs: Any = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=41,
            n_positions=32,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_inner=48,
            initializer_range=0.2,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    config = DecoderConfig(
        vocabulary=41, context=32, width=32, feed_forward=48, gelu="tanh", tied_head=True, head_bias=False
    )
    return theirs.eval(), filled(Decoder(config), theirs)


FAMILIES = {"llama": llama, "gpt2": gpt2}


def filled(ours: Any, theirs: Any) -> Any:
    state = {name: value.numpy() for name, value in theirs.state_dict().items()}
    plan = hugging_face(ours.config)
    ours.load_state_dict({name: np.ascontiguousarray(piece.taken(state[piece.stored])) for name, piece in plan.items()})
    return ours


def logits(ours: LanguageModel) -> Host:
    return ours(tensor(IDS)).numpy()


def their_logits(theirs: Any) -> Host:
    with torch.no_grad():
        return np.asarray(theirs(torch.tensor(IDS, dtype=torch.long)).logits.numpy())


def drawn(adapters: AdapterSet, seed: int = 5) -> AdapterSet:
    """b is not 0."""
    random = np.random.default_rng(seed)
    adapters.load_state_dict(
        {name: random.normal(size=x.shape).astype(np.float32) / 4 for name, x in adapters.state_dict().items()}
    )
    return adapters


def adapted(theirs: Any, **options: Any) -> Any:
    """A model of PEFT with a random b."""
    config = peft.LoraConfig(task_type="CAUSAL_LM", **options)
    made = peft.get_peft_model(theirs, config).eval()
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return made


OF_PEFT = {
    "llama-query-value": (llama, dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "llama-all": (llama, dict(r=3, lora_alpha=16, target_modules="all-linear", lora_dropout=0.1)),
    "llama-patterns": (
        llama,
        dict(
            r=4,
            lora_alpha=8,
            target_modules=["q_proj", "down_proj", "lm_head"],
            rank_pattern={"down_proj": 2, "model.layers.1.self_attn.q_proj": 7},
            alpha_pattern={"q_proj": 3, "lm_head": 5},
        ),
    ),
    "llama-one-block": (llama, dict(r=40, lora_alpha=8, target_modules=["model.layers.1.mlp.gate_proj"])),
    "gpt2-all": (gpt2, dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)),
    "gpt2-attention": (gpt2, dict(r=5, lora_alpha=3, target_modules=["attn.c_attn"], fan_in_fan_out=True)),
}


@pytest.mark.parametrize("case", OF_PEFT)
def test_an_adapter_of_peft_gives_the_same_logits_and_goes_back(case: str, tmp_path: Path) -> None:
    family, options = OF_PEFT[case]
    theirs, ours = family()
    before = logits(ours)
    np.testing.assert_allclose(before, their_logits(theirs), rtol=1e-4, atol=1e-4)
    base = copy.deepcopy(theirs)
    wanted_model = adapted(theirs, **options)
    wanted_model.save_pretrained(tmp_path / "peft", save_embedding_layers=False)
    wanted = their_logits(wanted_model)
    assert np.abs(wanted - before).max() > 0.5  # else the test says nothing
    adapters = load_adapter(tmp_path / "peft", ours)
    np.testing.assert_allclose(logits(ours), wanted, rtol=1e-4, atol=1e-4)
    save_adapter(tmp_path / "ours", ours, adapters)
    again = peft.PeftModel.from_pretrained(base, tmp_path / "ours").eval()
    np.testing.assert_allclose(their_logits(again), wanted, rtol=1e-4, atol=1e-4)
    state = adapters.state_dict()
    adapters.detach()
    assert logits(ours).tobytes() == before.tobytes()
    back = load_adapter(tmp_path / "ours", ours)
    assert {n: x.tobytes() for n, x in back.state_dict().items()} == {n: x.tobytes() for n, x in state.items()}
    assert {n: (x.rank, x.alpha) for n, x in back.items()} == {n: (x.rank, x.alpha) for n, x in adapters.items()}


TARGETS = {
    "query-value": ["query", "value"],
    "key": ["key"],
    "all": ["*"],
    "some": ["blocks.1.attention.query", "blocks.0.attention.*", "blocks.1.feed_forward.*"],
}


@pytest.mark.parametrize("targets", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_an_adapter_of_ours_is_one_of_peft(family: Callable[[], Pairs], targets: list[str], tmp_path: Path) -> None:
    theirs, ours = family()
    adapters = drawn(attach_adapters(ours, rank=3, alpha=7, targets=targets, dropout=0.25))
    save_adapter(tmp_path, ours, adapters, base="some/base")
    loaded = peft.PeftModel.from_pretrained(theirs, tmp_path).eval()
    wanted = logits(ours)
    np.testing.assert_allclose(their_logits(loaded), wanted, rtol=1e-4, atol=1e-4)
    config = loaded.peft_config["default"]
    assert (config.lora_dropout, config.bias, config.base_model_name_or_path) == (0.25, "none", "some/base")
    state = adapters.state_dict()
    adapters.detach()
    back = load_adapter(tmp_path, ours)
    assert {n: x.tobytes() for n, x in back.state_dict().items()} == {n: x.tobytes() for n, x in state.items()}
    assert list(back) == list(adapters)
    assert {(x.rank, x.alpha, x.dropout) for x in back.values()} == {(3, 7.0, 0.25)}
    assert logits(ours).tobytes() == wanted.tobytes()


def test_peft_tells_of_nothing_that_it_misses(tmp_path: Path) -> None:
    theirs, ours = llama()
    save_adapter(tmp_path, ours, attach_adapters(ours, rank=2, alpha=2))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        peft.PeftModel.from_pretrained(theirs, tmp_path)
    assert [str(each.message) for each in told if "key" in str(each.message)] == []
    facts = json.loads((tmp_path / "adapter_config.json").read_text())
    assert facts["target_modules"] == ["q_proj", "v_proj"]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_gradients_are_those_of_peft(family: Callable[[], Pairs], tmp_path: Path) -> None:
    theirs, ours = family()
    everything = dict(target_modules="all-linear") if family is llama else dict(target_modules=["c_attn", "c_fc"])
    model = adapted(theirs, r=4, lora_alpha=8, **everything)
    model.save_pretrained(tmp_path)
    adapters = load_adapter(tmp_path, ours)
    labels = np.roll(IDS, -1, axis=1)
    out = ours(tensor(IDS))
    found = backward(ops.cross_entropy(out.reshape(-1, 41), tensor(labels.reshape(-1))))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora_" in name
    logits = model(torch.tensor(IDS, dtype=torch.long)).logits.reshape(-1, 41)
    torch.nn.functional.cross_entropy(logits, torch.tensor(labels.reshape(-1), dtype=torch.long)).backward()
    grads = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    plan = hugging_face(ours.config)  # type: ignore[attr-defined]
    compared = 0
    for name, adapter in adapters.items():
        piece = plan[f"{name}.weight"]
        stem = f"base_model.model.{piece.stored.removesuffix('.weight')}"
        b = grads[f"{stem}.lora_B.default.weight"]
        if piece.third is None:
            np.testing.assert_allclose(
                found[adapter.a].numpy(), grads[f"{stem}.lora_A.default.weight"], rtol=1e-3, atol=1e-6
            )
        else:
            b = np.split(b, 3)[piece.third]
        np.testing.assert_allclose(found[adapter.b].numpy(), b, rtol=1e-3, atol=1e-6)
        compared += 1
    assert compared == len(adapters) > 3
    base = {id(p) for _, p in ours.named_parameters(extra=False)}
    assert not any(id(p) in base for p in adapters.parameters())


def test_a_packed_base_adds_the_same(tmp_path: Path) -> None:
    """QLoRA: the adapter of PEFT on the dequantized weights is ours on the packed ones."""
    theirs, ours = llama()
    pack_linears(ours)
    state = theirs.state_dict()
    for name, module in ours.named_modules():
        if type(module).__name__ == "PackedLinear":
            state[hugging_face(ours.config)[f"{name}.weight"].stored] = torch.tensor(module.weight.unpack().numpy())  # type: ignore[attr-defined]
    theirs.load_state_dict(state)
    adapters = drawn(attach_adapters(ours, rank=3, alpha=6, targets=["*"]))
    save_adapter(tmp_path, ours, adapters)
    loaded = peft.PeftModel.from_pretrained(theirs, tmp_path).eval()
    np.testing.assert_allclose(logits(ours), their_logits(loaded), rtol=1e-4, atol=1e-4)
    adapters.merge()
    np.testing.assert_allclose(logits(ours), their_logits(loaded.merge_and_unload()), rtol=1e-4, atol=1e-4)
