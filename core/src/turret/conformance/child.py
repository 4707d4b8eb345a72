"""The program of the lifecycle cases that need a process of their own, and how to start it.

It reads a request as JSON from stdin and writes its report as JSON to the file that the request names.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.machinery
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from turret import registry
from turret.registry import OpenBackend
from turret.registry.guard import Failure, attempt
from turret.registry.opening import open_device
from turret.registry.processes import ending, kill
from turret.spi import BackendInfo

from .process_state import changed, snapshot
from .workload import check

SECONDS, FORK_SECONDS = 60.0, 15.0
START = "import json, sys; r = json.load(sys.stdin); sys.path[:] = r['path']; "
START += f"from {__name__} import main; main(r)"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChildReport:
    """What a child came to. failure: why there is none, or empty. answer: its own words. said: its stdout."""

    failure: str = ""
    answer: dict[str, Any] = dataclasses.field(default_factory=dict)
    said: str = ""


@cache
def report(task: str, info: BackendInfo, device: str) -> ChildReport:
    """Runs the child once per process, task and device; it is killed with its own children when its time is over."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in ("home", "work"):
            (folder / each).mkdir()
        path = [os.path.abspath(each or os.curdir) for each in sys.path]
        request: dict[str, Any] = {
            "task": task,
            "path": path,
            "answer": str(folder / "answer"),
            "plugin": plugin_module(info),
        }
        request |= {"info": _plain(info), "device": device, "watched": [str(folder / "home"), str(folder / "work")]}
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        if task == "imports":
            environment |= {"HOME": str(folder / "home"), "USERPROFILE": str(folder / "home")}
        with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
            child = subprocess.Popen(
                [sys.executable, "-c", START],
                stdin=subprocess.PIPE, stdout=out, stderr=err, text=True, cwd=folder / "work", env=environment,
                start_new_session=True,
            )  # fmt: skip
            failure = _wait(child, json.dumps(request))
            texts = [(folder / each).read_text(errors="replace") for each in ("out", "err")]
        last = ([line for line in texts[1].splitlines() if line.strip()] or ["nothing on stderr"])[-1]
        if failure or not (folder / "answer").exists():
            return ChildReport(failure=f"{failure or 'ended without an answer'}; its last words: {last}")
        return ChildReport(answer=json.loads((folder / "answer").read_text()), said=texts[0])


def works_in_a_fork(opened: OpenBackend) -> bool:
    """Whether a child that is forked after use computes; a backend may refuse, or a platform have no fork."""
    fork = report("process", opened.info, opened.device).answer.get("fork", {})
    return bool(fork.get("text") == "right")


def plugin_module(info: BackendInfo) -> str:
    """The module of the entry point that brings this backend; empty where it is not installed."""
    for point in importlib.metadata.entry_points(group="turret"):
        if point.dist is not None and point.dist.name.lower().replace("_", "-") == info.distribution.lower():
            return point.module
    return ""


def _wait(child: subprocess.Popen[str], request: str) -> str:
    try:
        child.communicate(request, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        kill(child)
        return f"did not end within {SECONDS:.0f} s and was killed"
    return ending(child.returncode) if child.returncode else ""


def _plain(info: BackendInfo) -> dict[str, Any]:
    values = dataclasses.asdict(info)
    return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in values.items()}


def main(request: dict[str, Any]) -> None:
    """The child's side of `report`."""
    values: dict[str, Any] = {k: frozenset(v) if isinstance(v, list) else v for k, v in request["info"].items()}
    info = BackendInfo(**values)
    answer = _imports(info, request) if request["task"] == "imports" else _process(info, request["device"])
    Path(request["answer"]).write_text(json.dumps(answer))


def _imports(info: BackendInfo, request: dict[str, Any]) -> dict[str, Any]:
    """What importing the plugin's module, listing, and importing the target do to a fresh interpreter."""
    found: dict[str, Any] = {}
    target = info.target.partition(":")[0]
    if request["plugin"]:
        before, modules = snapshot(), set(sys.modules)
        importlib.import_module(request["plugin"])
        found["plugin"] = {
            "state": changed(before, snapshot()),
            "threads": [each.name for each in threading.enumerate()[1:]],
            "native": sorted(filter(_is_native, set(sys.modules) - modules)),
            "files": _files(request),
            "target": target in sys.modules,
        }
        names = [entry.name for entry in registry.installed() if entry.info is not None]
        found["listing"] = {"names": names, "target": target in sys.modules, "state": changed(before, snapshot())}
    before = snapshot()
    found["missing"] = _missing(target)
    if not found["missing"]:
        found["target"] = {"state": changed(before, snapshot(), imported=True), "files": _files(request)}
    return found


def _is_native(name: str) -> bool:
    """Compiled modules of others than Python and NumPy: what array libraries are made of."""
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None) or ""
    compiled = any(origin.endswith(suffix) for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    return compiled and name.partition(".")[0] not in {*sys.stdlib_module_names, "numpy"}


def _files(request: dict[str, Any]) -> list[str]:
    return sorted(str(path) for folder in request["watched"] for path in Path(folder).rglob("*"))


def _missing(target: str) -> str:
    try:
        importlib.import_module(target)
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _process(info: BackendInfo, device: str) -> dict[str, Any]:
    """Opens the device for the first time here, computes, forks, and computes again."""
    found: dict[str, Any] = {"missing": _missing(info.target.partition(":")[0])}
    if found["missing"]:
        return found
    states = [snapshot()]
    opened = open_device(info, device)
    states.append(snapshot())
    found["wrong"] = check(opened.tools)
    states.append(snapshot())
    found["opening"] = changed(*states[:2], imported=True)
    found["computing"] = changed(*states[1:], imported=True)
    if sys.platform != "win32":
        found["fork"] = _fork(opened.tools)
        found["after fork"] = check(opened.tools, 2)
    opened.backend.close()
    return found


def _fork(tools: Any) -> dict[str, Any]:
    """What a child forked after use says about its own computation."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of every fork beside threads
        child = os.fork()
    if child == 0:
        try:
            answer = attempt(lambda: check(tools, 1) or "right")
            os.write(write, (f"raised {answer}" if isinstance(answer, Failure) else answer).encode())
        finally:
            os._exit(0)  # a forked child must not return into its parent's code
    os.close(write)
    deadline = time.monotonic() + FORK_SECONDS
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"hangs": True, "status": 0, "text": ""}
        time.sleep(0.01)
    return {"hangs": False, "status": done[1], "text": os.read(read, 4096).decode(errors="replace")}
