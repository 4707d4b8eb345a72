from __future__ import annotations

import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from turret.conformance.audit import Audit
from turret.conformance.render.html import page
from turret.conformance.render.style import DARK, LIGHT
from turret.conformance.report import Report

VOID = {"meta", "br", "wbr"}
LOADS = {"script", "link", "img", "iframe", "object", "embed", "audio", "video", "source", "base", "form"}


class Document(HTMLParser):
    """Checks that tags nest, and keeps elements, ids and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[list[tuple[str, str]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text.append(data)
        if "td" in self.open or "th" in self.open:
            tag, before = self.cells[-1][-1]
            self.cells[-1][-1] = (tag, f"{before} {data}".strip())

    def row(self, name: str) -> list[str]:
        (found,) = [row for row in self.cells if row[0][1].replace(" ", "") == name]
        return [" ".join(text.split()) for _, text in found[1:]]

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def test_every_capability_shows_counts_maker_and_the_largest_budget(good: Report) -> None:
    document = Document(page([good]))
    assert document.row("softmax") == ["2 passed native 43 % of budget"]
    assert document.row("rope") == ["1 passed 2 skipped derived 10 % of budget"]
    assert document.row("compile") == ["1 unsupported derived"]
    assert document.row("storage") == ["1 passed native"]
    assert "width:43%" in page([good])


def test_every_outcome_is_named(bad: Report) -> None:
    document = Document(page([bad]))
    assert document.row("softmax") == ["1 failed 1 crashed 1 timed out native"]
    assert document.row("loss") == ["1 expected failure native"]
    assert document.row("verdict") == ["✗ FAILED 5 of 7 cases executed"]


def test_a_stand_in_shows_its_kind_in_the_head_of_its_column(good: Report) -> None:
    head = Document(page([good])).cells[0]
    assert head[1] == ("th", "metal device: stand-in on NumPy emulated")


def test_profiles_verdict_and_versions_are_shown(good: Report) -> None:
    document = Document(page([good]))
    assert document.row("profiles") == ["✓ primitives certified ✗ full does not hold"]
    assert document.row("verdict") == ["✓ passed 4 of 7 cases executed"]
    assert document.row("plugin") == ["turret-metal 0.1.0"]
    assert "suite 1.0, SPI 1.0, core 0.1.0, turret-metal 0.1.0 (for SPI >=1.0,<2), numpy 2.4.0" in document.words


def test_backends_stand_side_by_side_sorted_by_name(make_report: Any, make_result: Any, good: Report) -> None:
    others = [make_report(name, [make_result("softmax/forward/5x65-f32")]) for name in ("tpu", "cpu")]
    document = Document(page([*others, good]))
    assert [text.split()[0] for _, text in document.cells[0]] == ["backend", "cpu", "metal", "tpu"]
    assert document.row("softmax") == [
        "1 passed native 10 % of budget",
        "2 passed native 43 % of budget",
        "1 passed native 10 % of budget",
    ]
    assert document.row("rope") == ["not run", "1 passed 2 skipped derived 10 % of budget", "not run"]
    assert {len(row) for row in document.cells} == {4}


def test_capabilities_come_in_the_order_of_the_suite(make_report: Any, make_result: Any) -> None:
    narrow = make_report("a", [make_result("rope/forward/1")])
    wide = make_report("b", [make_result(f"{name}/x/1") for name in ("later", "storage", "softmax", "rope")])
    names = [row[0][1] for row in Document(page([narrow, wide])).cells]
    assert names[names.index("storage") :] == ["storage", "softmax", "rope", "later"]


def test_failures_are_told_in_full_with_the_way_to_repeat_them(bad: Report) -> None:
    seeded = replace(bad, backend="cuda:1", asked={**bad.asked, "seed": 7})
    words = Document(page([seeded])).words
    assert "softmax/vjp/5x65 crashed" in words
    assert "signal 11 in the driver turret conformance repro softmax/vjp/5x65 --backend cuda:1 --seed 7" in words
    assert "advice: newer than the interface" in words
    assert "provides=frozenset([" in words


def test_reasons_stand_once_with_all_their_cases(good: Report) -> None:
    words = Document(page([good])).words
    assert words.count("the device has no bfloat16") == 1
    assert "2 skipped: the device has no bfloat16 rope/forward/T63-bf16 , rope/forward/T64-bf16" in words
    assert "1 unsupported: no compile slot compile/call/one" in words


def test_only_what_went_wrong_is_unfolded(good: Report, bad: Report) -> None:
    folds = [attributes for tag, attributes in Document(page([good, bad])).elements if tag == "details"]
    outer = {str(each["id"]): "open" in each for each in folds if each.get("class") == "backend"}
    assert outer == {"backend-1": True, "backend-2": False}


def test_a_backend_that_did_not_open_is_a_failure_with_its_reason(make_report: Any) -> None:
    closed = make_report("tpu", [], facts={}, problems=["tpu does not open: no device"], audit=Audit())
    document = Document(page([closed]))
    assert document.row("verdict") == ["✗ FAILED 0 of 0 cases executed"]
    assert document.row("plugin") == ["not opened"]
    assert "FAILED: tpu does not open: no device" in document.words


def test_foreign_text_stays_text(bad: Report, hostile: str) -> None:
    text = page([bad], title=hostile)
    document = Document(text)
    assert "script" not in {tag for tag, _ in document.elements}
    assert "alert(1)" in document.words
    assert text.encode("utf-8").decode("utf-8") == text
    assert not set(text) & {"\x00", "\x1b", "\u202e", "\ud800"}
    assert "\\x1b[31m\\x00 \\u202e \\ud800" in document.words


def test_the_page_needs_nothing_beside_itself(good: Report, bad: Report) -> None:
    text = page([good, bad])
    document = Document(text)
    assert {tag for tag, _ in document.elements} & LOADS == set()
    loading = {"src", "srcset", "data", "action", "poster", "background"}
    for _, attributes in document.elements:
        assert not any(name in loading or name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    style = text[text.index("<style>") : text.index("</style>")]
    assert not re.search(r"url\(|@import|@font-face", style)


def test_tables_name_their_rows_and_columns_and_links_lead_somewhere(good: Report, bad: Report) -> None:
    document = Document(page([good, bad]))
    heads = [attributes for tag, attributes in document.elements if tag == "th"]
    assert {each.get("scope") for each in heads} == {"row", "col"}
    assert all(row[0][0] == "th" for row in document.cells)
    ids = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {(attributes["href"] or "")[1:] for _, attributes in document.elements if "href" in attributes}
    targets |= {
        attributes["aria-labelledby"] or "" for _, attributes in document.elements if "aria-labelledby" in attributes
    }
    assert targets <= set(ids)
    assert ("html", {"lang": "en"}) in document.elements


def test_both_schemes_of_colour_can_be_read() -> None:
    assert "prefers-color-scheme: dark" in page([])
    for theme, name, ground in itertools.product(
        (LIGHT, DARK), ("text", "muted", "link", "good", "bad", "warn"), ("page", "panel")
    ):
        assert contrast(theme[name], theme[ground]) >= 4.5, (name, ground)
    assert min(contrast(theme["bar"], theme["page"]) for theme in (LIGHT, DARK)) >= 3


@pytest.mark.parametrize("reports", [0, 1, 4])
def test_any_number_of_reports_is_a_page(good: Report, reports: int) -> None:
    document = Document(page([good] * reports))
    assert ("There is no report to show." in document.words) == (reports == 0)


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours. Source: WCAG 2.2, definitions of relative luminance and contrast ratio."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_formula_of_contrast_is_the_published_one() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
