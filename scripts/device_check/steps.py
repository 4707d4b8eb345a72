"""One training step of the same GPT by several programs, in turns: medians and ratios."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from .request import Request, Teller
from .rival import Gone, Late, Rival
from .schema import Contender, Status, StepTiming

SHAPES = {False: ("8,128,128,4,4", "8,256,384,6,6"), True: ("2,8,16,2,1",)}
ROUNDS, STEPS = {False: 5, True: 2}, {False: 10, True: 2}
CLOSING_S = 4.0
NAMES = ("captured", "eager", "torch_eager", "torch_compile")
AGREEMENT = 1e-3
"""Nats that losses of the same steps from the same weights may be apart: a hundred times what rounding leaves."""
FIRST_SHARE = 0.6
"""Of the time, what the first turns may take, which load and compile."""


@dataclass(slots=True)
class Course:
    """What one contender has done so far. gone: why it does no more, and `status` what that makes of it."""

    name: str
    rival: Rival | None = None
    ms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    gone: str = ""
    status: Status = "failed"

    def start(self, shape: str, spec: str, folder: Path, count: int) -> None:
        """Begins the first turn."""
        self.rival = Rival(self.name, shape, spec, folder)
        self.rival.ask(do="steps", first=0, count=count)

    def turn(self, first: int, count: int, until: float) -> None:
        """A whole turn, unless it is gone."""
        if self.rival is not None and not self.gone:
            self.rival.ask(do="steps", first=first, count=count)
            self.take(until)

    def take(self, until: float) -> None:
        """Waits for the end of the turn that was begun."""
        assert self.rival is not None
        try:
            answer = self.rival.answer(until - time.monotonic())
        except Gone as reason:
            self.gone = str(reason)
            if self.name.startswith("torch"):  # what it compiles with may be missing or slow: nothing of ours
                self.status = "skipped" if isinstance(reason, Late) else "absent"
            return
        if "absent" in answer:
            self.gone, self.status = answer["absent"], "absent"
            return
        self.ms += answer["ms"]
        self.losses += answer["losses"]


def compare(request: Request, tell: Teller) -> list[str]:
    """Tells of every shape; returns what is wrong."""
    shapes, steps, wrong = SHAPES[request.rehearsal], STEPS[request.rehearsal], []
    end = time.monotonic() + tell.left_s - CLOSING_S
    field = {shape: [Course(name) for name in NAMES] for shape in shapes}
    tell.say("training steps: first turns")
    with TemporaryDirectory() as folder:
        try:
            _first_turns(field, request, Path(folder), end)
            for number, shape in enumerate(shapes):
                tell.say(f"training steps at ({shape})")
                until = time.monotonic() + (end - time.monotonic()) / (len(shapes) - number)
                rounds = _turns(field[shape], ROUNDS[request.rehearsal], steps, until)
                rows = judged(field[shape], shape, steps, request)
                tell.add("steps", StepTiming(shape=shape, rounds=rounds, steps=steps, contenders=rows))
                wrong += [f"{each.name} at ({shape}): {each.reason}" for each in rows if each.status == "failed"]
        finally:
            for course in (each for courses in field.values() for each in courses):
                if course.rival is not None:
                    course.rival.close()
    return wrong


def _first_turns(field: dict[str, list[Course]], request: Request, folder: Path, end: float) -> None:
    """turret's captured steps leave the weights of all; after them everybody else loads and compiles at once."""
    until, steps = time.monotonic() + (end - time.monotonic()) * FIRST_SHARE, STEPS[request.rehearsal]
    for rank in (slice(0, 1), slice(1, None)):
        for shape, courses in field.items():
            own = folder / shape
            own.mkdir(exist_ok=True)
            for course in courses[rank]:
                course.start(shape, request.spec, own, steps)
        for courses in field.values():
            for course in courses[rank]:
                course.take(until)


def _turns(courses: list[Course], rounds: int, steps: int, until: float) -> int:
    """How many turns there was time for; each begins where the one before it ended."""
    for turn in range(1, rounds + 1):
        if time.monotonic() > until:
            return turn - 1
        for course in courses:
            course.turn(turn * steps, steps, until + CLOSING_S)
    return rounds


def judged(courses: list[Course], shape: str, steps: int, request: Request) -> list[Contender]:
    """Medians, ratios to turret's captured step, and whether the losses agree with its losses."""
    from shapes import Shape

    flops, first = Shape.parse(shape).flops(), courses[0]
    medians = [statistics.median(course.ms[steps:]) if course.ms[steps:] else None for course in courses]
    rows = []
    for course, median in zip(courses, medians, strict=True):
        apart = [abs(a - b) for a, b in zip(course.losses, first.losses, strict=False)]
        reason, status = course.gone, course.status
        if not reason and median is None:
            reason = "out of time before a turn was measured"
        if not all(each <= AGREEMENT for each in apart):
            status = "failed"
            reason = f"its losses are up to {max(apart):.1e} from captured's, allowed are {AGREEMENT:.0e}"
        rows.append(
            Contender(
                name=course.name,
                status=status if reason else "passed",
                reason=reason,
                step_ms=median,
                gflops=None if median is None else flops / median / 1e6,
                first_s=course.ms[0] / 1e3 if course.ms else None,
                last_loss=_finite(course.losses[-1]) if course.losses else None,
                loss_difference=_finite(max(apart)) if apart and course is not first else None,
                samples=len(course.ms[steps:]),
                ratio=median / medians[0] if median and medians[0] and not request.emulated else None,
            )
        )
    return rows


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
