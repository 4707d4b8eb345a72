"""The JSON file: every field, its type and what it means. docs/reference/device_check.md is made from this."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

SCHEMA = 1

Status: TypeAlias = Literal["passed", "failed", "skipped", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What every part of the check has."""

    status: Status
    """`passed`; `failed`, also where its time was over before its end; `skipped`: it was not begun; `absent`: what it
    needs is not there, which is no failure."""
    reason: str = ""
    """Why it is not `passed`, in words; "" where it is."""
    seconds: float = 0.0
    """What it took, wall clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(Part):
    """The device and what drives it."""

    device: str | None = None
    """What the device calls itself."""
    compute_capability: str | None = None
    """As in "9.0"; null where the device is no GPU."""
    memory_bytes: int | None = None
    """What the device has, null where it does not tell."""
    driver: str | None = None
    """The newest CUDA version that the driver supports, as in "13.0"."""
    driver_release: str | None = None
    """The driver's own version, as nvidia-smi tells it; null without nvidia-smi."""
    runtime: str | None = None
    """The CUDA version of the runtime that CuPy uses."""
    cublas: str | None = None
    """The version of cuBLAS, as in "13.0.2"."""
    cupy: str | None = None
    """The version of CuPy; ends with "+emulated" for the emulator."""
    native: list[str] = field(default_factory=list)
    """Optional slots that the backend fills itself."""
    accumulation: dict[str, str] = field(default_factory=dict)
    """For each float dtype, in what products are summed."""
    loading_s: float | None = None
    """Seconds until every kernel was compiled or found in CuPy's cache, and loaded."""
    cores: int | None = None
    """Processors of the host that the check may use."""
    python: str | None = None
    """The interpreter's version."""
    platform: str | None = None
    """Operating system and machine, as in "Linux x86_64"."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions of turret's distributions and of array libraries that are installed."""
    from_source: list[str] = field(default_factory=list)
    """turret's distributions that are not installed and were taken from the checkout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFailure:
    """A case that failed, crashed or took too long."""

    case: str
    """Its id, as `turret conformance -k` takes it."""
    status: str
    """`failed`, `crashed` or `timed out`."""
    message: str
    """Why, in the words of the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformance(Part):
    """The conformance suite, profile `full`. Ended by its time limit, it tells of the cases that were run."""

    jobs: int = 0
    """Processes that ran cases at once."""
    profile_cases: int = 0
    """Cases of the profile."""
    chosen: int = 0
    """Cases that were to be run; fewer than the profile's in a rehearsal."""
    counts: dict[str, int] = field(default_factory=dict)
    """Cases by how they ended: `passed`, `failed`, `crashed`, `timed out`, `expected failure`, `unsupported` or
    `skipped`."""
    executed: int = 0
    """Cases that exercised the backend: all that ended, but those `unsupported` and `skipped`."""
    passed: int = 0
    """Cases that passed."""
    failed: int = 0
    """Cases that `failures` lists."""
    failures: list[CaseFailure] = field(default_factory=list)
    """What failed, crashed or timed out."""
    problems: list[str] = field(default_factory=list)
    """What is wrong and no case: the ledger, the audit of the plugin's claims, a process that died between cases."""
    capabilities: dict[str, dict[str, int]] = field(default_factory=dict)
    """`counts` of every capability, without zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """One training run beside the same run on the cpu backend: same weights, same batches, same schedule."""

    status: Status
    """`failed` where a difference passes its bound, or the run ended early."""
    reason: str
    """Why it is not `passed`, in words; "" where it is."""
    model: str
    """The family, as `turret train --model` takes it: `decoder` (GPT) or `mini` (Llama)."""
    captured: bool
    """Whether whole steps ran as one program of the device."""
    losses: list[float]
    """The loss of every step, in nats a token."""
    reference: list[float]
    """The same of the cpu backend."""
    first_difference: float | None
    """Of the first step's losses, relative to the cpu backend's."""
    first_bound: float
    """The largest `first_difference` that passes: one forward pass, rounded in another order."""
    largest_difference: float | None
    """The largest of all steps, relative to the cpu backend's loss of that step."""
    at_step: int | None
    """The step, from 1, of the largest difference."""
    bound: float
    """The largest `largest_difference` that passes: rounding errors that training lets grow."""
    seconds: float
    """The run's wall clock, compiling included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Part):
    """Both model families, captured and not, on the built-in text."""

    steps: int = 0
    """Updates of each run."""
    runs: list[TrainingRun] = field(default_factory=list)
    """Those that were begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SanitizerRun:
    """One tool of compute-sanitizer over the smallest cases of every slot."""

    tool: str
    """`memcheck`, `racecheck`, `synccheck` or `initcheck`."""
    status: Status
    """`absent` where the tool refuses this device."""
    reason: str
    """Why it is not `passed`, in words; "" where it is."""
    errors: int | None
    """What the tool counted, null where it came to no end."""
    cases: int
    """Conformance cases that ran under it."""
    seconds: float
    """Wall clock."""
    lines: list[str]
    """The tool's first lines about errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sanitizer(Part):
    """compute-sanitizer; without it the part is `absent`, which is no failure."""

    path: str | None = None
    """The program that was found."""
    cases: list[str] = field(default_factory=list)
    """The cases that it ran."""
    tools: list[SanitizerRun] = field(default_factory=list)
    """One for each tool that was begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The best that the device did in this run, with nothing of ours but the call."""

    float32_gflops: float
    """GFLOP/s of a large square product by cuBLAS, summed as `facts.accumulation` says."""
    bfloat16_gflops: float | None
    """The same in bfloat16, null where the device lacks it."""
    copy_gbytes: float
    """GB/s of a large copy from device to device, counting bytes read and bytes written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTiming:
    """One call of a slot, warmed up: the best of several batches of calls, each ended by waiting for the device."""

    name: str
    """What is called, and on what."""
    slot: str
    """The slot."""
    dtype: str
    """The dtype of its arrays."""
    native: bool
    """Whether the slot is the backend's own."""
    status: Status
    """`failed` where the call raised, `skipped` where the time was over."""
    reason: str
    """Why it is not `passed`, in words; "" where it is."""
    microseconds: float | None
    """Of one call."""
    gflops: float | None
    """GFLOP/s, of the least arithmetic that any implementation has to do."""
    gbytes: float | None
    """GB/s, of the least bytes that any implementation has to move."""
    limit: Literal["arithmetic", "memory"] | None
    """Which ceiling is the nearer one."""
    of_ceiling: float | None
    """The share of that ceiling; null on the emulated device, whose times say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One program that makes the training step."""

    name: str
    """`captured` and `eager` are turret's; `torch_eager` and `torch_compile` are PyTorch's."""
    status: Status
    """For PyTorch also `absent`, where it or what it compiles with is not there or has no CUDA, and `skipped`, where
    its first turn took too long; neither is a failure."""
    reason: str
    """Why it is not `passed`, in words; "" where it is."""
    step_ms: float | None
    """Median over all steps of all turns but the first."""
    gflops: float | None
    """GFLOP/s, of the arithmetic that the step has to do."""
    first_s: float | None
    """Seconds of the first step, compiling included."""
    last_loss: float | None
    """After the last step."""
    loss_difference: float | None
    """The largest difference to the losses of the first contender, in nats."""
    samples: int
    """Steps that the median is of."""
    ratio: float | None
    """step_ms over that of turret's captured step: above 1 where turret is faster; null on the emulated device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """One training step of the same GPT by several programs: alternating turns, each in a process of its own."""

    shape: str
    """Batch, context, width, heads, layers."""
    rounds: int
    """Turns of each contender that were measured."""
    steps: int
    """Steps of a turn."""
    contenders: list[Contender]
    """turret first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmarks(Part):
    """Speed. It fails where something raises or losses disagree; being slow is no failure."""

    clock: Literal["device", "emulated", "host"] = "host"
    """What was timed: a GPU; the emulator, whose times say nothing; or a backend that is no GPU."""
    ceilings: Ceilings | None = None
    """Measured first, in the same process as the kernels."""
    kernels: list[KernelTiming] = field(default_factory=list)
    """One for each kernel and dtype."""
    steps: list[StepTiming] = field(default_factory=list)
    """One for each shape."""
    doubts: list[str] = field(default_factory=list)
    """Why figures may mislead: a kernel that passed its ceiling by far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCheck:
    """The file."""

    schema: int
    """The version of this description."""
    spec: str
    """The backend that was checked, as in `cuda` or `cuda:emulated`."""
    emulated: bool
    """Whether the emulator stood in for a GPU: then no time means anything."""
    rehearsal: bool
    """Whether sizes and choices are small, as on every device that is no real GPU."""
    passed: bool
    """What the exit status says: every part that was asked for passed, or is absent without being a failure."""
    verdict: str
    """One line."""
    left_out: list[str]
    """What a complete check has and this one was told to leave out, in words."""
    commit: str | None
    """The checkout's commit, null without git."""
    changed: bool | None
    """Whether the checkout differs from its commit, null without git."""
    started: str
    """The time of day in UTC."""
    seconds: float
    """Wall clock."""
    limit_s: float
    """What it was allowed."""
    facts: Facts
    """The device and what drives it."""
    conformance: Conformance
    """The conformance suite."""
    training: Training
    """Loss trajectories."""
    sanitizer: Sanitizer
    """compute-sanitizer."""
    benchmarks: Benchmarks
    """Speed."""
