"""Timing calls, and the ceilings of the machine, measured in the same run."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from turret.registry import OpenBackend
from turret.spi import REQUIRED_SLOTS, Toolset

from ..bench import flat
from .workloads import FLOAT_BYTES, Workload, putter, workloads

ROUNDS = 5
IMPLAUSIBLE = 2.5
SIZES = (64, 256, 512, 1024)
ENOUGH_S = 0.05
LONGEST_S = 2.0
STREAMS = (1 << 16, 1 << 19, 1 << 22)
"""Floats of the arrays whose addition measures bandwidth: near the core, farther, and beyond the caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What the backend reaches at its best: a square product, and additions; gbytes by the bytes that they move."""

    gflops: float
    gbytes: dict[int, float]

    def seconds(self, flops: float, moved: float) -> float:
        """The least time for so much work: the roofline. Source: Williams et al. 2009, equation 1."""
        footprint = min((size for size in self.gbytes if size >= moved), default=max(self.gbytes))
        return max(flops / (self.gflops * 1e9), moved / (self.gbytes[footprint] * 1e9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One call: seconds, rates, and the share of the roofline that was reached."""

    name: str
    slot: str
    native: bool
    seconds: float
    gflops: float
    gbytes: float
    roofline: float
    per_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What one slot costs in a training step, and at the ceilings would; seconds. `share` is of the whole step."""

    slot: str
    seconds: float
    at_ceiling: float
    share: float


def ceilings(tools: Toolset[Any], *, seconds: float) -> Ceilings:
    """GFLOP/s of square products, GB/s of additions; sizes grow until one takes long, so that slow backends end too."""
    put, gflops, gbytes = putter(tools), 0.0, {}
    for size in SIZES:
        a, b = put(size, size), put(size, size)
        took = timed(functools.partial(tools.matmul.matmul, a, b), tools, seconds=seconds)
        gflops = max(gflops, 2 * size**3 / took / 1e9)
        if took > ENOUGH_S:
            break
    for count in STREAMS:
        x, y = put(count), put(count)
        took = timed(functools.partial(tools.elementwise.add, x, y), tools, seconds=seconds)
        gbytes[3 * FLOAT_BYTES * count] = 3 * FLOAT_BYTES * count / took / 1e9
        if took > ENOUGH_S:
            break
    return Ceilings(gflops=gflops, gbytes=gbytes)


def measure(
    opened: OpenBackend, found: Ceilings, *, slots: Sequence[str] = (), seconds: float = 0.1, used: bool = False
) -> Iterator[Measured]:
    """Each workload of the slots (none named: all), about `seconds` on each after warming up.

    used: only what a training step calls.
    """
    tools = opened.tools
    for workload in workloads():
        if (slots and workload.slot not in slots) or (used and not workload.per_step):
            continue
        if found.seconds(workload.flops, workload.bytes) > LONGEST_S:
            continue  # even at its ceilings this backend would need seconds for one call
        took = timed(workload.make(tools, putter(tools)), tools, seconds=seconds)
        yield _judged(workload, took, found, native=workload.slot in (*REQUIRED_SLOTS, *tools.native))


def timed(run: Callable[[], Any], tools: Toolset[Any], *, seconds: float) -> float:
    """Seconds of one call: the best of several rounds, each long enough for the clock and ended by waiting.

    The best, for calls and ceilings alike: whatever else the machine does makes a round longer, never shorter.
    """

    def round_of(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            result = run()
        tools.storage.synchronize(*flat(result))
        return (time.perf_counter() - start) / count

    round_of(1)
    once = round_of(1)
    count = max(1, int(seconds / ROUNDS / max(once, 1e-7)))
    return min(round_of(count) for _ in range(ROUNDS))


def doubts(found: Ceilings, measured: Sequence[Measured]) -> str:
    """Why the figures cannot be trusted, or "": small arrays slower than large ones, calls far above the ceilings."""
    rates = list(found.gbytes.values())
    beyond = [each.name for each in measured if each.roofline > IMPLAUSIBLE]
    signs = []
    if rates[0] < rates[-1]:
        signs.append(f"adding small arrays ran at {rates[0]:.2g} GB/s and large ones at {rates[-1]:.2g}")
    if beyond:
        others = f" and {len(beyond) - 1} more" if len(beyond) > 1 else ""
        signs.append(f"{beyond[0]}{others} passed the ceilings")
    if not signs:
        return ""
    return (
        f"these figures are doubtful: {'; '.join(signs)}. The machine is busy, or threads wait for each other: measure "
        "again on a quiet machine, or with one thread (OMP_NUM_THREADS=1)"
    )


def advise(measured: Sequence[Measured]) -> list[Advice]:
    """The derived slots that a training step uses, by what making them native could save, greatest first."""
    step = sum(each.seconds * each.per_step for each in measured)
    advice = []
    for slot in dict.fromkeys(each.slot for each in measured if not each.native and each.per_step):
        mine = [each for each in measured if each.slot == slot]
        took = sum(each.seconds * each.per_step for each in mine)
        best = sum(each.seconds * each.roofline * each.per_step for each in mine)
        advice.append(Advice(slot=slot, seconds=took, at_ceiling=min(best, took), share=took / step))
    return sorted(advice, key=lambda each: each.at_ceiling - each.seconds)


def in_words(advice: Sequence[Advice]) -> list[str]:
    """One line for each derived slot of a training step, what would gain most first."""
    lines = []
    for n, each in enumerate(advice):
        lead = "then" if n else "next slot to make native"
        lines.append(
            f"{lead}: {each.slot}: {each.seconds * 1e3:.2f} ms of a small model's training step ({each.share:.0%}), "
            f"{each.at_ceiling * 1e3:.2f} ms at the ceilings of this machine"
        )
    return lines


def as_json(found: Ceilings, measured: Sequence[Measured]) -> dict[str, Any]:
    """Everything, for machines."""
    return {
        "ceilings": dataclasses.asdict(found),
        "measured": [dataclasses.asdict(each) for each in measured],
        "advice": [dataclasses.asdict(each) for each in advise(measured)],
    }


def _judged(workload: Workload, took: float, found: Ceilings, *, native: bool) -> Measured:
    return Measured(
        name=workload.name,
        slot=workload.slot,
        native=native,
        seconds=took,
        gflops=workload.flops / took / 1e9,
        gbytes=workload.bytes / took / 1e9,
        roofline=found.seconds(workload.flops, workload.bytes) / took,
        per_step=workload.per_step,
    )
