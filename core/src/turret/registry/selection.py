"""The registry: what is installed, what was opened, and which backend is taken when nobody says."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Mapping
from types import TracebackType

from turret.spi import BackendInfo, BackendNotFound, BackendUnavailable, PluginError, TurretError

from .discovery import Entry, entries
from .handshake import check
from .names import AUTO, Spec, not_found, pip_command
from .opened import OpenBackend
from .opening import open_device
from .probing import PROBE_SECONDS, Verdict, probe
from .variables import BACKEND, PluginFilter

log = logging.getLogger("turret")


class Registry:
    """Installed plugins, opened devices and probe verdicts of one process.

    Every method may be called from any thread; a device is opened once. Nothing is read or imported before the first
    call, and no failure of one plugin reaches another.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, *, probe_seconds: float = PROBE_SECONDS) -> None:
        self.environ: Mapping[str, str] = os.environ if environ is None else environ
        self.probe_seconds = probe_seconds
        self._lock = threading.RLock()
        self._entries: list[Entry] | None = None
        self._registered: dict[str, BackendInfo] = {}
        self._opened: dict[Spec, OpenBackend] = {}
        self._verdicts: dict[Spec, Verdict] = {}
        self._auto: OpenBackend | None = None
        self._default: OpenBackend | None = None

    def installed(self) -> list[Entry]:
        """One entry per backend, broken ones included, ordered by name.

        Raises: ConfigError where TURRET_PLUGINS or TURRET_DISABLE_PLUGINS cannot be read.
        """
        with self._lock:
            if self._entries is None:
                self._entries = entries(PluginFilter.read(self.environ), list(self._registered.values()))
            return list(self._entries)

    def register(self, info: BackendInfo) -> Registration:
        """Adds a backend for this process without installing it; the result takes it away again.

        Raises: PluginError, SpiMismatch; PluginError also for a name that is already registered.
        """
        check(info)
        with self._lock:
            if info.name in self._registered:
                raise PluginError(f"backend {info.name!r} is already registered; unregister that one first")
            self._registered[info.name] = info
            self._forget(info.name)
        return Registration(self, info)

    def open(self, spec: str, *, source: str = "backend") -> OpenBackend:
        """The device that `spec` names, opened at the first call; never another one. "auto" chooses.

        Raises: ConfigError, BackendNotFound, BackendUnavailable, PluginError, SpiMismatch.
        """
        wanted = Spec.parse(spec, source=source)
        if wanted.name == AUTO:
            return self.auto()
        return self._opened.get(wanted) or self._open(self.loadable(wanted, source=source), wanted)

    def default(self) -> OpenBackend:
        """What TURRET_BACKEND says, or else what `auto` finds; the variable is read once, here."""
        if self._default is None:
            with self._lock:
                if self._default is None:
                    self._default = self.open(self.environ.get(BACKEND, AUTO), source=BACKEND)
        return self._default

    def loadable(self, spec: Spec, *, source: str = "backend") -> BackendInfo:
        """The checked data of the backend that `spec` names.

        Raises: BackendNotFound, or the recorded error of a broken plugin with its cause.
        """
        entry = self._find(spec.name) or self._find_again(spec.name)
        if entry is None:
            raise not_found(spec, {e.name for e in self.installed()}, source=source)
        return entry.loaded()

    def verdict(self, info: BackendInfo, device: str = "") -> Verdict:
        """Whether a device works, found in a separate process and remembered."""
        spec = Spec(info.name, device)
        with self._lock:
            if spec not in self._verdicts:
                self._verdicts[spec] = probe(info, device, seconds=self.probe_seconds)
            return self._verdicts[spec]

    def candidates(self) -> list[Entry]:
        """The loadable entries in the order `auto` tries them: highest score first, then the name."""
        able = [(entry.info.score, entry.name, entry) for entry in self.installed() if entry.info is not None]
        return [entry for *_, entry in sorted(able, key=lambda each: each[:2], reverse=True)]

    def auto(self) -> OpenBackend:
        """The first candidate whose probe passes and that opens; the choice and its reason are logged.

        Raises: BackendNotFound where nothing is installed; BackendUnavailable naming every reason.
        """
        with self._lock:
            if self._auto is None:
                self._auto = self._choose()
            return self._auto

    def _choose(self) -> OpenBackend:
        passed_over: list[str] = []
        for entry in self.candidates():
            assert entry.info is not None
            reason = stand_in(entry.info) or self.verdict(entry.info).reason
            if reason is None:
                try:
                    opened = self._open(entry.info, Spec(entry.name))
                except TurretError as error:
                    reason = f"its probe passed, but opening failed: {error}"
                else:
                    over = f"; passed over {'; '.join(passed_over)}" if passed_over else ""
                    log.info("backend %s chosen by auto: score %d%s", entry.name, entry.info.score, over)
                    return opened
            passed_over.append(f"{entry.name} (score {entry.info.score}): {reason}")
        broken = [f"{entry.name}: {entry.error}" for entry in self.installed() if entry.error is not None]
        if reasons := passed_over + broken:
            raise BackendUnavailable(f"no installed backend can be used here: {'; '.join(reasons)}; try: turret doctor")
        raise BackendNotFound(f"no backend is installed; install one, for example with: {pip_command('cpu')}")

    def _open(self, info: BackendInfo, spec: Spec) -> OpenBackend:
        with self._lock:
            if spec not in self._opened:
                self._opened[spec] = open_device(info, spec.device)
            return self._opened[spec]

    def _find(self, name: str) -> Entry | None:
        return next((entry for entry in self.installed() if entry.name == name), None)

    def _find_again(self, name: str) -> Entry | None:
        """Looks afresh: in a notebook the plugin may have been installed a moment ago."""
        with self._lock:
            importlib.invalidate_caches()
            self._entries = None
            return self._find(name)

    def _forget(self, name: str) -> None:
        self._entries = self._auto = self._default = None
        self._opened = {spec: opened for spec, opened in self._opened.items() if spec.name != name}
        self._verdicts = {spec: verdict for spec, verdict in self._verdicts.items() if spec.name != name}

    def unregister(self, info: BackendInfo) -> None:
        """Undoes `register`; doing it twice is allowed."""
        with self._lock:
            if self._registered.get(info.name) is info:
                del self._registered[info.name]
                self._forget(info.name)


class Registration:
    """Holds one in-process registration: call it, or leave it as a context, to undo it."""

    def __init__(self, registry: Registry, info: BackendInfo) -> None:
        self._registry = registry
        self._info = info

    def __call__(self) -> None:
        self._registry.unregister(self._info)

    def __enter__(self) -> BackendInfo:
        return self._info

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self()


def stand_in(info: BackendInfo) -> str | None:
    """Why `auto` never takes this backend's default device, or None."""
    return "its default device stands in for hardware that is not here" if "" in info.stand_in_devices else None
