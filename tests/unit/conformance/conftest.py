from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from turret.conformance.audit import Audit
from turret.conformance.instrument import Counts, watching_derived
from turret.conformance.report import Report
from turret.conformance.results import Result, Status
from turret.conformance.subject import Subject
from turret.registry import OpenBackend
from turret.spi import BackendInfo

OWN_ARRAY = Path(__file__).with_name("own_array.py")


def invented_result(case: str, status: str = "passed", **more: Any) -> Result:
    defaults = {
        "capability": case.partition("/")[0],
        "budget_used": 0.1 if status == "passed" else None,
        "native": True,
    }
    return Result(case=case, status=Status(status), **{**defaults, **more})


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


@pytest.fixture(scope="session")
def own_source() -> str:
    """The text of a right backend with an array class of its own; `@replaces(slot, method)` makes it a wrong one."""
    return OWN_ARRAY.read_text(encoding="utf-8")


@pytest.fixture
def own() -> ModuleType:
    """The same, imported afresh."""
    spec = importlib.util.spec_from_file_location("own_array", OWN_ARRAY)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def subject(own: ModuleType) -> Iterator[Subject]:
    """That backend, opened and counted. Wrong methods may be put in later: see `own.replaces`."""
    info = BackendInfo(name="own", distribution="turret-own", spi=">=1.0,<2", target="own:none", probe="own:none")
    counts = Counts()
    with watching_derived(counts):
        yield Subject(OpenBackend.wrap(info, own.Opened()), counts)
