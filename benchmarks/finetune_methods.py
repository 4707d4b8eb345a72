"""Full fine-tuning, LoRA and QLoRA of one published model on one set of examples: losses and memory, side by side.

    python benchmarks/finetune_methods.py SmolLM2-135M-Instruct.Q4_1.gguf --out build/finetune_methods

The examples are those of examples/python_instructions.py. Each method is a run in a process of its own, one after the
other, with the same rows in the same order. Writes DIR/table.md, DIR/results.json and DIR/methods.png.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
METHODS = ("full", "lora", "qlora")
HEAD = (
    "| method | trained | base | learned, gradients, moments | rest | peak of the process | tokens/s | "
    "validation loss |\n|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--method", action="append", choices=METHODS, help="repeatable [all]")
    parser.add_argument("--worker", nargs=2, metavar=("METHOD", "DATA"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        method, data = options.worker
        print(json.dumps(tuned(method, data, options)))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    examples = options.out / "python.jsonl"
    if not examples.exists():
        subprocess.run([sys.executable, HERE.parent / "examples/python_instructions.py", examples], check=True)
    results = [in_a_process(method, examples, options) for method in options.method or METHODS]
    (options.out / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    table = "\n".join([HEAD, *map(row, results)])
    (options.out / "table.md").write_text(table + "\n", encoding="utf-8")
    draw(results, options.out / "methods.png")
    print(table)


def in_a_process(method: str, examples: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Peak memory is that of a whole process, so each method has its own."""
    command = [sys.executable, __file__, str(options.model), "--backend", options.backend, "--out", str(options.out)]
    command += ["--steps", str(options.steps), "--context", str(options.context), "--worker", method, str(examples)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


class Memory:
    """Resident bytes of this process when a run begins, at the peak of its steps, and with its checkpoint written."""

    def __init__(self) -> None:
        self.began = self.peak = self.saving = 0

    def on_start(self, event: object) -> None:
        self.began = resident("VmRSS")
        reset_peak()

    def on_done(self, event: object) -> None:
        self.saving = resident("VmHWM")

    def on_step(self, event: object) -> None:
        self.peak = resident("VmHWM")

    def on_eval(self, event: object) -> None: ...

    def on_checkpoint(self, event: object) -> None: ...


def tuned(method: str, data: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run; memory by what holds it, in MB, and the losses of its steps."""
    from turret.registry import open_backend
    from turret.train import read_metrics
    from turret.train.finetune import FinetuneConfig, run_finetuning

    out = options.out / method
    config = FinetuneConfig(
        base=str(options.model),
        data=data,
        method=method,
        context=options.context,
        steps=options.steps,
        eval_every=max(1, options.steps // 5),
        checkpoint_every=options.steps,
        output="merged" if method == "full" else "adapter",
    )
    memory = Memory()
    before = resident("VmRSS")
    result = run_finetuning(config, out, open_backend(options.backend), observers=[memory])
    records = read_metrics(out / "metrics.jsonl")
    learned = sum(value.nbytes for value in result.base.state().values())
    frozen = 0 if method == "full" else held(result.base.model) - learned
    times = [late.seconds - early.seconds for early, late in itertools.pairwise(records)]
    return {
        "method": method,
        "trained": result.base.model.parameter_count() if method == "full" else learned // 4,
        "before_mb": before / 1e6,
        "base_mb": frozen / 1e6,
        "learned_mb": 4 * learned / 1e6,
        "began_mb": memory.began / 1e6,
        "peak_mb": memory.peak / 1e6,
        "saving_mb": memory.saving / 1e6,
        "tokens_per_second": options.context / statistics.median(times),
        "losses": [each.loss for each in records],
        "validation": [(each.step, each.val_loss) for each in records if each.val_loss is not None],
        "base_unchanged": method == "full" or unchanged(result),
    }


def held(model: Any) -> int:
    """Bytes of every parameter and buffer."""
    return sum(tensor.value.nbytes for tensor in model.held_tensors())


def unchanged(result: Any) -> bool:
    """Whether the base has the bits it began with."""
    from turret.nn import base_fingerprint

    return bool(base_fingerprint(result.base.model) == result.base.fingerprint)


def resident(field: str) -> int:
    """Bytes, as the system counts them."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"this system does not tell {field}")


def reset_peak() -> None:
    """From here on VmHWM is the peak of what follows."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def row(result: dict[str, Any]) -> str:
    rest = result["peak_mb"] - result["base_mb"] - result["learned_mb"]
    cells = (
        result["method"],
        f"{result['trained'] / 1e6:.2f} M",
        f"{result['base_mb']:.0f} MB",
        f"{result['learned_mb']:.0f} MB",
        f"{rest:.0f} MB",
        f"{result['peak_mb']:.0f} MB",
        f"{result['tokens_per_second']:.0f}",
        f"{result['validation'][-1][1]:.3f}",
    )
    return f"| {' | '.join(cells)} |"


def draw(results: list[dict[str, Any]], file: Path) -> None:
    """Left: losses over steps. Right: what the memory of each process holds at its peak."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    curves, bars = figure.subplots(1, 2)
    for number, result in enumerate(results):
        losses, colour = result["losses"], f"C{number}"
        window = max(1, len(losses) // 20)
        smooth = [statistics.fmean(losses[max(0, i - window + 1) : i + 1]) for i in range(len(losses))]
        curves.plot(range(1, len(losses) + 1), losses, color=colour, alpha=0.25, linewidth=0.8)
        curves.plot(range(1, len(losses) + 1), smooth, color=colour, label=f"{result['method']}, training")
        steps, validation = zip(*result["validation"], strict=True)
        curves.plot(steps, validation, "o--", color=colour, label=f"{result['method']}, validation")
    curves.set(title="losses", xlabel="step", ylabel="nats per learned token")
    curves.legend()
    names = [result["method"] for result in results]
    base = [result["base_mb"] for result in results]
    learned = [result["learned_mb"] for result in results]
    rest = [result["peak_mb"] - a - b for result, a, b in zip(results, base, learned, strict=True)]
    bars.bar(names, base, label="frozen base")
    bars.bar(names, learned, bottom=base, label="learned weights, gradients, moments")
    bottoms = [a + b for a, b in zip(base, learned, strict=True)]
    bars.bar(names, rest, bottom=bottoms, label="activations, program, libraries")
    bars.set(title="peak memory of the process", ylabel="MB")
    bars.legend()
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
