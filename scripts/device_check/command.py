"""The command line of `scripts/device_check.sh`, and its exit status."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from .check import LIMIT_S, PARTS, Check, Wanted
from .process import Unusable
from .source_tree import emulator_is_here

ABOUT = """Check turret on an NVIDIA GPU and write what was found to one JSON file: facts, the conformance suite,
training beside the cpu backend, compute-sanitizer, and benchmarks. docs/reference/device_check.md describes it."""
EPILOG = """Exit status: 0 everything passed, 1 something did not, 2 no usable GPU or a wrong command line (no file is
written then), 130 and 143 after SIGINT and SIGTERM (with what was found until then)."""
MOST_JOBS = 8
EVERY_IN_REHEARSAL = 20


def main(arguments: list[str] | None = None) -> int:
    """Runs the check. Progress and the verdict go to stderr."""
    parser = argparse.ArgumentParser(prog="scripts/device_check.sh", description=ABOUT, epilog=EPILOG)
    parser.add_argument("out", nargs="?", type=Path, default=Path("device_check.json"), help="the file [%(default)s]")
    parser.add_argument(
        "--rehearse", action="store_true", help="small sizes on the emulator of the tests, no GPU needed"
    )
    parser.add_argument("--spec", help="backend and device [cuda; cuda:emulated where CuPy is the emulator]")
    parser.add_argument("--only", action="append", choices=PARTS[1:], help="this part and `facts`; may be repeated")
    parser.add_argument("--jobs", type=int, help=f"processes for conformance cases [processors, {MOST_JOBS} at most]")
    parser.add_argument(
        "--every", type=int, help=f"one of so many conformance cases [1; in a rehearsal {EVERY_IN_REHEARSAL}]"
    )
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="for everything together [%(default)s]")
    options = parser.parse_args(arguments)
    for name in ("jobs", "every", "limit_s"):
        if (value := getattr(options, name)) is not None and not 0 < value < float("inf"):
            parser.error(f"--{name.replace('_', '-')} {value}; wanted more than 0")
    if options.rehearse and not emulator_is_here():
        parser.error("--rehearse needs the emulator on PYTHONPATH; scripts/device_check.sh puts it there")
    if options.out.is_dir() or not os.access(options.out.absolute().parent, os.W_OK):
        parser.error(f"{options.out} cannot be written; name a file in a folder that is there")
    spec = options.spec or ("cuda:emulated" if emulator_is_here() else "cuda")
    emulated = spec.partition(":")[0] == "cuda" and emulator_is_here()
    small = emulated or spec.partition(":")[0] != "cuda"
    wanted = Wanted(
        spec=spec,
        emulated=emulated,
        rehearsal=small,
        parts=tuple(part for part in PARTS if part == PARTS[0] or not options.only or part in options.only),
        jobs=options.jobs or min(MOST_JOBS, len(os.sched_getaffinity(0))),
        every=options.every or (EVERY_IN_REHEARSAL if small else 1),
        limit_s=options.limit_s,
    )
    for each in (signal.SIGINT, signal.SIGTERM):  # a shell starts background jobs with SIGINT ignored
        signal.signal(each, _interrupt)
    return run(Check(wanted, options.out))


def run(check: Check) -> int:
    """The exit status; the file is written after every part, whatever happens."""
    try:
        return 0 if check.run() else 1
    except Unusable as reason:
        print(f"no usable device: {reason}", file=sys.stderr)
        print("scripts/device_check.sh --rehearse runs the same on the emulator, without a GPU", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        return 128 + (stopped.args[0] if stopped.args else signal.SIGINT)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)
