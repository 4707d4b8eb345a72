from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from turret.conformance import audit as module
from turret.conformance.audit import Audit, audit
from turret.conformance.case import Case
from turret.conformance.ledger import Ledger
from turret.conformance.profiles import INFERENCE, PRIMITIVES, TRAINING
from turret.conformance.results import Result

Make = Callable[..., Result]
CHECKS = {"models": ("forward", "decode", "gradients", "training", "captured", "checkpoint")}


@pytest.fixture(autouse=True)
def one_case_each(monkeypatch: pytest.MonkeyPatch) -> tuple[Case, ...]:
    """A suite of one case a check; those that the profile `training` needs are returned."""

    def case(name: str, kind: Any = "forward") -> Case:
        return Case(id=f"{name}/a-f32", body=lambda bench: None, kind=kind)

    made = [case(f"{name}/{check}") for name in sorted(TRAINING) for check in CHECKS.get(name, ("check",))]
    made.append(case("softmax/softmax-vjp", "vjp"))
    unasked = [case(f"{name}/check") for name in ("flash_attention", "paged_attention", "quantized_linear")]
    monkeypatch.setattr(module, "all_cases", lambda: (*made, *unasked))
    return tuple(made)


@pytest.fixture
def all_passed(one_case_each: tuple[Case, ...], make_result: Make) -> list[Result]:
    return [make_result(case.id) for case in one_case_each]


def audited(results: Sequence[Result], *, ledger: Ledger | None = None, **more: Any) -> Audit:
    said: dict[str, Any] = {"provides": [], "native": [], "declared_dtypes": ["float32"], "dtypes": ["float32"]}
    return audit(results, **{**said, **more}, ledger=ledger or Ledger())


def replaced(results: list[Result], changed: Result) -> list[Result]:
    assert changed.case in {result.case for result in results}
    return [changed if result.case == changed.case else result for result in results]


def test_a_plugin_that_says_what_is_so_has_nothing_to_correct(all_passed: list[Result]) -> None:
    ledger = Ledger(profiles=("primitives", "inference", "training"))
    found = audited(all_passed, ledger=ledger, provides=["softmax"], native=["softmax"])
    assert (found.over, found.under, found.manifest) == ([], [], "")
    assert found.certified == {"primitives": True, "inference": True, "training": True}


def test_a_declared_slot_that_is_not_there_is_an_over_claim(all_passed: list[Result]) -> None:
    found = audited(all_passed, provides=["adam"])
    assert found.over == ["slot adam: declared in `provides`, but the table has None"]
    assert "provides=frozenset([])" in found.manifest


def test_a_declared_slot_that_fails_is_an_over_claim(all_passed: list[Result], make_result: Make) -> None:
    results = replaced(all_passed, make_result("softmax/check/a-f32", "crashed"))
    found = audited(results, provides=["softmax", "linear"], native=["softmax", "linear"])
    assert "slot softmax: declared native, but its cases fail" in found.over
    assert 'provides=frozenset(["linear"])' in found.manifest


def test_a_native_slot_that_is_not_declared_is_an_under_claim(all_passed: list[Result], make_result: Make) -> None:
    assert (
        "slot softmax: native and passing, but not declared in `provides`"
        in audited(all_passed, native=["softmax"]).under
    )
    failing = replaced(all_passed, make_result("softmax/check/a-f32", "failed"))
    assert "slot softmax: native, but not declared in `provides`" in audited(failing, native=["softmax"]).under


def test_a_slot_of_which_nothing_ran_is_not_called_passing(make_result: Make) -> None:
    results = [make_result("softmax/check/a-f32", "unsupported")]
    assert audited(results, native=["softmax"]).under == ["slot softmax: native, but not declared in `provides`"]


def test_dtypes_are_looked_at_from_both_sides(all_passed: list[Result]) -> None:
    found = audited(all_passed, declared_dtypes=["float32", "float16"], dtypes=["float32", "int64"])
    assert "dtype float16: declared, but the device does not have it" in found.over
    assert "dtype int64: the device has it, but it is not declared" in found.under
    assert 'dtypes=frozenset(["float32", "int64"])' in found.manifest


def test_a_claimed_profile_that_does_not_hold_is_an_over_claim(all_passed: list[Result], make_result: Make) -> None:
    results = replaced(all_passed, make_result("loss/check/a-f32", "failed"))
    found = audited(results, ledger=Ledger(profiles=("primitives", "training")))
    assert found.over == ["claimed profiles that do not hold: training"]
    assert "profile inference: holds, but is not claimed" in found.under
    assert 'profiles = ["primitives", "inference"]' in found.manifest


def test_a_profile_of_which_a_part_was_not_run_is_neither(all_passed: list[Result]) -> None:
    part = [result for result in all_passed if result.capability in PRIMITIVES]
    found = audited(part, ledger=Ledger(profiles=("primitives", "training")))
    assert found.certified == {"primitives": True}
    assert found.over == []


def test_an_inference_only_backend_may_fail_gradients(all_passed: list[Result], make_result: Make) -> None:
    results = replaced(all_passed, make_result("softmax/softmax-vjp/a-f32", "failed"))
    certified = audited(results).certified
    assert certified == {"primitives": True, "inference": True, "training": False}


@pytest.mark.parametrize("status", ["failed", "crashed", "timed out", "expected failure"])
def test_a_profile_does_not_hold_with_a_failure_even_if_it_was_expected(
    all_passed: list[Result], make_result: Make, status: str
) -> None:
    results = replaced(all_passed, make_result("matmul/check/a-f32", status))
    assert audited(results).certified == {"primitives": False, "inference": False, "training": False}
    beside_a_passing_one = replaced(all_passed, make_result("softmax/softmax-vjp/a-f32", status))
    assert audited(beside_a_passing_one).certified == {"primitives": True, "inference": True, "training": False}


@pytest.mark.parametrize("status", ["unsupported", "skipped"])
def test_a_profile_holds_only_where_each_capability_was_executed(
    all_passed: list[Result], make_result: Make, status: str
) -> None:
    results = replaced(all_passed, make_result("rope/check/a-f32", status))
    assert audited(results).certified == {"primitives": True, "inference": False, "training": False}


def test_a_failure_that_is_only_advice_harms_no_claim(all_passed: list[Result], make_result: Make) -> None:
    results = replaced(all_passed, make_result("softmax/softmax-vjp/a-f32", "failed", advisory=True))
    found = audited(results, provides=["softmax"], native=["softmax"])
    assert found.over == []
    assert found.certified["training"]


def test_the_profiles_nest() -> None:
    assert PRIMITIVES < INFERENCE < TRAINING


def test_a_case_that_ran_out_of_time_decides_nothing_about_claims(all_passed: list[Result], make_result: Make) -> None:
    results = replaced(all_passed, make_result("loss/check/a-f32", "timed out"))
    found = audited(results, ledger=Ledger(profiles=("primitives", "training")))
    assert found.over == []
    assert found.certified["training"] is False, "nothing is certified either"


def test_a_run_of_a_part_says_nothing_about_claims(all_passed: list[Result], make_result: Make) -> None:
    part = [make_result("loss/check/a-f32", "failed")]
    found = audited(part, provides=["loss"], native=["loss"], ledger=Ledger(profiles=("training",)))
    assert found.over and "profiles" not in found.manifest
