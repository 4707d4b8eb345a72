"""Runs one case at one backend; whatever the backend raises becomes a result."""

from __future__ import annotations

import time
import traceback
import warnings
from dataclasses import dataclass

from turret.registry import use_backend
from turret.registry.guard import words
from turret.spi import REQUIRED_SLOTS

from .bench import Bench, Mismatch, NotSupported, Skipped
from .case import Case
from .results import Result, Status
from .subject import Subject

FRAMES = 6
LONGEST_MESSAGE = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How cases are run. forbid_derived, forbid_host: what the backend leaves to compositions or the host fails."""

    seed: int = 0
    forbid_derived: bool = False
    forbid_host: bool = False
    perturb: bool = False


def execute(case: Case, subject: Subject, rules: Rules, *, advisory: bool = False) -> Result:
    """What the case came to. Only KeyboardInterrupt and its like pass."""
    counts = subject.counts
    counts.reset()
    start = time.perf_counter()
    status, message, bench = Status.PASSED, "", None
    try:
        bench = Bench(subject, case.id, rules.seed, perturb=rules.perturb)
        with use_backend(subject.opened), warnings.catch_warnings():
            # a library may say aloud that 0 / 0 is no number; a caller's filters must not make an error of that
            warnings.simplefilter("ignore", RuntimeWarning)
            case.body(bench)
        bench.untouched()
        _check_proof(case, bench, rules)
    except NotSupported as reason:
        status, message = Status.UNSUPPORTED, str(reason)
    except Skipped as reason:
        status, message = Status.SKIPPED, str(reason)
    except Mismatch as error:
        status, message = Status.FAILED, words(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a backend raises anything, and the run goes on
        status, message = Status.FAILED, _told(error, bench)
    return Result(
        case=case.id,
        capability=case.capability,
        status=status,
        seconds=time.perf_counter() - start,
        message=_cut(message),
        budget_used=bench.budget_used if bench is not None else None,
        comparisons=bench.comparisons if bench is not None else 0,
        native=is_native(case, subject),
        calls=sum(counts.calls.values()),
        host_transfers=sum(counts.transfers.values()),
        derived=tuple(sorted(counts.derived)),
        advisory=advisory,
    )


def is_native(case: Case, subject: Subject) -> bool:
    """Whether the slot of this case is the backend's own."""
    return case.capability in REQUIRED_SLOTS or case.capability in subject.opened.tools.native


def _check_proof(case: Case, bench: Bench, rules: Rules) -> None:
    """A case that looked at nothing, or whose calls never reached the plugin, proves nothing."""
    counts = bench.subject.counts
    if not bench.comparisons:
        bench.fail("the case compared nothing; report it to the authors of the suite")
    if case.numeric and not counts.calls:
        bench.fail("no call reached the plugin: the result was made elsewhere")
    if rules.forbid_derived and counts.derived:
        bench.fail(f"composed by turret.derived ({', '.join(sorted(counts.derived))}), which --forbid-derived forbids")
    if rules.forbid_host and counts.transfers:
        what = ", ".join(f"{name} x {n}" for name, n in sorted(counts.transfers.items()))
        bench.fail(f"went through the host ({what}), which --forbid-host forbids")


def _told(error: BaseException, bench: Bench | None) -> str:
    """What was being called, the exception, and the innermost frames."""
    context = f"{bench.context}: " if bench is not None and bench.context else ""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    where = " < ".join(f"{_short(frame.filename)}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    return f"{context}raised {type(error).__name__}: {words(error) or 'no text'} (at {where})"


def _cut(text: str) -> str:
    """A report is for people: an exception may hold a whole array."""
    half = LONGEST_MESSAGE // 2
    return text if len(text) <= 2 * half else f"{text[:half]} ... {text[-half:]}"


def _short(filename: str) -> str:
    return "/".join(filename.replace("\\", "/").split("/")[-2:])
