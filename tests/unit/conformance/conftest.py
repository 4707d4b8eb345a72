from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from turret.conformance.audit import Audit
from turret.conformance.report import Report
from turret.conformance.results import Result, Status


def invented_result(case: str, status: str = "passed", **more: Any) -> Result:
    defaults = {"budget_used": 0.1 if status == "passed" else None, "native": True}
    return Result(case=case, capability=case.partition("/")[0], status=Status(status), **{**defaults, **more})


def invented_report(
    backend: str, results: Sequence[Result], *, facts: dict[str, Any] | None = None, **more: Any
) -> Report:
    """facts: changes to invented ones; {} for a backend that did not open."""
    known = {
        "backend": backend,
        "distribution": f"turret-{backend}",
        "plugin_version": "0.1.0",
        "plugin_spi": ">=1.0,<2",
        "device": f"{backend} device",
        "device_kind": backend,
        "dtypes": ["float32", "int32"],
        "accumulation": {"float32": "float32"},
        "native": ["softmax"],
        "provides": ["softmax"],
        "declared_dtypes": ["float32", "int32"],
        "memory_reported": False,
        "core": "0.1.0",
        "spi": "1.0",
        "suite": "1.0",
        "python": "3.11.9",
        "platform": "Linux x86_64",
        "libraries": {"numpy": "2.4.0"},
    }
    asked = {
        "profile": "full",
        "capabilities": [],
        "pattern": "",
        "isolate": False,
        "timeout_s": 120.0,
        "seed": 0,
        "forbid_derived": False,
        "forbid_host": False,
    }
    made = Report(
        backend=backend,
        facts={} if facts == {} else {**known, **(facts or {})},
        asked=asked,
        started="2026-05-04T03:02:01+00:00",
        seconds=12.5,
        results=list(results),
        problems=[],
        audit=Audit(certified={"primitives": True}),
    )
    return replace(made, **more)


@pytest.fixture
def make_result() -> Callable[..., Result]:
    return invented_result


@pytest.fixture
def make_report() -> Callable[..., Report]:
    return invented_report
