from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from turret.conformance.ledger import Entry, Ledger, apply, of_plugin, parse, read
from turret.conformance.results import Result, Status
from turret.spi import BackendInfo, ConfigError

GOOD = b"""
profiles = ["primitives", "training"]

[[expected]]
case = "matmul/accumulation/*-f16"
reason = "the library sums halves in halves"
link = "https://example.org/1"
expires = 2031-05-01
"""
TODAY = datetime.date(2030, 1, 1)
KNOWN = frozenset({"matmul/product/a-f32", "matmul/product/b-f32", "softmax/rows/a-f32"})
Make = Callable[..., Result]


def expecting(*cases: str, expires: datetime.date = datetime.date(2031, 5, 1)) -> Ledger:
    entries = [Entry(case=case, reason="known", link="https://example.org/1", expires=expires) for case in cases]
    return Ledger(source="conformance.toml of turret-x", expected=tuple(entries))


def changed(line: str, to: str) -> bytes:
    text = GOOD.decode()
    assert line in text
    return text.replace(line, to).encode()


def test_a_ledger_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(GOOD)
    ledger = read(file)
    assert ledger.profiles == ("primitives", "training")
    (entry,) = ledger.expected
    assert entry.case == "matmul/accumulation/*-f16"
    assert entry.expires == datetime.date(2031, 5, 1)
    assert str(file) in ledger.source


def test_an_empty_ledger_claims_and_expects_nothing() -> None:
    assert parse(b"", "x") == Ledger(source="x")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"profiles = [", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"profile = []", "unknown key 'profile'; there are: profiles, expected"),
        (changed('"training"', '"trainig"'), "profiles = .*trainig.*wanted a list of primitives, inference"),
        (changed('["primitives", "training"]', '"training"'), "wanted a list of primitives"),
        (changed('["primitives", "training"]', "[1, [2]]"), "wanted a list of primitives"),
        (b"expected = 3", r"`expected` has to be a list of \[\[expected\]\] tables"),
        (b"expected = [1]", r"`expected` has to be a list"),
        (b"[expected]\ncase = 'x'", r"`expected` has to be a list"),
        (changed('reason = "the library sums halves in halves"\n', ""), "expected entry 1 lacks 'reason'"),
        (changed('link = "https', 'url = "https'), "entry 1 lacks 'link', has the unknown key 'url'"),
        (changed('"the library sums halves in halves"', '"  "'), "entry 1: reason = '  '; wanted a text"),
        (changed('"the library sums halves in halves"', "3"), "entry 1: reason = 3; wanted a text"),
        (changed('"matmul/accumulation/*-f16"', '""'), "entry 1: case = ''; wanted a text"),
        (changed("2031-05-01", '"2031-05-01"'), "wanted a date such as 2027-01-31, without quotes"),
        (changed("2031-05-01", "2031-05-01T10:00:00"), "wanted a date such as"),
        (changed("2031-05-01", "2031-02-30"), "is not TOML"),
        (changed("2031-05-01", "true"), "expires = True; wanted a date"),
    ],
)
def test_a_malformed_ledger_is_refused_and_the_text_names_the_place(data: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        parse(data, "the ledger")
    assert str(refused.value).startswith("the ledger")


def test_the_entry_at_fault_is_named_by_number() -> None:
    with pytest.raises(ConfigError, match="expected entry 2 lacks"):
        parse(GOOD + b"\n[[expected]]\ncase = 'a'\n", "x")


def test_a_ledger_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"No such file.*give a readable conformance\.toml"):
        read(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read(tmp_path)


@pytest.mark.parametrize("status", [Status.FAILED, Status.CRASHED, Status.TIMED_OUT])
def test_an_expected_failure_is_told_apart_with_its_reason(make_result: Make, status: Status) -> None:
    result = make_result("matmul/product/a-f32", status.value, message="off by one")
    (judged,), problems = apply(expecting("matmul/product/a-f32"), [result], known=KNOWN, today=TODAY)
    assert judged.status is Status.EXPECTED_FAILURE
    assert judged.message == "known (https://example.org/1): off by one"
    assert not judged.status.bad
    assert problems == []


def test_an_expected_failure_that_passes_is_a_failure_that_says_to_remove_the_entry(make_result: Make) -> None:
    result = make_result("matmul/product/a-f32")
    (judged,), problems = apply(expecting("matmul/product/*"), [result], known=KNOWN, today=TODAY)
    assert judged.status is Status.FAILED
    assert "passed, but the ledger expects it to fail (known)" in judged.message
    assert "remove the entry 'matmul/product/*'" in judged.message
    assert problems == []


@pytest.mark.parametrize("status", [Status.UNSUPPORTED, Status.SKIPPED])
def test_what_did_not_run_is_neither(make_result: Make, status: Status) -> None:
    result = make_result("matmul/product/a-f32", status.value)
    assert apply(expecting("matmul/product/a-f32"), [result], known=KNOWN, today=TODAY) == ([result], [])


def test_other_cases_keep_their_result(make_result: Make) -> None:
    results = [make_result("softmax/rows/a-f32", "failed"), make_result("softmax/rows/a-f32")]
    assert apply(expecting("matmul/product/a-f32"), results, known=KNOWN, today=TODAY) == (results, [])


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("matmul/product/*", 2),
        ("*", 3),
        ("*/a-f32", 2),
        ("matmul/product/?-f32", 2),
        ("matmul/product/[a]-f32", 1),
        ("product", 2),
        ("matmul/product/a-f32", 1),
    ],
)
def test_a_pattern_with_a_wildcard_is_the_whole_id_and_one_without_a_part(
    make_result: Make, pattern: str, matched: int
) -> None:
    results = [make_result(case, "failed") for case in sorted(KNOWN)]
    judged, problems = apply(expecting(pattern), results, known=KNOWN, today=TODAY)
    assert sum(result.status is Status.EXPECTED_FAILURE for result in judged) == matched
    assert problems == []


