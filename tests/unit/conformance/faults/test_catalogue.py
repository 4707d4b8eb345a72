from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import sys
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from turret.conformance.bench import Bench
from turret.conformance.case import Case, call_case
from turret.conformance.faults import run
from turret.conformance.faults.catalogue import CATALOGUE, by_name
from turret.conformance.faults.fault import Fault, fault
from turret.conformance.faults.opening import broken, infected, open_broken, shown
from turret.conformance.given import Call, Draw
from turret.conformance.oracle import activation as activation_oracle
from turret.conformance.oracle import softmax as softmax_oracle
from turret.conformance.profiles import GROUPS, PROFILES
from turret.registry import OpenBackend, open_backend
from turret.spi import (
    OPTIONAL_SLOTS,
    REQUIRED_SLOTS,
    ConfigError,
    DTypeError,
)
from turret.spi.array_api import Hooks

NAMES = [each.name for each in CATALOGUE]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_every_fault_has_a_name_of_its_own() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in NAMES)


@pytest.mark.parametrize("each", CATALOGUE, ids=NAMES)
def test_every_fault_says_where_it_happened_and_what_is_broken(each: Fault) -> None:
    url = urlsplit(each.url)
    assert url.scheme == "https" and url.netloc == "github.com"
    assert url.path.split("/")[3] in ("issues", "pull") and url.path.split("/")[4].isdigit()
    assert each.report.endswith(".") and each.summary
    assert each.capability in (*REQUIRED_SLOTS, *OPTIONAL_SLOTS, *GROUPS)
    assert each.slot in ("", *REQUIRED_SLOTS, *OPTIONAL_SLOTS)


@pytest.mark.parametrize("each", CATALOGUE, ids=NAMES)
def test_only_the_named_slot_is_replaced(each: Fault, opened: OpenBackend) -> None:
    table = opened.backend.capabilities()
    changed = each.wrap(table, opened.tools)
    differing = {name for name in OPTIONAL_SLOTS if getattr(changed, name) is not getattr(table, name)}
    differing |= {
        name for name in REQUIRED_SLOTS if getattr(changed.required, name) is not getattr(table.required, name)
    }
    # two kinds of faults listen at slots that go on working
    watched = set(REQUIRED_SLOTS) if each.name == "failed-call-poisons-the-next" else {"layout"}
    assert differing - (watched - {each.slot}) == ({each.slot} if each.slot else set())


def test_a_slot_of_the_backend_itself_is_what_gets_broken(opened: OpenBackend) -> None:
    class Native:
        def softmax(self, x: Any, /) -> Any:
            return x * 0 + 7

    table = dataclasses.replace(opened.backend.capabilities(), softmax=Native())  # type: ignore[arg-type]
    tools = dataclasses.replace(opened.tools, softmax=Native())  # type: ignore[arg-type]
    changed = by_name("softmax-ignores-transposed-strides").wrap(table, tools)
    assert changed.softmax is not None
    assert changed.softmax.softmax(normal(2, 3))[0, 0] == 7


def test_unknown_fault_is_named() -> None:
    with pytest.raises(ConfigError, match="no fault 'mask-off'"):
        by_name("mask-off")


def target_of(name: str, opened: OpenBackend) -> tuple[str, str]:
    info, device = infected(by_name(name), opened.info, "3")
    return info.target, device


def test_target_opens_the_good_device_with_the_fault_in_it(opened: OpenBackend) -> None:
    target, device = target_of("leak-per-new-shape", opened)
    assert target == "turret.conformance.faults.opening:open_broken"
    backend = open_broken(device)
    table = backend.capabilities()
    assert table is backend.capabilities() and table.linear is not None
    assert open_broken(device) is not backend
    backend.close()


def test_life_cycle_is_compared_with_a_good_backend_behind_the_same_target(opened: OpenBackend) -> None:
    asked: list[str] = []

    def body(bench: Bench) -> None:
        asked.append(bench.opened.device)
        bench.require(True, "")

    case = Case(id="lifecycle/x/0", body=body, kind="lifecycle")
    assert not run.Hunt(opened, seed=0).good(case).status.bad
    assert asked == [f"nothing.{opened.info.target}@"]
    assert open_broken(asked[0]).capabilities().linear is None


def test_opening_twice_gives_the_closed_one(opened: OpenBackend) -> None:
    fault = by_name("second-open-shares-closed-state")
    subject = broken(fault, opened)
    first, second = (open_broken(subject.device) for _ in range(2))
    full = second.capabilities().required.storage.full
    assert full((2,), 1.0, dtype="float32").tolist() == [1, 1]
    first.close()
    with pytest.raises(RuntimeError, match="was closed"):
        full((2,), 1.0, dtype="float32")
    assert broken(fault, opened).tools.storage.full((1,), 0.0, dtype="float32").shape == (1,)


