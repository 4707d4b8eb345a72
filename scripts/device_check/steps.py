"""One training step of the same GPT by several programs, in turns: medians and ratios."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from .request import Request, Teller
from .rival import Gone, Rival
from .schema import Contender, StepTiming

SHAPES = {False: ("8,128,128,4,4", "8,256,384,6,6"), True: ("2,8,16,2,1",)}
ROUNDS, STEPS = {False: 5, True: 2}, {False: 10, True: 2}
NAMES = ("captured", "eager", "torch_eager", "torch_compile")
AGREEMENT = 1e-3
"""Nats that losses of the same steps from the same weights may be apart: a hundred times what rounding leaves."""
FIRST_S = 45.0
"""What the first turn of a contender may take at most, compiling included."""


@dataclass(slots=True)
class Course:
    """What one contender has done so far. gone: why it does no more; absent: that this is no failure."""

    name: str
    rival: Rival | None = None
    ms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    gone: str = ""
    absent: bool = False

    def turn(self, limit_s: float, first: int, count: int) -> None:
        """Asks for a turn, unless it is gone."""
        if self.rival is None or self.gone:
            return
        try:
            answer = self.rival.ask(limit_s, do="steps", first=first, count=count)
        except Gone as reason:
            # what PyTorch compiles with may be missing: nothing of ours
            self.gone, self.absent = str(reason), self.name.startswith("torch")
            return
        if "absent" in answer:
            self.gone, self.absent = answer["absent"], True
            return
        self.ms += answer["ms"]
        self.losses += answer["losses"]


def compare(request: Request, tell: Teller) -> list[str]:
    """Tells of every shape; returns what is wrong."""
    wrong = []
    for number, shape in enumerate(SHAPES[request.rehearsal]):
        until = time.monotonic() + tell.left_s * 0.9 / (len(SHAPES[request.rehearsal]) - number)
        tell.say(f"training steps at ({shape})")
        found = measured(request, shape, until)
        tell.add("steps", found)
        wrong += [f"{each.name} at ({shape}): {each.reason}" for each in found.contenders if each.status == "failed"]
    return wrong


def measured(request: Request, shape: str, until: float) -> StepTiming:
    """Turns until all are done or it is time; the first turn warms up."""
    steps, rounds = STEPS[request.rehearsal], 0
    courses = [Course(name) for name in NAMES]
    with TemporaryDirectory() as folder:
        try:
            for course in courses:  # one after the other: turret's first leaves the weights of all
                limit = min(FIRST_S, until - time.monotonic())
                course.rival = Rival(course.name, shape, request.spec, Path(folder))
                course.turn(limit, 0, steps)
            for turn in range(1, ROUNDS[request.rehearsal] + 1):
                if time.monotonic() > until:
                    break
                for course in courses:
                    course.turn(until + FIRST_S - time.monotonic(), turn * steps, steps)
                rounds = turn
        finally:
            for course in courses:
                if course.rival is not None:
                    course.rival.close()
    return StepTiming(shape=shape, rounds=rounds, steps=steps, contenders=judged(courses, shape, steps, request))


def judged(courses: list[Course], shape: str, steps: int, request: Request) -> list[Contender]:
    """Medians, ratios to turret's captured step, and whether the losses agree with its losses."""
    from shapes import Shape

    flops, first = Shape.parse(shape).flops(), courses[0]
    medians = [statistics.median(course.ms[steps:]) if course.ms[steps:] else None for course in courses]
    rows = []
    for course, median in zip(courses, medians, strict=True):
        apart = [abs(a - b) for a, b in zip(course.losses, first.losses, strict=False)]
        reason, status = course.gone, "absent" if course.absent else "failed"
        if not reason and median is None:
            reason = "out of time before a turn was measured"
        if apart and not max(apart) <= AGREEMENT:
            reason, status = (
                f"its losses are up to {max(apart):.1e} from captured's, allowed are {AGREEMENT:.0e}",
                "failed",
            )
        rows.append(
            Contender(
                name=course.name,
                status=status if reason else "passed",  # type: ignore[arg-type]  # one of the literals
                reason=reason,
                step_ms=median,
                gflops=None if median is None else flops / median / 1e6,
                first_s=course.ms[0] / 1e3 if course.ms else None,
                last_loss=course.losses[-1] if course.losses else None,
                loss_difference=max(apart) if apart and course is not first else None,
                samples=len(course.ms[steps:]),
                ratio=median / medians[0] if median and medians[0] and not request.emulated else None,
            )
        )
    return rows
