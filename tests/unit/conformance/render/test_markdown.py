from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from turret.conformance.audit import Audit
from turret.conformance.render.markdown import cell, code, fence, page
from turret.conformance.report import Report


def outside_fences(text: str) -> list[str]:
    """The lines that a reader of Markdown would look at: a fence ends with at least as many marks as it began with."""
    lines, marks = [], ""
    for line in text.splitlines():
        ticks = re.match("`{3,}", line)
        if marks:
            if ticks and len(ticks[0]) >= len(marks) and line.strip("`") == "":
                marks = ""
        elif ticks:
            marks = ticks[0]
        else:
            lines.append(line)
    assert not marks, "a fence is left open"
    return lines


def without_code_spans(line: str) -> str:
    """A span runs from a row of backticks to the next row of the same length."""
    rest, out = line, ""
    while match := re.search("`+", rest):
        close = re.search(f"(?<!`){match[0]}(?!`)", rest[match.end() :])
        assert close is not None, f"a code span is left open: {line}"
        out, rest = out + rest[: match.start()] + "CODE", rest[match.end() + close.end() :]
    return out + rest


def table(text: str) -> dict[str, list[str]]:
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in outside_fences(text) if line.startswith("|")]
    return {row[0].strip().strip("`"): [each.strip() for each in row[1:]] for row in rows}


def test_the_table_counts_per_capability(good: Report) -> None:
    rows = table(page(good))
    assert rows["capability"] == ["made by", "passed", "failed", "unsupported", "skipped", "budget used"]
    assert rows["softmax"] == ["native", "2", "", "", "", "43 %"]
    assert rows["rope"] == ["derived", "1", "", "", "2", "10 %"]
    assert rows["compile"] == ["derived", "", "", "1", "", ""]


def test_verdict_device_kind_profiles_and_versions_are_told(good: Report) -> None:
    text = page(good)
    assert "Verdict: `passed: 4 passed, 1 unsupported, 2 skipped`" in text
    assert "- device: `stand-in on NumPy`, kind `emulated`" in text
    assert "- `primitives` certified\n- `full` does not hold" in text
    assert "suite 1.0, SPI 1.0, core 0.1.0" in text
    assert "- `profile primitives: holds, but is not claimed`" in text
    assert "- 2 skipped: `the device has no bfloat16` (`rope/forward/T63-bf16`, `rope/forward/T64-bf16`)" in text


def test_failures_are_told_in_full_with_the_way_to_repeat_them(bad: Report) -> None:
    text = page(replace(bad, backend="cuda:1", asked={**bad.asked, "seed": 7}))
    assert "### `softmax/vjp/5x65`: crashed\n\n```text\nsignal 11\nin the driver\n```" in text
    assert "turret conformance repro softmax/vjp/5x65 --backend cuda:1 --seed 7" in text
    assert "## Failures (4)" in text
    assert "## Expected failures (1)" in text
    assert "`adam/step/3`: failed (advice: " in text
    assert "## Corrected manifest" in text


def test_a_backend_that_did_not_open_is_a_failure_with_its_reason(make_report: Any) -> None:
    text = page(make_report("tpu", [], facts={}, problems=["no device"], audit=Audit()))
    assert "Verdict: `FAILED: no device`" in text
    assert "- device: not opened" in text
    assert table(text) == {}


def test_many_cases_with_one_reason_are_cut_and_counted(make_report: Any, make_result: Any) -> None:
    results = [make_result(f"rope/forward/T{n}", "skipped", message="no bfloat16") for n in range(30)]
    assert "(`rope/forward/T0`, " in page(make_report("cpu", results))
    assert "`rope/forward/T4` and 25 more)" in page(make_report("cpu", results))


def test_foreign_text_stays_in_its_span_its_fence_and_its_cell(bad: Report) -> None:
    text = page(bad)
    assert text.encode("utf-8").decode("utf-8") == text
    assert not set(text) & {"\x00", "\x1b", "\u202e", "\ud800"}
    outside = [without_code_spans(line) for line in outside_fences(text)]
    assert [line for line in outside if "script" in line or "heading" in line or "\\x1b" in line] == []
    assert {len(row) for row in table(text).values()} == {8}


FOREIGN = st.one_of(st.text(), st.text(alphabet="`| \n\ta"))


@given(FOREIGN)
def test_a_span_holds_any_text_on_one_line(text: str) -> None:
    assert without_code_spans(code(text)) in ("CODE", "(empty)")
    assert len(code(text).splitlines()) == 1
    assert re.search(r"(?<!\\)\|", cell(text)) is None


@given(FOREIGN)
@example("`\n````\n# out")
def test_a_fence_holds_any_text(text: str) -> None:
    assert outside_fences(fence(text)) == []


@pytest.mark.parametrize(
    ("text", "span"), [("a`b", "``a`b``"), ("`", "`` ` ``"), ("", "(empty)"), ("a\n b", "`a b`"), ("``", "``` `` ```")]
)
def test_spans_are_as_long_as_they_have_to_be(text: str, span: str) -> None:
    assert code(text) == span
