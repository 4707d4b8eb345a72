"""The part `benchmarks`: ceilings and kernels in one process, then training steps beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .ceilings import ceilings
from .kernels import LARGE, MEDIUM, ROOM, TINY, Kernel, Put, Sizes, kernels
from .request import Request, Teller
from .schema import Ceilings, KernelTiming
from .steps import compare

if TYPE_CHECKING:
    from turret.registry import OpenBackend
    from turret.spi import DType

DTYPES: tuple[DType, ...] = ("float32", "bfloat16")
BATCHES_S = {False: 0.15, True: 0.005}
KERNELS_SHARE = 0.4
DOUBTFUL = 1.3


def run(request: Request, tell: Teller) -> None:
    """Ceilings, then every kernel, then the steps."""
    from turret.conformance.perf.measure import timed
    from turret.registry import open_backend

    opened = open_backend(request.spec)
    tell.put(clock="emulated" if request.emulated else "device" if opened.name == "cuda" else "host")
    measure = partial(timed, tools=opened.tools, seconds=BATCHES_S[request.rehearsal])
    tell.say("ceilings")
    found = ceilings(opened, measure, rehearsal=request.rehearsal)
    tell.put(ceilings={name: getattr(found, name) for name in Ceilings.__dataclass_fields__})
    until = tell.left_s * (1 - KERNELS_SHARE)
    timings = []
    for kernel in _kernels(opened, rehearsal=request.rehearsal):
        if tell.left_s < until:
            timings.append(_row(kernel, opened, status="skipped", reason="out of time"))
        else:
            timings.append(_timing(kernel, opened, measure, found, judged=not request.emulated))
        tell.add("kernels", timings[-1])
    tell.say(f"{sum(each.status == 'passed' for each in timings)} of {len(timings)} kernels timed")
    tell.put(
        doubts=[
            f"{each.name} in {each.dtype} ran at {each.of_ceiling:.2f} of the {each.limit} ceiling"
            for each in timings
            if each.of_ceiling is not None and each.of_ceiling > DOUBTFUL
        ]
    )
    wrong = [f"{each.name} in {each.dtype}: {each.reason}" for each in timings if each.status != "passed"]
    tell.end([*wrong, *compare(request, tell)])


def _kernels(opened: OpenBackend, *, rehearsal: bool) -> list[Kernel]:
    memory, dtypes = opened.tools.storage.memory(), opened.tools.storage.device().dtypes
    sizes: Sizes = TINY if rehearsal else LARGE if memory is not None and memory.total_bytes >= ROOM else MEDIUM
    return [kernel for dtype in DTYPES if dtype in dtypes for kernel in kernels(sizes, dtype)]


def _timing(
    kernel: Kernel, opened: OpenBackend, measure: Callable[..., float], found: Ceilings, *, judged: bool
) -> KernelTiming:
    from turret.spi import TurretError

    try:
        seconds = measure(kernel.make(opened.tools, Put(opened.tools, kernel.dtype)))
    except TurretError as error:
        return _row(kernel, opened, status="failed", reason=f"{type(error).__name__}: {error}")
    gflops = found.bfloat16_gflops if kernel.dtype == "bfloat16" else found.float32_gflops
    arithmetic = kernel.flops / 1e9 / (gflops or found.float32_gflops)
    memory = kernel.bytes / 1e9 / found.copy_gbytes
    return _row(
        kernel,
        opened,
        status="passed",
        microseconds=seconds * 1e6,
        gflops=kernel.flops / seconds / 1e9,
        gbytes=kernel.bytes / seconds / 1e9,
        limit="arithmetic" if arithmetic > memory else "memory",
        of_ceiling=max(arithmetic, memory) / seconds if judged else None,
    )


def _row(kernel: Kernel, opened: OpenBackend, **given: Any) -> KernelTiming:
    from turret.spi import REQUIRED_SLOTS

    blank = dict.fromkeys(("microseconds", "gflops", "gbytes", "limit", "of_ceiling"))
    native = kernel.slot in (*REQUIRED_SLOTS, *opened.tools.native)
    return KernelTiming(
        name=kernel.name, slot=kernel.slot, dtype=kernel.dtype, native=native, **{"reason": "", **blank, **given}
    )
