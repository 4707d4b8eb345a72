"""The part `training`: both model families on the device, step by step beside the cpu backend."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .request import Request, Teller
from .schema import TrainingRun

MODELS = ("decoder", "mini")
REFERENCE = "cpu"
SIZES: dict[bool, dict[str, Any]] = {
    False: {"layers": 2, "heads": 4, "width": 64, "context": 64, "batch": 8, "steps": 32},
    True: {"layers": 1, "heads": 2, "width": 16, "ff": 32, "context": 16, "batch": 2, "steps": 12, "lr": 1e-2},
}
# A loss is stored to 6e-8 of itself. Sums that run in another order move a forward pass by a few of those; after that
# Adam divides each gradient by its own size, so that rounding moves small ones as far as large ones, and differences
# grow with every step. Backends that are right were 4e-7 apart within 48 steps; a hundred times that is allowed.
FIRST_BOUND = 2e-6
BOUND = 5e-5


def run(request: Request, tell: Teller) -> None:
    """The cpu backend first, then the device, captured and not."""
    steps, wrong = SIZES[request.rehearsal]["steps"], []
    tell.put(steps=steps)
    for model in MODELS:
        tell.say(f"{model} on {REFERENCE}")
        reference = trained(model, REFERENCE, rehearsal=request.rehearsal, captured=False)
        if reference.broken_off:
            wrong.append(f"{model} on {REFERENCE}: {reference.broken_off}")
            continue
        for captured in (True, False):
            tell.say(f"{model} on {request.spec}{', captured' if captured else ''}")
            run = trained(model, request.spec, rehearsal=request.rehearsal, captured=captured)
            found = judged(model, run, reference.losses, captured=captured)
            tell.add("runs", found)
            if found.status != "passed":
                wrong.append(f"{model}{', captured' if captured else ''}: {found.reason}")
    tell.end(wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The loss of every step that was made, seconds, and why there are no more, "" where there are all."""

    losses: list[float]
    seconds: float
    broken_off: str = ""


def trained(model: str, spec: str, *, rehearsal: bool, captured: bool) -> Trained:
    """A run from its seed."""
    from turret.registry import open_backend
    from turret.spi import TurretError
    from turret.train import RunConfig, read_metrics, run_training

    config = RunConfig(model=model, backend=spec, seed=5, capture=captured, eval_batches=1, **SIZES[rehearsal])
    began, broken_off = time.perf_counter(), ""
    with TemporaryDirectory() as folder:
        out = Path(folder, "run")
        try:
            run_training(config, out, open_backend(spec))
        except TurretError as error:
            broken_off = f"{type(error).__name__}: {error}"
        metrics = out / "metrics.jsonl"
        losses = [record.loss for record in read_metrics(metrics)] if metrics.is_file() else []
    return Trained(losses=losses, seconds=time.perf_counter() - began, broken_off=broken_off)


def judged(model: str, run: Trained, reference: list[float], *, captured: bool) -> TrainingRun:
    """The run beside its reference. The first loss is one forward pass; later ones have rounding that grew."""
    apart = [abs(a - b) / abs(b) for a, b in zip(run.losses, reference, strict=False)]
    at = max(range(len(apart)), key=apart.__getitem__) if apart else None
    reasons = []
    if run.broken_off or len(run.losses) != len(reference):
        reasons.append(f"it ended after {len(run.losses)} of {len(reference)} steps: {run.broken_off or 'no reason'}")
    if apart and not apart[0] <= FIRST_BOUND:
        reasons.append(f"the first loss is off by {apart[0]:.1e}, allowed are {FIRST_BOUND:.0e}")
    if at is not None and not apart[at] <= BOUND:
        reasons.append(f"the loss of step {at + 1} is off by {apart[at]:.1e}, allowed are {BOUND:.0e}")
    return TrainingRun(
        status="failed" if reasons else "passed",
        reason="; ".join(reasons),
        model=model,
        captured=captured,
        losses=run.losses,
        reference=reference,
        first_difference=apart[0] if apart else None,
        first_bound=FIRST_BOUND,
        largest_difference=None if at is None else apart[at],
        at_step=None if at is None else at + 1,
        bound=BOUND,
        seconds=round(run.seconds, 3),
    )
