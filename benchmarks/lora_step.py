"""A LoRA step of a published model beside PEFT on PyTorch: the same weights, tokens, adapters and optimizer.

    python benchmarks/lora_step.py SmolLM2-135M-Instruct.Q4_1.gguf --json

A step is forward, backward, clipping and Adam over adapters of rank 8 at queries and values, on rows of random tokens
that all count. turret and PEFT take turns in processes of their own. Tokens per second, medians of the rounds; the
ratio is turret's speed over PEFT's. Needs: torch, transformers, peft.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from alternate import contenders, serve

THREADS, RANK, ALPHA, RATE, MAX_NORM = 2, 8, 16.0, 2e-4, 1.0
NAMES = ("turret", "turret-qlora", "peft")
Ids = npt.NDArray[np.int32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file or folder of a Llama layout")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a row")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender after the first")
    parser.add_argument("--only", action="append", choices=NAMES, help="some of the contenders")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, path = options.worker
        serve(worker(name, path, options))
        return
    result = measure(options)
    print(json.dumps(result, indent=2) if options.json else result)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Speeds, the ratio, and the losses of each contender's steps, which begin alike."""
    from turret.models import load_pretrained, save_pretrained

    names = options.only or NAMES
    with tempfile.TemporaryDirectory(prefix="turret-bench-") as folder:
        files = dict.fromkeys(names, options.model)
        if "peft" in names:
            files["peft"] = save_pretrained(load_pretrained(options.model, backend="cpu"), Path(folder, "hf"))
        shared = ["--backend", options.backend, "--rows", str(options.rows), "--tokens", str(options.tokens), "x"]
        commands = {name: [__file__, "--worker", name, str(files[name]), *shared] for name in names}
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        with contenders(commands) as children:
            for turn in range(options.rounds + 1):
                for name, child in children.items():
                    taken[name].append(child.ask({"do": "step", "number": turn}))
    tokens = options.rows * options.tokens
    speed = {
        name: round(tokens / statistics.median(each["seconds"] for each in rounds[1:]), 1)
        for name, rounds in taken.items()
    }
    ratios = {f"{name} / peft": round(speed[name] / speed["peft"], 2) for name in speed if "peft" in speed}
    losses = {name: [round(each["loss"], 5) for each in rounds] for name, rounds in taken.items()}
    return {"tokens": tokens, "tokens_per_second": speed, "ratios": ratios, "losses": losses}


def worker(name: str, path: str, options: argparse.Namespace) -> Callable[[dict[str, Any]], Any]:
    """Answers requests for one contender."""
    step = _peft(path) if name == "peft" else _turret(path, options.backend, name == "turret-qlora")

    def answer(request: dict[str, Any]) -> Any:
        if request["do"] == "ready":
            return "ready"
        ids = np.random.default_rng(request["number"]).integers(1000, 40_000, (options.rows, options.tokens + 1))
        began = time.perf_counter()
        loss = step(ids.astype(np.int32))
        return {"seconds": time.perf_counter() - began, "loss": loss}

    return answer


def _turret(path: str, backend: str, packed: bool) -> Callable[[Ids], float]:
    from turret.models import load_pretrained
    from turret.nn import attach_adapters
    from turret.optim import Adam
    from turret.tensor import Tensor, backward, capture, ops, tensor

    model = load_pretrained(path, backend=backend, quantize="nf4" if packed else None, tokenizer=False).model
    adapters = attach_adapters(model, rank=RANK, alpha=ALPHA)
    optimizer = Adam(adapters.named_parameters(), lr=RATE, max_norm=MAX_NORM)

    def learn(ids: Tensor, targets: Tensor) -> Tensor:
        loss = ops.cross_entropy(model(ids), targets)
        optimizer.step(backward(loss), loss=loss)
        return loss

    step, home = capture(learn, state=[model, optimizer]), adapters.parameters()[0].backend

    def run(ids: Ids) -> float:
        given, targets = (np.ascontiguousarray(each) for each in (ids[:, :-1], ids[:, 1:]))
        return float(step(tensor(given, backend=home), tensor(targets, backend=home)).item())

    return run


def _peft(path: str) -> Callable[[Ids], float]:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(THREADS)
    base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    wanted = LoraConfig(r=RANK, lora_alpha=int(ALPHA), target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(base, wanted)
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(learned, lr=RATE)

    def run(ids: Ids) -> float:
        given = torch.from_numpy(ids.astype(np.int64))
        logits = model(input_ids=given[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), given[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return run


if __name__ == "__main__":
    main()
