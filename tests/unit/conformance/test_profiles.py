from __future__ import annotations

import re

import pytest

from turret.conformance.profiles import GROUPS, PROFILES, matches, select
from turret.conformance.suite import MODULES, all_cases
from turret.spi import OPTIONAL_SLOTS, REQUIRED_SLOTS, ConfigError

PARTS = re.compile(r"[a-z_]+/[a-z0-9-]+/[A-Za-z0-9._+-]+")


def test_ids_are_distinct_and_have_three_parts() -> None:
    ids = [case.id for case in all_cases()]
    assert len(set(ids)) == len(ids)
    assert [name for name in ids if not PARTS.fullmatch(name)] == []


def test_every_slot_and_group_has_cases() -> None:
    assert {case.capability for case in all_cases()} == {*REQUIRED_SLOTS, *OPTIONAL_SLOTS, *GROUPS}
    assert set(MODULES) == {*REQUIRED_SLOTS, *OPTIONAL_SLOTS, *GROUPS}


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_selects_cases_of_each_of_its_capabilities(name: str) -> None:
    profile = PROFILES[name]
    chosen = select(profile=name)
    assert {case.capability for case in chosen} == profile.capabilities
    assert profile.name == name and profile.about


@pytest.mark.parametrize("name", PROFILES)
def test_every_check_that_a_profile_names_has_cases(name: str) -> None:
    there = {"/".join(case.id.split("/")[:2]) for case in all_cases()}
    assert PROFILES[name].checks <= there


def test_profiles_without_gradients_have_none_and_training_has_them() -> None:
    for name in ("inference", "serving"):
        assert not [case.id for case in select(profile=name) if case.kind == "vjp"]
    assert [case for case in select(profile="training") if case.kind == "vjp"]


def test_smaller_profiles_are_parts_of_larger_ones_and_full_is_all() -> None:
    ids = {name: {case.id for case in select(profile=name)} for name in PROFILES}
    assert ids["primitives"] < ids["inference"] < ids["training"] < ids["full"]
    assert ids["inference"] < ids["serving"] < ids["full"]
    assert ids["primitives"] < ids["quant-nf4"] < ids["full"]
    assert ids["full"] == {case.id for case in all_cases()}


def test_cases_come_in_the_order_of_the_interface() -> None:
    order = list(dict.fromkeys(case.capability for case in select()))
    assert order == list(MODULES)


def test_capabilities_and_patterns_narrow_the_choice() -> None:
    only = select(capabilities=("matmul", "softmax"))
    assert {case.capability for case in only} == {"matmul", "softmax"}
    halves = select(capabilities=("matmul",), pattern="*-f16")
    assert halves and all(case.id.startswith("matmul/") and case.id.endswith("-f16") for case in halves)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"profile": "trainnig"}, "no profile 'trainnig'; did you mean 'training'?"),
        ({"profile": "xyz"}, "no profile 'xyz'; there are: primitives, inference"),
        ({"capabilities": ("mat_mul",)}, "no capability 'mat_mul'; did you mean 'matmul'?"),
        ({"capabilities": ("matmul", "")}, "no capability ''; there are: "),
        ({"pattern": "zzz"}, "no case matches profile full, pattern 'zzz'; `--list` shows all ids"),
        (
            {"profile": "primitives", "capabilities": ("softmax",)},
            "no case matches profile primitives, capability softmax",
        ),
    ],
)
def test_an_unknown_word_or_an_empty_choice_is_refused_with_a_way_out(choice: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        select(**choice)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "good"),
    [
        ("product", True),
        ("matmul/product/M1-K1-N1-f32", True),
        ("*-f32", True),
        ("matmul/*", True),
        ("*", True),
        ("matmul/product/M?-K1-N1-f32", True),
        ("product*", False),
        ("PRODUCT", False),
        ("not product", False),
        ("not lifecycle", True),
        ("not matmul/*", False),
        ("matmul/product/M1-K1-N1-f32x", False),
    ],
)
def test_a_pattern_with_a_wildcard_is_the_whole_id_and_one_without_a_part(pattern: str, good: bool) -> None:
    assert matches("matmul/product/M1-K1-N1-f32", pattern) is good
