"""The suite itself: right backends pass it, and no comparison in it is lax."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from turret.conformance.execute import Rules
from turret.conformance.session import Session, open_session
from turret.conformance.suite import MODULES, all_cases

CAPABILITIES = tuple(dict.fromkeys(case.capability for case in all_cases()))
SEED = 20


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session("minimal") as opened:
        yield opened


def test_every_module_of_cases_has_cases() -> None:
    assert set(CAPABILITIES) == set(MODULES)


def test_ids_name_the_capability_the_check_and_the_variant() -> None:
    assert [case.id for case in all_cases() if case.id.count("/") != 2 or " " in case.id] == []


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_an_error_of_ten_budgets_is_seen_by_every_comparison(session: Session, capability: str) -> None:
    rules = Rules(seed=SEED, perturb=True)
    results = [session.run(case, rules) for case in all_cases() if case.capability == capability]
    assert [f"{each.case}: {each.message}" for each in results if each.status.bad] == []
    assert any(each.status.ran for each in results)
