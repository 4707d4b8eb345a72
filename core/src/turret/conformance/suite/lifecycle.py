"""Cases of a backend's life in a process: importing, opening, threads, forks, and what is left as it was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from turret.registry import OpenBackend
from turret.registry.opening import open_device
from turret.spi import TurretError

from ..bench import Bench
from ..case import Case
from ..child import FORK_SECONDS, ChildReport, plugin_module, report
from ..instrument import uncounted
from ..process_state import changed, snapshot
from ..threads import in_threads
from ..workload import Workload, check
from .lifecycle_memory import memory_cases
from .lifecycle_order import order_cases, right

ROUNDS = 20


def cases() -> Iterator[Case]:
    """Imports, listing, openings, processes, threads, then failures, order of work, and memory."""
    checks: dict[str, Callable[[Bench], None]] = {
        "import/plugin-is-light": _plugin_is_light,
        "import/plugin-leaves-the-process-alone": _plugin_state,
        "import/plugin-writes-nothing": partial(_writes_nothing, what="plugin"),
        "import/target-writes-nothing": partial(_writes_nothing, what="target"),
        "import/target-keeps-what-was-set": _target_state,
        "listing/without-loading": _listing,
        "open/twice-independent": _independent,
        "open/close-twice": _close_twice,
        "open/again-after-close": _again,
        "open/same-table": _same_table,
        "open/leaves-the-process-alone": _opening_state,
        "process/first-opening": _first_opening,
        "process/first-results": partial(_first_results, what="computing"),
        "process/silent-exit": _silent_exit,
        "process/spawned": _spawned,
        "process/forked": _forked,
        "process/after-fork": _after_fork,
        "threads/slots": _threads,
        "threads/own-device-each": _threads_opening,
        "state/computing": _computing_state,
    }
    for name, body in checks.items():
        yield Case(id=f"lifecycle/{name}", body=body, kind="lifecycle")
    yield from order_cases()
    yield from memory_cases()


def opened_again(bench: Bench) -> OpenBackend:
    """Another opening of the same device in this process; skips where the target cannot be imported."""
    info = bench.opened.info
    try:
        return open_device(info, bench.opened.device)
    except TurretError as error:
        if plugin_module(info):
            raise
        bench.skip(f"backend {info.name!r} exists in this process only: {error}")


def _child(bench: Bench, task: str) -> ChildReport:
    """The report of a process of its own; skips where the backend exists in this one only."""
    info = bench.opened.info
    found = report(task, info, bench.opened.device)
    bench.require(not found.failure, f"the process {found.failure}")
    missing = found.answer["missing"]
    if missing and not plugin_module(info):
        bench.skip(f"backend {info.name!r} exists in this process only: another cannot import its target ({missing})")
    bench.require(not missing, f"the target {info.target!r} cannot be imported in a fresh interpreter: {missing}")
    return found


def _plugin(bench: Bench) -> dict[str, Any]:
    found = _child(bench, "imports")
    if "plugin" not in found.answer:
        bench.skip(f"backend {bench.opened.info.name!r} was registered in this process: there is no plugin module")
    plugin: dict[str, Any] = found.answer["plugin"]
    return plugin


def _plugin_is_light(bench: Bench) -> None:
    """Describing a backend must cost nothing: `turret backends` imports the plugin of every installed one."""
    plugin = _plugin(bench)
    names = ", ".join(plugin["native"][:5])
    bench.require(not plugin["native"], f"importing the plugin module loads compiled libraries besides NumPy: {names}")
    bench.require(not plugin["target"], f"importing the plugin module imports the target {bench.opened.info.target!r}")
    bench.require(not plugin["threads"], f"importing the plugin module starts threads: {plugin['threads']}")


def _plugin_state(bench: Bench) -> None:
    state = _plugin(bench)["state"]
    bench.require(not state, f"importing the plugin module changes {state}")


def _writes_nothing(bench: Bench, what: str) -> None:
    found = _plugin(bench) if what == "plugin" else _child(bench, "imports").answer["target"]
    bench.require(not found["files"], f"importing the {what} writes {', '.join(found['files'][:5])}")


def _target_state(bench: Bench) -> None:
    """Array libraries add variables and filters of their own; what the user set has to stand."""
    state = _child(bench, "imports").answer["target"]["state"]
    bench.require(not state, f"importing the target changes {state}")


def _listing(bench: Bench) -> None:
    _plugin(bench)
    listing, name = _child(bench, "imports").answer["listing"], bench.opened.info.name
    bench.require(name in listing["names"], f"{name!r} is not among the listed backends {listing['names']}")
    bench.require(not listing["target"], "listing the installed backends imports the target")
    bench.require(not listing["state"], f"listing the installed backends changes {listing['state']}")


def _independent(bench: Bench) -> None:
    """Two openings share nothing that closing one could take from the other."""
    first, second = opened_again(bench), opened_again(bench)
    bench.require(first.backend is not second.backend, "two openings gave one object")
    kept = Workload(3)
    before = kept.run(second.tools)
    right(bench, first.tools, "the first opening")
    first.backend.close()
    right(bench, second.tools, "the second opening after the first was closed", 1)
    wrong = kept.wrong(before, flushes=bench.device.flushes_subnormals)
    bench.require(wrong is None, f"host results from before: {wrong}")
    second.backend.close()
    right(bench, bench.opened.tools, "the examined opening after two others were closed", 2)


def _close_twice(bench: Bench) -> None:
    opened = opened_again(bench)
    right(bench, opened.tools, "before closing")
    opened.backend.close()
    opened.backend.close()
    unused = opened_again(bench)
    unused.backend.close()
    unused.backend.close()
    right(bench, bench.opened.tools, "the examined opening afterwards", 1)


def _again(bench: Bench) -> None:
    for n in range(3):
        opened = opened_again(bench)
        right(bench, opened.tools, f"opening {n + 1}", n)
        opened.backend.close()


def _same_table(bench: Bench) -> None:
    """`capabilities` gives the same objects at every call."""
    first, again = (bench.opened.backend.capabilities() for _ in range(2))
    for name in (*type(first).__dataclass_fields__, *type(first.required).__dataclass_fields__):
        source = (first, again) if name in type(first).__dataclass_fields__ else (first.required, again.required)
        if name != "required":
            same = getattr(source[0], name) is getattr(source[1], name)
            bench.require(same, f"two calls of capabilities() gave two objects for {name}")


def _opening_state(bench: Bench) -> None:
    before = snapshot()
    opened = opened_again(bench)
    difference = changed(before, snapshot())
    opened.backend.close()
    bench.require(not difference, f"opening changes {difference}")
    difference = changed(before, snapshot())
    bench.require(not difference, f"closing changes {difference}")


def _computing_state(bench: Bench) -> None:
    before = snapshot()
    right(bench, bench.opened.tools, "the workload")
    difference = changed(before, snapshot())
    bench.require(not difference, f"computing changes {difference}")


def _first_opening(bench: Bench) -> None:
    opening = _child(bench, "process").answer["opening"]
    bench.require(not opening, f"the first opening of a process changes {opening}")


def _first_results(bench: Bench, what: str) -> None:
    state = _child(bench, "process").answer[what]
    bench.require(not state, f"the first results of a process change {state}")


def _silent_exit(bench: Bench) -> None:
    """Nothing hangs at exit, and stdout belongs to the program."""
    said = _child(bench, "process").said.strip()
    bench.require(not said, f"the backend writes to stdout: {said[:200]!r}")


def _spawned(bench: Bench) -> None:
    """A fresh process computes right while this one holds the same device."""
    right(bench, bench.opened.tools, "here")
    wrong = _child(bench, "process").answer["wrong"]
    bench.require(wrong is None, f"in another process: {wrong}")


def _fork_report(bench: Bench) -> dict[str, Any]:
    answer = _child(bench, "process").answer
    if "fork" not in answer:
        bench.skip("this platform has no fork")
    return answer


def _forked(bench: Bench) -> None:
    """A child that was forked after use computes right or says why it cannot; it neither hangs nor crashes."""
    fork = _fork_report(bench)["fork"]
    bench.require(
        not fork["hangs"],
        f"a child that was forked after the parent had computed did not answer small calls within {FORK_SECONDS:g} s; "
        "mostly a thread pool (OpenMP, MKL, one's own) is the cause, whose threads do not survive a fork: make it "
        "anew, or use one thread, in os.register_at_fork(after_in_child=...)",
    )
    bench.require(not fork["status"], f"a forked child crashed with wait status {fork['status']}")
    said = fork["text"]
    bench.require(said == "right" or said.startswith("raised "), f"a forked child computes wrong: {said}")


def _after_fork(bench: Bench) -> None:
    wrong = _fork_report(bench)["after fork"]
    bench.require(wrong is None, f"the parent, after its fork: {wrong}")


def _threads(bench: Bench) -> None:
    """Every thread with inputs of its own, twenty times; a result of another thread's inputs is wrong here."""
    tools = uncounted(bench.opened).tools

    def work(number: int) -> str | None:
        mine = Workload(10 + number)
        results = [mine.run(tools) for _ in range(ROUNDS)]
        verdicts = (mine.wrong(result, flushes=bench.device.flushes_subnormals) for result in results)
        return next((wrong for wrong in verdicts if wrong is not None), None)

    in_threads(bench, work)


def _threads_opening(bench: Bench) -> None:
    """Threads that open, use and close a device of their own."""
    opened_again(bench).backend.close()

    def work(number: int) -> str | None:
        opened = opened_again(bench)
        try:
            return check(opened.tools, 20 + number)
        finally:
            opened.backend.close()

    in_threads(bench, work)
