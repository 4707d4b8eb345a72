from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from turret.conformance.audit import Audit
from turret.conformance.report import Report
from turret.conformance.results import Result

HOSTILE = (
    "</pre></details><script>alert(1)</script> & \"q\" 's' | a `b` ``` c\n# heading\n\x1b[31m\x00 \u202e \ud800 ```"
)


@pytest.fixture
def hostile() -> str:
    """What foreign code may say: markup of both kinds, control characters, a turned direction, half a character."""
    return HOSTILE


@pytest.fixture
def good(make_report: Callable[..., Report], make_result: Callable[..., Result]) -> Report:
    results = [
        make_result("storage/host/5-f32", budget_used=None),
        make_result("softmax/forward/5x65-f32", budget_used=0.43),
        make_result("softmax/forward/1000-f32", budget_used=0.21),
        make_result("rope/forward/T63-f32", native=False),
        make_result("rope/forward/T63-bf16", "skipped", native=False, message="the device has no bfloat16"),
        make_result("rope/forward/T64-bf16", "skipped", native=False, message="the device has no bfloat16"),
        make_result("compile/call/one", "unsupported", native=False, message="no compile slot"),
    ]
    facts = {"device": "stand-in on NumPy", "device_kind": "emulated"}
    audit = Audit(
        certified={"primitives": True, "full": False}, under=["profile primitives: holds, but is not claimed"]
    )
    report: Report = make_report("metal", results, facts=facts, audit=audit)
    return report


@pytest.fixture
def bad(make_report: Callable[..., Report], make_result: Callable[..., Result], hostile: str) -> Report:
    """Everything in it that may come from outside is hostile."""
    results = [
        make_result(f"softmax/forward/{hostile}", "failed", message=hostile),
        make_result("softmax/vjp/5x65", "crashed", message="signal 11\nin the driver"),
        make_result("softmax/vjp/5x66", "timed out", message="after 120 s"),
        make_result("loss/forward/3", "expected failure", message=f"known ({hostile}): got nan"),
        make_result("adam/step/3", "failed", message="newer than you", advisory=True),
        make_result("rope/forward/T63", "skipped", message=hostile),
        make_result("rope/forward/T64", "skipped", message="", capability=hostile),
    ]
    names = ("device", "device_kind", "distribution", "plugin_version", "plugin_spi", "platform", "python")
    facts: dict[str, Any] = dict.fromkeys(names, hostile) | {"libraries": {hostile: hostile}}
    report: Report = make_report(
        f"cuda{hostile}",
        results,
        facts=facts,
        problems=[hostile],
        advice=[hostile],
        audit=Audit(over=[hostile], under=[hostile], manifest=f"provides=frozenset([{hostile}])"),
    )
    return report
