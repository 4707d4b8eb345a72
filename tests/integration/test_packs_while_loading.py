"""A model whose float32 weights this process may not hold loads with its linear weights packed as they come."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from turret.models.weights.tensor_writer import write_tensors

WIDTH, BLOCKS, HIDDEN, VOCABULARY = 1024, 12, 4096, 512
ALLOWED = 460 * 2**20
"""Bytes of private memory; the weights are 805 MB in float32, a tenth of that packed, 130 MB are libraries."""

LOAD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]),) * 2)
from turret.models import load_pretrained
loaded = load_pretrained(sys.argv[1], backend="cpu", quantize=sys.argv[3] or None, tokenizer=False)
print(loaded.model.parameter_count(), sum(t.value.nbytes for t in loaded.model.held_tensors()))
"""


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
    }
    for block in range(BLOCKS):
        at = f"model.layers.{block}."
        found |= {f"{at}self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qkvo"}
        found |= {f"{at}mlp.{name}_proj.weight": (HIDDEN, WIDTH) for name in ("gate", "up")}
        found |= {f"{at}mlp.down_proj.weight": (WIDTH, HIDDEN)}
        found |= {f"{at}{name}_layernorm.weight": (WIDTH,) for name in ("input", "post_attention")}
    return found


def loaded(folder: Path, quantize: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOAD, str(folder), str(ALLOWED), quantize]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of private memory are Linux's")
def test_a_model_too_large_in_float32_loads_packed(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": 16,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    values = np.random.default_rng(1).normal(0, 0.02, HIDDEN * WIDTH).astype(np.float32)
    waiting = {
        name: (shape, lambda shape=shape: values[: int(np.prod(shape))].reshape(shape))
        for name, shape in shapes().items()
    }
    write_tensors(tmp_path / "model.safetensors", waiting)
    parameters = sum(int(np.prod(shape)) for shape in shapes().values())
    assert 4 * parameters > 1.6 * ALLOWED

    packed = loaded(tmp_path, "nf4")
    assert packed.returncode == 0, packed.stderr
    count, held = map(int, packed.stdout.split())
    assert count < parameters  # packed weights are no parameters
    assert held < 0.6 * parameters

    whole = loaded(tmp_path, "")
    assert whole.returncode != 0
    assert "MemoryError" in whole.stderr or "OutOfMemory" in whole.stderr
