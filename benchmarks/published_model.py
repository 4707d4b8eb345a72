"""Reading a prompt and going on from it with a published model: turret in float32 and NF4 beside its peers.

    python benchmarks/published_model.py SmolLM2-135M-Instruct.Q4_1.gguf --json

The peers are transformers on PyTorch in float32, with the weights that the file stands for, and llama.cpp with the same
in a float32 GGUF file and with the file itself. All take turns in processes of their own; a round is one prompt and
some tokens after it. Tokens per second, medians of the rounds; ratios are turret's speed over the peer's in the same
run. Needs: torch, transformers, llama-cpp-python.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from alternate import contenders, serve

THREADS = 2
NAMES = ("turret", "turret-nf4", "torch", "llama.cpp", "llama.cpp-file")
PEERS = {"turret": ("torch", "llama.cpp"), "turret-nf4": ("torch", "llama.cpp-file")}
"""Whose speed each is divided by: those that keep weights alike, and PyTorch."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file of a Llama layout")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--prompt", action="append", type=int, metavar="N", help="tokens of a prompt; repeatable")
    parser.add_argument("--tokens", type=int, default=32, help="tokens made after the prompt")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender after the first")
    parser.add_argument("--only", action="append", choices=NAMES, help="some of the contenders")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, path = options.worker
        serve(worker(name, path, options))
        return
    results = measure(options.model, options)
    print(json.dumps(results, indent=2) if options.json else "\n".join(map(str, results)))


def measure(model: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One result for each length of prompt."""
    names = options.only or NAMES
    with tempfile.TemporaryDirectory(prefix="turret-bench-") as folder:
        files = _files(model, Path(folder), names)
        shared = ["--backend", options.backend, "x"]
        commands = {name: [__file__, "--worker", name, str(files[name]), *shared] for name in names}
        with contenders(commands) as children:
            return [_rounds(children, count, options) for count in options.prompt or (64, 512)]


def _rounds(children: dict[str, Any], count: int, options: argparse.Namespace) -> dict[str, Any]:
    ids = np.random.default_rng(count).integers(1000, 40_000, count).tolist()
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in children}
    for turn in range(options.rounds + 1):
        for name, child in children.items():
            seconds = child.ask({"do": "round", "ids": ids, "tokens": options.tokens})
            if turn:  # the first one is a warm-up
                taken[name].append(seconds)
    speed = {
        name: {
            "prefill": round(count / statistics.median(each["prefill"] for each in rounds), 1),
            "decode": round(options.tokens / statistics.median(each["decode"] for each in rounds), 2),
        }
        for name, rounds in taken.items()
    }
    ratios = {
        f"{name} / {peer}": {what: round(speed[name][what] / speed[peer][what], 2) for what in ("prefill", "decode")}
        for name, peers in PEERS.items()
        for peer in peers
        if name in speed and peer in speed
    }
    return {"prompt": count, "tokens": options.tokens, "tokens_per_second": speed, "ratios": ratios}


def _files(model: Path, folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """The file or folder that each contender reads; float32 ones are made from the model."""
    from peers.float32_gguf import write_float32

    files = dict.fromkeys(names, model)
    if "torch" in files:
        from turret.models import load_pretrained, save_pretrained

        files["torch"] = save_pretrained(load_pretrained(model, backend="cpu"), folder / "hf")
    if "llama.cpp" in files:
        files["llama.cpp"] = write_float32(model, folder / "float32.gguf")
    return files


Step = Callable[[Sequence[int]], int]
"""Takes tokens after those before, returns the likeliest next one."""


def worker(name: str, path: str, options: argparse.Namespace) -> Callable[[dict[str, Any]], Any]:
    """Answers requests for one contender."""
    begin = {"turret": _turret, "turret-nf4": _turret, "torch": _torch}.get(name, _llama)
    fresh = begin(path, options.backend, name.endswith("nf4"))

    def answer(request: dict[str, Any]) -> Any:
        if request["do"] == "ready":
            return "ready"
        step = fresh()
        began = time.perf_counter()
        token = step(request["ids"])
        read = time.perf_counter()
        for _ in range(request["tokens"]):
            token = step([token])
        return {"prefill": read - began, "decode": time.perf_counter() - read}

    return answer


def _turret(path: str, backend: str, packed: bool) -> Callable[[], Step]:
    from turret.generate import Decoding
    from turret.models import load_pretrained

    model = load_pretrained(path, backend=backend, quantize="nf4" if packed else None, tokenizer=False).model
    decoding = Decoding(model, expected=1024)

    def fresh() -> Step:
        decoding.reset()
        return lambda ids: int(decoding.push(ids).argmax())

    return fresh


def _torch(path: str, _backend: str, _packed: bool) -> Callable[[], Step]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(THREADS)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.eval()

    def fresh() -> Step:
        past: Any = None

        def step(ids: Sequence[int]) -> int:
            nonlocal past
            with torch.inference_mode():
                out = model(torch.tensor([list(ids)]), past_key_values=past, use_cache=True, logits_to_keep=1)
            past = out.past_key_values
            return int(out.logits[0, -1].argmax())

        return step

    return fresh


def _llama(path: str, _backend: str, _packed: bool) -> Callable[[], Step]:
    import llama_cpp

    model = llama_cpp.Llama(path, n_ctx=1024, n_batch=512, n_threads=THREADS, n_threads_batch=THREADS, verbose=False)

    def fresh() -> Step:
        model.reset()

        def step(ids: Sequence[int]) -> int:
            model.eval(list(ids))
            logits = llama_cpp.llama_get_logits_ith(model._ctx.ctx, -1)
            return int(np.ctypeslib.as_array(logits, shape=(model.n_vocab(),)).argmax())

        return step

    return fresh


if __name__ == "__main__":
    main()
