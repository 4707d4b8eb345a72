"""What a process has only one of, and a backend must leave as it found it."""

from __future__ import annotations

import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterable

import numpy as np

State = dict[str, tuple[str, ...]]
GROWING = frozenset(("environment", "warning filters", "root logger"))
"""What importing a library may add to, as long as everything that was there stays."""


def snapshot() -> State:
    """One entry per thing, as texts that can be compared and sent to another process."""
    return {
        "environment": tuple(f"{name}={value}" for name, value in sorted(os.environ.items())),
        "warning filters": tuple(map(repr, warnings.filters)),
        "root logger": (f"level {logging.root.level}", *map(repr, logging.root.handlers)),
        "signal handlers": tuple(f"{each.name}: {signal.getsignal(each)!r}" for each in sorted(signal.Signals)),
        "NumPy's error state": (repr(np.geterr()), repr(np.geterrcall())),
        "NumPy's print options": (repr(sorted(np.get_printoptions().items())),),
        "NumPy's random state": (_digest(np.random.get_state()),),
        "random's state": (_digest(random.getstate()),),
        "locale": (locale.setlocale(locale.LC_ALL),),
        "working folder": (os.getcwd(),),
        "recursion limit": (str(sys.getrecursionlimit()),),
        "garbage collection": (f"{gc.isenabled()} {gc.get_threshold()}",),
        "exception hooks": tuple(map(repr, (sys.excepthook, sys.displayhook, threading.excepthook))),
        "standard streams": tuple(map(repr, (sys.stdin, sys.stdout, sys.stderr))),
        "processor cores": (_cores(),),
        "rounding of float32": _rounding(),
    }


def changed(before: State, after: State, *, imported: bool = False) -> str:
    """What differs, in words; empty where nothing does. imported: libraries may have added to what can grow."""
    found = []
    for name, was in before.items():
        now = after[name]
        gone = [each for each in was if each not in now]
        new = [] if imported and name in GROWING else [each for each in now if each not in was]
        if gone or new or (not imported and was != now):
            found.append(f"{name} (was {'; '.join(gone) or 'shorter'}, is {'; '.join(new) or 'shorter'})"[:300])
    return ", ".join(found)


def _digest(state: Iterable[object]) -> str:
    return str(hash(repr([x.tobytes() if isinstance(x, np.ndarray) else x for x in state])))


def _cores() -> str:
    if sys.platform != "linux":
        return "not told"
    return repr(sorted(os.sched_getaffinity(0)))


def _rounding() -> tuple[str, ...]:
    """A library built for speed may switch off subnormal numbers for the whole thread."""
    least = np.full(2, 1e-45, np.float32)
    return f"least subnormal times 1: {(least * np.float32(1))[0]!r}", f"1/3: {(np.float32(1) / np.float32(3))!r}"
