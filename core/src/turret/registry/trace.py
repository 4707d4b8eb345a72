"""The whole story of one choice: what was installed, what was tried, what spoke against it, and what won."""

from __future__ import annotations

import importlib.metadata
import re
import traceback
from dataclasses import dataclass

import numpy as np

from turret.spi import SPI_VERSION, ConfigError, TurretError

from . import scope
from .discovery import Entry, State
from .guard import attempt
from .names import AUTO, Spec
from .selection import Registry, stand_in
from .variables import BACKEND, PluginFilter, near_misses, seen

_CUPY_WHEEL = re.compile(r"cupy(-cuda\d+x?|-rocm[\d-]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One backend and how far it got. `blocked_by` is "" where nothing speaks against it."""

    name: str
    distribution: str
    version: str
    spi: str
    score: int
    state: State
    blocked_by: str
    probe_seconds: float | None
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What `turret doctor` prints. `choice` is "" where nothing can be chosen; `because` says why either way."""

    choice: str
    because: str
    candidates: list[Candidate]
    variables: dict[str, str]
    warnings: list[str]
    versions: dict[str, str]


def trace(registry: Registry | None = None) -> Trace:
    """Discovers everything, probes every candidate in a process of its own, opens nothing."""
    registry = scope.PROCESS if registry is None else registry
    warnings = [
        f"{name} is set but turret does not read it; did you mean {meant}?"
        for name, meant in near_misses(registry.environ).items()
    ]
    wheels = cupy_wheels()
    if len(wheels) > 1:
        warnings.append(f"several CuPy wheels are installed and overwrite each other: {', '.join(wheels)}; keep one")
    try:
        candidates = [_candidate(registry, entry) for entry in _in_order(registry)]
        known = frozenset(entry.name for entry in registry.installed())
        warnings += PluginFilter.read(registry.environ).unknown(known)
        choice, because = _choice(registry, candidates)
    except ConfigError as error:
        candidates, choice, because = [], "", str(error)
    return Trace(
        choice=choice,
        because=because,
        candidates=candidates,
        variables=seen(registry.environ),
        warnings=warnings,
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """What a bug report needs to say about this machine."""
    import platform

    core = attempt(lambda: importlib.metadata.version("core"))
    return {
        "core": core if isinstance(core, str) else "not installed",
        "spi": f"{SPI_VERSION[0]}.{SPI_VERSION[1]}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        **dict(wheel.split(" ", 1) for wheel in cupy_wheels()),
    }


def cupy_wheels() -> list[str]:
    """The installed distributions that each bring a package named cupy, with their versions.

    One that lies on the path twice counts once: the first is the one Python would import.
    """
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = attempt(lambda each=distribution: each.metadata["Name"].lower())  # type: ignore[misc]
        if isinstance(name, str) and _CUPY_WHEEL.fullmatch(name):
            found.setdefault(name, f"{name} {distribution.version}")
    return [found[name] for name in sorted(found)]


def _in_order(registry: Registry) -> list[Entry]:
    tried = registry.candidates()
    return tried + [entry for entry in registry.installed() if entry.info is None]


def _candidate(registry: Registry, entry: Entry) -> Candidate:
    state, blocked_by, seconds = entry.state, str(entry.error or ""), None
    if entry.info is not None:
        verdict = registry.verdict(entry.info)
        seconds = round(verdict.seconds, 3)
        state = "usable" if verdict.reason is None else "loadable"
        blocked_by = verdict.reason or stand_in(entry.info) or ""
    return Candidate(
        name=entry.name,
        distribution=entry.distribution,
        version=entry.version,
        spi=entry.info.spi if entry.info else "",
        score=entry.info.score if entry.info else 0,
        state=state,
        blocked_by=blocked_by,
        probe_seconds=seconds,
        traceback=_story(entry.error.__cause__) if entry.error else "",
    )


def _story(cause: BaseException | None) -> str:
    return "".join(traceback.format_exception(cause)) if cause is not None else ""


def _choice(registry: Registry, candidates: list[Candidate]) -> tuple[str, str]:
    if (around := scope.SCOPE.get()) is not None:
        return around.spec, "the enclosing use_backend"
    text = registry.environ.get(BACKEND, AUTO)
    if text != AUTO:
        reason = _against(registry, text)
        return (text, f"{BACKEND}={text}") if reason is None else ("", reason)
    for candidate in candidates:
        if candidate.state == "usable" and not candidate.blocked_by:
            return candidate.name, f"auto: the highest score among the usable ({candidate.score})"
    return "", "auto: no installed backend can be used here" if candidates else "auto: no backend is installed"


def _against(registry: Registry, text: str) -> str | None:
    try:
        spec = Spec.parse(text, source=BACKEND)
        reason = registry.verdict(registry.loadable(spec, source=BACKEND), spec.device).reason
    except TurretError as error:
        return str(error)
    return None if reason is None else f"{BACKEND}={text}, but {reason}"
