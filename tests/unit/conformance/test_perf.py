from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from turret.cli import main
from turret.conformance.perf.measure import Ceilings, Measured, advise, as_json, ceilings, in_words, measure, timed
from turret.conformance.perf.workloads import workloads
from turret.conformance.subject import Subject
from turret.registry import OpenBackend
from turret.spi import OPTIONAL_SLOTS, REQUIRED_SLOTS


def invented(slot: str, seconds: float, *, roofline: float = 0.5, native: bool = False, per_step: int = 1) -> Measured:
    return Measured(
        name=f"{slot}/call",
        slot=slot,
        native=native,
        seconds=seconds,
        gflops=1.0,
        gbytes=1.0,
        roofline=roofline,
        per_step=per_step,
    )


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Ceilings:
    plain: OpenBackend = request.getfixturevalue("plain")
    return ceilings(plain.tools, seconds=0.01)


def test_ceilings_are_positive_and_finite(found: Ceilings) -> None:
    assert 0 < found.gflops < math.inf
    assert found.gbytes and all(0 < rate < math.inf for rate in found.gbytes.values())


def test_the_roofline_is_the_slower_of_computing_and_moving(found: Ceilings) -> None:
    work = found.gflops * 1e9
    assert found.seconds(work, 0) == pytest.approx(1.0)
    assert found.seconds(2 * work, 1.0) == pytest.approx(2.0)
    assert found.seconds(0, 1e12) > found.seconds(0, 1e9) > 0


def test_every_slot_has_a_workload_with_figures_that_make_sense() -> None:
    all_of_them = list(workloads())
    assert {each.slot for each in all_of_them} >= set(OPTIONAL_SLOTS) - {"compile", "random"}
    assert {each.slot for each in all_of_them} <= {*OPTIONAL_SLOTS, *REQUIRED_SLOTS}
    assert len({each.name for each in all_of_them}) == len(all_of_them)
    assert all(each.flops >= 0 and each.bytes > 0 and each.per_step >= 0 for each in all_of_them)


def test_the_slots_asked_for_are_measured_and_told_native_or_derived(plain: OpenBackend, found: Ceilings) -> None:
    got = list(measure(plain, found, slots=("softmax", "indexing"), seconds=0.01))
    assert {each.slot for each in got} == {"softmax", "indexing"}
    assert all(each.native == (each.slot == "indexing") for each in got)
    assert all(each.seconds > 0 and each.roofline >= 0 and math.isfinite(each.gbytes) for each in got)


def test_a_call_is_made_in_every_round_and_waited_for(subject: Subject, own: Any) -> None:
    calls: list[int] = []
    waited: list[int] = []
    own.replaces("storage", "synchronize")(lambda right, *arrays: waited.append(len(arrays)))

    def run() -> Any:
        calls.append(1)
        return subject.opened.tools.storage.full((2,), 0.0, dtype="float32")

    assert timed(run, subject.opened.tools, seconds=1e-9) > 0
    assert len(calls) == len(waited) > 3
    assert set(waited) == {1}


def test_advice_names_derived_slots_of_a_step_by_what_they_could_save() -> None:
    measured = [
        invented("matmul", 9.0, native=True),
        invented("softmax", 4.0, roofline=0.9),  # saves 0.4
        invented("linear", 3.0, roofline=0.1),  # saves 2.7
        invented("adam", 1.0, roofline=0.2, per_step=2),  # saves 1.6
        invented("rope", 50.0, per_step=0),  # no part of a step
    ]
    advice = advise(measured)
    assert [each.slot for each in advice] == ["linear", "adam", "softmax"]
    assert advice[0].seconds == pytest.approx(3.0) and advice[0].at_ceiling == pytest.approx(0.3)
    assert advice[1].seconds == pytest.approx(2.0)
    assert [each.share for each in advice] == pytest.approx([3 / 18, 2 / 18, 4 / 18])


def test_calls_of_one_slot_are_added_up() -> None:
    (only,) = advise([invented("linear", 1.0), invented("linear", 2.0, per_step=3), invented("adam", 1.0, native=True)])
    assert (only.slot, only.seconds) == ("linear", 7.0)
    assert only.share == pytest.approx(7 / 8)


def test_what_is_above_the_ceiling_has_nothing_to_gain() -> None:
    (only,) = advise([invented("linear", 2.0, roofline=3.0)])
    assert only.at_ceiling == only.seconds == 2.0


def test_there_is_no_advice_where_all_is_native_or_nothing_was_measured() -> None:
    assert advise([]) == [] and in_words([]) == []
    assert advise([invented("linear", 1.0, native=True)]) == []


def test_advice_in_words_leads_with_the_next_slot() -> None:
    first, second = in_words(advise([invented("linear", 0.003), invented("softmax", 0.001)]))
    assert first.startswith("next slot to make native: linear: 3.00 ms of a small model's training step (75%), 1.50 ms")
    assert second.startswith("then: softmax: ")


def test_everything_is_there_for_machines(found: Ceilings) -> None:
    data = json.loads(json.dumps(as_json(found, [invented("linear", 1.0)])))
    assert data["ceilings"]["gflops"] == found.gflops
    assert data["measured"][0]["slot"] == data["advice"][0]["slot"] == "linear"


def test_the_command_shows_a_table_and_writes_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "perf.json"
    words = ("cpu", "--capability", "softmax", "--capability", "indexing", "--seconds", "0.01", "--json", str(file))
    assert main(["conformance", "perf", *words]) == 0
    out = capsys.readouterr().out
    assert "ceilings of cpu: " in out and "GFLOP/s in a product" in out
    assert "softmax/softmax" in out and "indexing/gather-rows" in out and "linear" not in out
    assert {each["slot"] for each in json.loads(file.read_text())["measured"]} == {"softmax", "indexing"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("cpu", "--capability", "mat_mul"), "mat_mul"),
        (("cpu", "--seconds", "0"), "0"),
        (("cpu", "--seconds", "nan"), "nan is no time; wanted 0.01 to 60 seconds"),
        (("no_such",), "no_such"),
        ((), "BACKEND"),
        (("cpu", "--json", "/no/such/folder/x.json"), "there is no folder"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(
    words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", "perf", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and text in printed.err
