"""Attention forward and backward beside each other: flash, materialized and PyTorch's fused one, time and memory.

One batch row of causal float32 heads, the same number of threads for all, alternating turns in one run, medians.
Memory is the growth of the process's resident memory at its highest, results included, over its state with the inputs
made; it is known on Linux only. PyTorch has its inputs in the layout it computes in.

python benchmarks/flash_attention.py --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from alternate import Contender, contenders, serve

TOKENS = (256, 512, 1024, 2048, 4096, 8192)
PEERS = ("materialized", "torch")
AGREEMENT = 1e-4
"""The greatest relative difference of the sizes of the results and gradients."""

SLICE = 0.1
"""Seconds that a turn lasts at least, where one step is shorter."""

Step = Callable[[], list[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--tokens", type=int, action="append", metavar="T", help=f"default: {TOKENS}")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender after the first, which warms up")
    parser.add_argument("--without", action="append", choices=PEERS, default=[], help="a contender to leave out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(answers(options))
        return
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}; wanted at least 1")
    results = []
    for tokens in options.tokens or TOKENS:
        results.append(measure(tokens, options))
        if not options.json:
            print(described(results[-1]), flush=True)
    if options.json:
        print(json.dumps(results, indent=2))
    apart = [r for r in results if not r["difference"] <= AGREEMENT]
    if apart:
        raise SystemExit(f"results at {', '.join(str(r['tokens']) for r in apart)} tokens differ by over {AGREEMENT}")


def described(r: dict[str, Any]) -> str:
    """One length in one line."""
    parts = [f"T = {r['tokens']}"]
    for name, each in r["contenders"].items():
        memory = "?" if each["peak_mb"] is None else f"{each['peak_mb']:.0f}"
        parts.append(f"{name} {each['ms']:.1f} ms, {each['gflops']:.0f} GFLOP/s, {memory} MB")
    parts += [f"{name} / flash {ratio:.2f}" for name, ratio in r["ratios"].items()]
    return "   ".join(parts)


def measure(tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    """Alternating turns at one length."""
    base = [__file__, "--backend", options.backend, "--heads", str(options.heads), "--width", str(options.width)]
    names = [name for name in STEPS if name not in options.without]
    with contenders({name: [*base, "--tokens", str(tokens), "--worker", name] for name in names}) as running:
        firsts = {name: contender.ask({"do": "first"}) for name, contender in running.items()}
        times: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(options.rounds + 1):
            for name, contender in running.items():
                taken = _turn(contender, firsts[name]["ms"])
                if turn > 0:
                    times[name].append(taken)
    flops = 7 * 2 * options.heads * options.width * tokens * (tokens + 1) / 2
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    sizes = np.array([first["sizes"] for first in firsts.values()])
    return {
        "tokens": tokens,
        "heads": options.heads,
        "width": options.width,
        "threads": {name: first["threads"] for name, first in firsts.items()},
        "contenders": {
            name: {
                "ms": ms,
                "gflops": flops / ms / 1e6,
                "peak_mb": firsts[name]["peak_mb"],
                "turns_ms": times[name],
            }
            for name, ms in medians.items()
        },
        "ratios": {name: ms / medians["flash"] for name, ms in medians.items() if name != "flash"},
        "difference": float((np.ptp(sizes, axis=0) / sizes.max(axis=0)).max()),
    }


def _turn(contender: Contender, first_ms: float) -> float:
    count = max(1, min(50, int(SLICE * 1e3 / first_ms)))
    return float(contender.ask({"do": "steps", "count": count}))


def answers(options: argparse.Namespace) -> Callable[[dict[str, Any]], Any]:
    """One contender's side. The first step at the length is the one whose memory is taken."""
    tokens: int = options.tokens[0]
    make, threads = STEPS[options.worker](options)
    make(64)()
    step = make(tokens)

    def answer(request: dict[str, Any]) -> Any:
        if request["do"] == "steps":
            began = time.perf_counter()
            for _ in range(request["count"]):
                step()
            return (time.perf_counter() - began) * 1e3 / request["count"]
        with peak() as grown:
            began = time.perf_counter()
            results = step()
            ms = (time.perf_counter() - began) * 1e3
        sizes = [float(np.sqrt(np.square(np.asarray(x, np.float64)).sum())) for x in results]
        return {"ms": ms, "peak_mb": grown[0] if grown else None, "sizes": sizes, "threads": threads}

    return answer


@contextmanager
def peak() -> Iterator[list[float]]:
    """Fills the list with the growth in MB of the resident memory at its highest inside, where the system tells."""
    grown: list[float] = []
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
    except OSError:
        yield grown
        return
    yield grown
    grown.append((_resident("VmHWM") - before) / 1e3)


def _resident(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1.024 * float(line.split()[1]) for line in lines if line.startswith(what))


def operands(tokens: int, options: argparse.Namespace) -> list[np.ndarray[Any, Any]]:
    """q, k, v and the gradient of the output: (1, T, H, d), the same for every contender."""
    draw = np.random.default_rng([7, tokens])
    shape = (1, tokens, options.heads, options.width)
    return [draw.standard_normal(shape, np.float32) for _ in range(4)]


def turret_steps(options: argparse.Namespace) -> tuple[Callable[[int], Step], int]:
    """A slot of the backend."""
    from turret.registry import open_backend
    from turret_cpu.threads import usable_cores

    tools = open_backend(options.backend).tools
    scale = options.width**-0.5

    def make(tokens: int) -> Step:
        q, k, v, dy = (tools.storage.from_host(x) for x in operands(tokens, options))

        def flash() -> list[Any]:
            saved = tools.flash_attention.attend(q, k, v, scale=scale, offset=0)
            gradients = tools.flash_attention.attend_vjp(dy, q, k, v, saved, scale=scale, offset=0)
            return waited(saved.out, *gradients)

        def materialized() -> list[Any]:
            out, p = tools.causal_attention.attend(q, k, v, scale=scale, offset=0)
            return waited(out, *tools.causal_attention.attend_vjp(dy, q, k, v, p, scale=scale))

        def waited(*results: Any) -> list[Any]:
            tools.storage.synchronize(*results)
            return list(results)

        return flash if options.worker == "flash" else materialized

    return make, usable_cores()


def torch_steps(options: argparse.Namespace) -> tuple[Callable[[int], Step], int]:
    """`scaled_dot_product_attention` with as many threads as the others."""
    import torch
    import torch.nn.functional as F

    from turret_cpu.threads import usable_cores

    torch.set_num_threads(usable_cores())

    def make(tokens: int) -> Step:
        q, k, v, dy = (torch.from_numpy(x).transpose(1, 2).contiguous() for x in operands(tokens, options))
        for x in (q, k, v):
            x.requires_grad_()

        def step() -> list[Any]:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return [out.detach(), *torch.autograd.grad(out, (q, k, v), dy)]

        return step

    return make, torch.get_num_threads()


STEPS = {"flash": turret_steps, "materialized": turret_steps, "torch": torch_steps}

if __name__ == "__main__":
    main()