def test_plugin_module_that_touches_is_shown_for_a_while(opened: OpenBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    each = by_name("import-touches-device")
    info, _ = infected(each, opened.info, "")
    with shown(each):
        points = {point.name: point for point in importlib.metadata.entry_points(group="turret")}
        module = points[info.name].module
        assert (dist := points[info.name].dist) is not None and dist.name == info.distribution
    assert info.name not in {point.name for point in importlib.metadata.entry_points(group="turret")}

    assert module not in sys.modules, "nothing else may import it"
    started: list[str] = []
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(threading.Thread, "start", lambda self: started.append(self.name))
    before = set(os.environ)
    described = importlib.import_module(module).turret_backends()
    monkeypatch.delitem(sys.modules, module)
    assert set(os.environ) - before == {"TURRET_CONFORMANCE_TOUCHED"} and started == ["device"]
    assert [(x.name, x.distribution, x.target) for x in described] == [(info.name, info.distribution, info.target)]


def softmax_case(name: str = "softmax/plain/3x5-f32") -> Case:
    def build(draw: Draw) -> Call:
        return Call("softmax", "softmax", (draw.normal(3, 5),))

    return call_case(name, build, softmax_oracle.softmax)


def gelu_case() -> Case:
    def build(draw: Draw) -> Call:
        return Call("activation", "gelu", (draw.of(np.array([-14.0, 1.0])),), {"form": "tanh"})

    return call_case("activation/far/2-f32", build, activation_oracle.gelu)


def never(bench: Bench) -> None:
    bench.fail("this case fails everywhere")


HARMLESS = Fault(
    name="harmless",
    capability="softmax",
    slot="softmax",
    kind="forward",
    url="https://github.com/x/y/issues/1",
    report="Nothing happened.",
    summary="nothing is wrong",
    wrap=lambda table, tools: table,
)


def test_a_fault_that_nothing_notices_is_a_survivor(opened: OpenBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "all_cases", lambda: (softmax_case(), gelu_case()))
    found = run.kill(HARMLESS, opened)
    assert found.killed_by is None and found.expressible
    assert found.cases == 1 and "none noticed" in found.message


def test_a_fault_is_killed_by_the_first_case_that_fails(opened: OpenBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    @fault(name="x", slot="softmax", url="", report="", summary="")
    def doubled(good: Any, tools: Any) -> Any:
        class Doubled:
            def softmax(self, x: Any, /) -> Any:
                return 2 * good.softmax(x)

        return Doubled()

    cases = [softmax_case(f"softmax/plain/{n}") for n in range(3)]
    monkeypatch.setattr(run, "all_cases", lambda: (gelu_case(), *cases))
    found = run.kill(doubled, opened)
    assert found.killed_by == "softmax/plain/0" and found.cases == 1
    assert "budgets" in found.message


def test_a_case_that_fails_on_the_good_backend_kills_nothing(
    opened: OpenBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Case(id="softmax/bad/0", body=never, kind="forward")
    monkeypatch.setattr(run, "all_cases", lambda: (bad, softmax_case()))
    assert run.kill(HARMLESS, opened).killed_by is None


def test_only_the_capabilitys_own_cases_hunt(opened: OpenBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    gelu = by_name("gelu-tanh-nan-below-minus-thirteen")
    monkeypatch.setattr(run, "all_cases", lambda: (softmax_case(), gelu_case()))
    assert run.kill(gelu, opened).killed_by == "activation/far/2-f32"
    monkeypatch.setattr(run, "all_cases", lambda: (softmax_case(),))
    assert run.kill(gelu, opened).killed_by is None


def test_faults_of_writing_need_arrays_that_can_be_written(make: Callable[..., OpenBackend]) -> None:
    frozen = make(hooks=Hooks(quiet=lambda: np.errstate(all="ignore")))
    found = run.Hunt(frozen, seed=0).kill(by_name("loss-overwrites-logits"), [])
    assert not found.expressible and found.killed_by is None and "in place" in found.message


@pytest.mark.parametrize(
    ("name", "why"),
    [("float64-passes-through-float32", "no float64"), ("hang-in-forked-child", "refuses to work in a forked child")],
)
def test_what_a_backend_does_not_do_hides_no_fault(name: str, why: str) -> None:
    found = run.Hunt(open_backend("metal:cpu"), seed=0).kill(by_name(name), [])
    assert not found.expressible and found.killed_by is None and why in found.message
    assert run.Hunt(open_backend("cpu"), seed=0).kill(by_name(name), []).expressible


def test_hunting_leaves_the_good_backend_open(opened: OpenBackend) -> None:
    subject = broken(by_name("leak-per-new-shape"), opened)
    subject.backend.close()
    assert not opened.backend.is_closed  # type: ignore[attr-defined]


def test_profiles_are_asked_for_what_they_promise() -> None:
    def scope(profile: str) -> set[str]:
        return {each.name for each in CATALOGUE if run.in_scope(each, PROFILES[profile])}

    assert scope("full") == set(NAMES)
    assert scope("primitives") < scope("inference") < scope("training") < scope("full")
    assert "rope-always-half-split" in scope("inference")
    assert "gated-silu-gradient-all-in-row-zero" not in scope("inference")
    assert "gated-silu-gradient-all-in-row-zero" in scope("training")
    assert "leak-per-new-shape" not in scope("primitives"), "the profile does not promise that slot"
    assert "second-open-shares-closed-state" in scope("primitives")
    assert "nf4-tail-block-scale-from-garbage" in scope("quant-nf4") - scope("serving")


def test_without_float64_a_request_for_it_is_not_refused(opened: OpenBackend) -> None:
    class Narrow(type(opened.backend)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            storage = self.table.required.storage

            class Refusing:
                def from_host(self, host: Any, /, *, dtype: Any = None) -> Any:
                    if (dtype or host.dtype.name) == "float64":
                        raise DTypeError("no float64")
                    return storage.from_host(host, dtype=dtype)

                def __getattr__(self, name: str) -> Any:
                    return getattr(storage, name)

            self.table = dataclasses.replace(
                self.table,
                required=dataclasses.replace(self.table.required, storage=Refusing()),
            )

    tools = broken(by_name("upload-narrows-float64"), OpenBackend.wrap(opened.info, Narrow())).tools
    assert tools.storage.from_host(np.ones(2)).dtype == np.float32
