"""One opened backend and the cases run on it, inside the process where they run."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turret import __version__
from turret.registry import OpenBackend, Registry
from turret.registry.guard import Failure, words
from turret.spi import FLOATS, SPI_VERSION, ConfigError, PluginError, TurretError

from .case import Case
from .execute import Rules, execute
from .instrument import Counts, uncounted, watching_derived, watching_host
from .perf.measure import advise, ceilings, doubts, in_words, measure
from .results import Result
from .subject import Subject
from .suite import all_cases

SUITE_VERSION = (1, 0)
ADVICE_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a report says about the examined backend and where it ran."""

    backend: str
    distribution: str
    plugin_version: str
    plugin_spi: str
    device: str
    device_kind: str
    dtypes: list[str]
    accumulation: dict[str, str]
    native: list[str]
    provides: list[str]
    declared_dtypes: list[str]
    memory_reported: bool
    core: str
    spi: str
    suite: str
    python: str
    platform: str
    libraries: dict[str, str]


class Session:
    """Runs cases on one opened backend; made by `open_session`."""

    def __init__(self, opened: OpenBackend, counts: Counts) -> None:
        self.subject = Subject(opened, counts)

    def run(self, case: Case, rules: Rules) -> Result:
        return execute(case, self.subject, rules, advisory=is_advisory(case, self.subject.opened.info.spi))

    def record(self, case: Case, rules: Rules, folder: Path) -> Result:
        """The same, with a script of it in `folder`. Raises: ConfigError where that cannot be written."""
        with self.subject.recorded(folder, case.id, rules.seed, asdict(self.facts())) as recorder:
            result = self.run(case, rules)
            if result.status.bad:
                recorder.failed(result.message)
        if recorder.lost is not None:
            reason = recorder.lost.strerror or recorder.lost
            raise ConfigError(f"{folder} cannot be written: {reason}; choose another place")
        return result

    def advice(self) -> list[str]:
        """Which derived slots a training step would gain most from, if they were native; quickly measured."""
        opened = uncounted(self.subject.opened)
        found = ceilings(opened.tools, seconds=ADVICE_SECONDS)
        measured = list(measure(opened, found, seconds=ADVICE_SECONDS, used=True))
        advice = in_words(advise(measured))
        return [*advice, doubt] if advice and (doubt := doubts(found, measured)) else advice

    def facts(self) -> Facts:
        opened, device, storage = self.subject.opened, self.subject.device, self.subject.table.required.storage
        floats = sorted(device.dtypes & FLOATS)
        matmul = self.subject.table.required.matmul
        return Facts(
            backend=opened.spec,
            distribution=opened.info.distribution,
            plugin_version=_version(opened.info.distribution),
            plugin_spi=opened.info.spi,
            device=device.name,
            device_kind=device.kind,
            dtypes=sorted(device.dtypes),
            accumulation={dtype: matmul.accumulation(dtype) for dtype in floats},
            native=sorted(opened.tools.native),
            provides=sorted(opened.info.provides),
            declared_dtypes=sorted(opened.info.dtypes),
            memory_reported=storage.memory() is not None,
            core=__version__,
            spi=f"{SPI_VERSION[0]}.{SPI_VERSION[1]}",
            suite=f"{SUITE_VERSION[0]}.{SUITE_VERSION[1]}",
            python=platform.python_version(),
            platform=f"{platform.system()} {platform.machine()}",
            libraries=_libraries(opened.info.distribution),
        )


@contextmanager
def open_session(spec: str) -> Iterator[Session]:
    """Opens `spec` afresh, with every slot and every composition counted.

    Raises: ConfigError, BackendNotFound, BackendUnavailable, PluginError, SpiMismatch.
    """
    counts = Counts()
    with watching_derived(counts):
        opened = Registry().open(spec)
        try:
            session = Session(opened, counts)
        except (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise PluginError(
                f"backend {spec!r} opened, but its storage cannot make a first array: {Failure(error)}; "
                "start with `storage.full`, `from_host`, `to_host` and `device`"
            ) from error
        try:
            with watching_host(counts, session.subject.native_type):
                yield session
        finally:
            opened.backend.close()


def serve(request: dict[str, Any], tell: Callable[..., None], further: Callable[[], list[str]]) -> None:
    """Runs the request's cases in order, then those that there are further, and tells how each went."""
    rules = Rules(**request["rules"])
    by_id = {case.id: case for case in all_cases()}
    try:
        with open_session(request["backend"]) as session:
            tell(opened=asdict(session.facts()))
            names, folder = request["cases"], request["record"]
            while names:
                for name in names:
                    tell(start=name)
                    case = by_id[name]
                    result = session.record(case, rules, Path(folder)) if folder else session.run(case, rules)
                    tell(result=result.as_json())
                tell(idle=True)
                names = further()
            if request["advise"]:
                tell(advice=session.advice())
            tell(closing=True)
        tell(closed=True)
    except TurretError as error:
        tell(refused=words(error))


def is_advisory(case: Case, written_for: str) -> bool:
    """Whether the case is newer than the interface version the plugin was written for, by one minor version."""
    floor = next(
        (part.strip().removeprefix(">=") for part in written_for.split(",") if part.strip().startswith(">=")), ""
    )
    major, _, minor = floor.partition(".")
    if not major.isdigit():
        return False
    return case.since > (int(major), int(minor or 0)) and case.since == SPI_VERSION


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _libraries(distribution: str) -> dict[str, str]:
    """Versions of what the plugin requires and has imported, and of NumPy."""
    try:
        needs = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        needs = []
    names = {match[0] for need in (*needs, "numpy") if (match := re.match(r"[A-Za-z0-9_.-]+", need))} - {"core"}
    found = {name: _version(name) for name in sorted(names)}
    return {name: version for name, version in found.items() if version and name.replace("-", "_") in sys.modules}
