"""Every way of training in little memory in one table and one picture, each beside what it saves against.

python benchmarks/little_memory.py --out build/little_memory

Runs flash_attention.py, step_memory.py, nf4_linear.py and paged_adam.py, which alternate their contenders, and writes
DIR/table.md and DIR/memory.png.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEAD = "| what | size | time | memory | beside | time / time | memory / memory |\n|---|---|---|---|---|---|---|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--tokens", type=int, action="append", metavar="T", help="repeatable [256 ... 8192]")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tokens = options.tokens or [256, 512, 1024, 2048, 4096, 8192]
    rounds = ["--rounds", str(options.rounds)]
    flash = ran("flash_attention.py", options.backend, *rounds, *repeated("--tokens", tokens))
    steps = ran("step_memory.py", options.backend, *repeated("--context", [t for t in tokens if t <= LONGEST_STEP]))
    adam = ran("paged_adam.py", options.backend, *rounds)
    packed = ran("nf4_linear.py", options.backend, *rounds)
    halves = [result for backend in HALVES for result in half_steps(backend, tokens)]
    rows = [*attention_rows(flash), *step_rows(steps), *step_rows(halves), *adam_rows(adam), *packed_rows(packed)]
    table = "\n".join([HEAD, *rows])
    (options.out / "table.md").write_text(table + "\n", encoding="utf-8")
    draw(flash, steps, options.out / "memory.png")
    print(table)


LONGEST_STEP = 2048
"""Contexts of whole steps: eight materialized layers of 4096 tokens want 9 GB."""


HALVES = {"tpu:cpu": 1024, "metal:cpu": 256}
"""Backends that compute in bfloat16 here, and the longest context they are asked for; MLX on a processor takes minutes
for a step of 512 tokens in halves. cpu, with no arithmetic in halves, refuses."""


def half_steps(backend: str, tokens: list[int]) -> list[dict[str, Any]]:
    """Steps in bfloat16 and, to compare with, in float32."""
    ways = repeated_words("--way", ("plain", "bfloat16", "flash+block+bfloat16"))
    return ran("step_memory.py", backend, *ways, *repeated("--context", [t for t in tokens if t <= HALVES[backend]]))


def ran(script: str, backend: str, *options: str) -> list[dict[str, Any]]:
    """What a benchmark says in JSON: one list, or an object a line."""
    command = [sys.executable, str(HERE / script), "--backend", backend, "--json", *options]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: list[dict[str, Any]] = (
        json.loads(out) if out.startswith("[") else [json.loads(line) for line in out.splitlines()]
    )
    return found


def repeated(flag: str, values: list[int]) -> Iterator[str]:
    for value in values:
        yield from (flag, str(value))


def repeated_words(flag: str, words: tuple[str, ...]) -> Iterator[str]:
    for word in words:
        yield from (flag, word)


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def attention_rows(results: list[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        flash = result["contenders"]["flash"]
        for name, other in result["contenders"].items():
            if name == "flash":
                continue
            memory = other["peak_mb"] / flash["peak_mb"] if flash["peak_mb"] and other["peak_mb"] else float("nan")
            yield row(
                "flash attention, forward and backward",
                f"T {result['tokens']}",
                f"{flash['ms']:.1f} ms",
                f"{flash['peak_mb']:.0f} MB",
                name,
                f"{other['ms'] / flash['ms']:.2f}",
                f"{memory:.2f}",
            )


def step_rows(results: list[dict[str, Any]]) -> Iterator[str]:
    plain = {(r["backend"], r["T"]): r for r in results if r["way"] == "plain"}
    for result in results:
        if result["way"] == "plain":
            continue
        other = plain[result["backend"], result["T"]]
        yield row(
            f"training step on {result['backend']}, {result['way']}",
            f"T {result['T']}",
            f"{result['seconds'] * 1e3:.0f} ms",
            f"{result['peak_MiB']} MiB",
            "plain",
            f"{other['seconds'] / result['seconds']:.2f}",
            f"{other['peak_MiB'] / result['peak_MiB']:.2f}",
        )


def adam_rows(results: list[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        yield row(
            f"Adam in pages of {result['page']}",
            f"{result['parameters'] / 1e6:.1f} M parameters",
            f"{result['paged_ms']:.1f} ms",
            f"largest moment array {result['largest_paged'] / 2**20:.2f} MiB",
            "contiguous",
            f"{result['contiguous_ms'] / result['paged_ms']:.2f}",
            f"{result['largest_contiguous'] / result['largest_paged']:.2f}",
        )


def packed_rows(results: list[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        bits = 4 + 32 / result["block"]
        yield row(
            f"NF4 linear, {result['rows']} rows",
            f"{result['outs']} x {result['ins']}",
            f"{result['turret_us'] / 1e3:.2f} ms",
            f"{bits:g} bits a weight",
            "NumPy float32",
            f"{result['numpy_over_turret']:.2f}",
            f"{32 / bits:.2f}",
        )


def draw(flash: list[dict[str, Any]], steps: list[dict[str, Any]], file: Path) -> None:
    """Left: attention alone. Right: a whole step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    one, step = figure.subplots(1, 2)
    for name in flash[0]["contenders"]:
        points = [(r["tokens"], r["contenders"][name]["peak_mb"]) for r in flash]
        one.plot(*zip(*points, strict=True), marker="o", label=name)
    one.set(title="one attention, forward and backward", ylabel="MB above its inputs")
    for way in dict.fromkeys(r["way"] for r in steps):
        points = [(r["T"], r["peak_MiB"]) for r in steps if r["way"] == way]
        step.plot(*zip(*points, strict=True), marker="o", label=way)
    step.set(title=f"a training step on {steps[0]['backend']}", ylabel="MiB above the model")
    for axes in (one, step):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("tokens of context")
        axes.legend()
    figure.savefig(file)


if __name__ == "__main__":
    main()