def test_an_entry_that_matches_no_case_there_is_is_a_problem_even_if_nothing_ran() -> None:
    _, (problem,) = apply(expecting("matmul/prodct/*"), [], known=KNOWN, today=TODAY)
    assert re.search("conformance.toml of turret-x: 'matmul/prodct/\\*' matches no case; remove it", problem)


def test_an_entry_about_cases_left_out_of_this_run_is_no_problem(make_result: Make) -> None:
    results = [make_result("softmax/rows/a-f32")]
    assert apply(expecting("matmul/*"), results, known=KNOWN, today=TODAY) == (results, [])


def test_an_expired_entry_is_a_problem_and_excuses_nothing(make_result: Make) -> None:
    result = make_result("matmul/product/a-f32", "failed")
    ledger = expecting("matmul/*", expires=datetime.date(2029, 12, 31))
    (judged,), (problem,) = apply(ledger, [result], known=KNOWN, today=TODAY)
    assert judged.status is Status.FAILED
    assert "'matmul/*' expired on 2029-12-31" in problem


def test_an_entry_holds_on_its_last_day(make_result: Make) -> None:
    ledger = expecting("matmul/*", expires=TODAY)
    (judged,), problems = apply(ledger, [make_result("matmul/product/a-f32", "failed")], known=KNOWN, today=TODAY)
    assert judged.status is Status.EXPECTED_FAILURE
    assert problems == []


def test_a_plugin_without_a_ledger_has_an_empty_one() -> None:
    for target in ("json.decoder:JSONDecoder", "no_such_package.backend:open_device", "toplevel:open_device"):
        info = BackendInfo(name="x", distribution="turret-x", spi=">=1.0,<2", target=target, probe="a:b")
        assert of_plugin(info) == Ledger()


def test_the_ledger_of_a_plugin_lies_beside_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_with_ledger"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "conformance.toml").write_bytes(GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    target = "package_with_ledger.backend:open_device"
    info = BackendInfo(name="x", distribution="turret-x", spi=">=1.0,<2", target=target, probe="a:b")
    ledger = of_plugin(info)
    assert ledger.profiles == ("primitives", "training")
    assert ledger.source == "conformance.toml of turret-x"


@pytest.mark.parametrize("data", [b"x = " + b"9" * 5000, b"profiles = " + b"[" * 9000])
def test_what_the_parser_itself_chokes_on_is_refused_too(data: bytes) -> None:
    with pytest.raises(ConfigError, match="mine is not TOML"):
        parse(data, "mine")


def test_a_package_that_raises_has_no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "turret_raising").mkdir()
    (tmp_path / "turret_raising" / "__init__.py").write_text("raise RuntimeError('no driver')\n")
    monkeypatch.syspath_prepend(tmp_path)
    info = BackendInfo(
        name="raising", distribution="turret-raising", spi=">=1.0,<2", target="turret_raising.b:o", probe="a.b:c"
    )
    assert of_plugin(info) == Ledger()
