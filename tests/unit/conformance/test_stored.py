from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turret.conformance.stored import read
from turret.spi import ConfigError


@pytest.fixture
def data(make_report: Any, make_result: Any) -> dict[str, Any]:
    written: dict[str, Any] = make_report("cpu", [make_result("softmax/forward/5x65-f32")]).as_json()
    return written


def test_a_written_report_is_read_back(
    tmp_path: Path, data: dict[str, Any], make_report: Any, make_result: Any
) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    assert read(path) == make_report("cpu", [make_result("softmax/forward/5x65-f32")])


def test_a_report_of_a_backend_that_did_not_open_is_one(tmp_path: Path, make_report: Any) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(make_report("tpu", [], facts={}).as_json()), encoding="utf-8")
    assert read(path).facts == {}


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"3", b"\xff\xfe", b'{"schema": 99}', b"not json", b"[" * 9999, b"9" * 9999]
)
def test_what_is_no_report_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"other\.json"):
        read(path)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("facts",), []),
        (("facts",), {"core": "0.1.0"}),
        (("facts", "libraries"), "numpy"),
        (("facts", "native"), [1]),
        (("asked",), None),
        (("asked",), {}),
        (("problems",), "none"),
        (("audit", "certified"), []),
        (("audit", "over"), [None]),
        (("results",), [7]),
        (("results", 0, "status"), "fine"),
        (("results", 0, "case"), None),
        (("results", 0, "message"), 3),
        (("results", 0, "budget_used"), "much"),
        (("results", 0, "budget_used"), True),
        (("results", 0, "budget_used"), float("nan")),
        (("results", 0, "budget_used"), -1),
        pytest.param(("results", 0, "budget_used"), 10**400, id="beyond-float64"),
        (("started",), None),
        (("backend",), ["cpu"]),
        (("asked", "capabilities"), 3),
        (("results", 0, "colour"), "red"),
    ],
)
def test_a_report_with_one_wrong_part_is_refused(tmp_path: Path, data: Any, keys: tuple[Any, ...], value: Any) -> None:
    inner = data
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path = tmp_path / "bent.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bent\.json is no conformance report"):
        read(path)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="directory"):
        read(tmp_path)


def test_a_case_that_stands_twice_is_refused(tmp_path: Path, data: dict[str, Any]) -> None:
    path = tmp_path / "bent.json"
    path.write_text(json.dumps({**data, "results": 2 * data["results"]}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"1 result\(s\) are about a case that has one already"):
        read(path)


def test_an_infinite_error_is_no_number_of_json(make_report: Any, make_result: Any) -> None:
    report = make_report("cpu", [make_result("softmax/forward/5x65-f32", "failed", budget_used=float("inf"))])
    assert json.loads(json.dumps(report.as_json(), allow_nan=False))["results"][0]["budget_used"] is None
