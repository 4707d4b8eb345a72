from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.registry.handshake import check, check_spi
from turret.spi import BackendInfo, PluginError, SpiMismatch

INFO = BackendInfo(
    name="x", distribution="turret-x", spi=">=1.0,<2", target="turret_x.backend:X", probe="turret_x.probe:f"
)
versions = st.tuples(st.integers(0, 30), st.integers(0, 30))


def fits(spi: str, core: tuple[int, int]) -> bool:
    try:
        check_spi(replace(INFO, spi=spi), core)
    except SpiMismatch:
        return False
    return True


@given(versions, versions)
def test_comparisons_order_versions_as_pairs_of_numbers(core: tuple[int, int], other: tuple[int, int]) -> None:
    text = f"{other[0]}.{other[1]}"
    got = {operator: fits(operator + text, core) for operator in (">=", ">", "<=", "<", "==", "!=")}
    assert got == {
        ">=": core >= other,
        ">": core > other,
        "<=": core <= other,
        "<": core < other,
        "==": core == other,
        "!=": core != other,
    }


@pytest.mark.parametrize(("core", "wanted"), [((0, 9), False), ((1, 0), True), ((1, 12), True), ((2, 0), False)])
def test_every_comparison_must_hold(core: tuple[int, int], wanted: bool) -> None:
    assert fits(">=1.0, <2", core) is wanted


@pytest.mark.parametrize("spi", ["", "1.0", ">=1.0,", "~=1.0", ">=1.0.0", ">=a", ">= 1.0", "*", ">=1.0 <2", ">=-1"])
def test_a_range_that_cannot_be_read_is_a_plugin_error(spi: str) -> None:
    with pytest.raises(PluginError, match="wanted a list of comparisons") as caught:
        check_spi(replace(INFO, spi=spi))
    assert not isinstance(caught.value, SpiMismatch)


@pytest.mark.parametrize(("spi", "older"), [(">=1.3,<2", "core"), ("<1.0", "turret-x"), (">=0.1,<1", "turret-x")])
def test_a_mismatch_names_both_versions_and_upgrades_the_older_side(spi: str, older: str) -> None:
    with pytest.raises(SpiMismatch) as caught:
        check_spi(replace(INFO, spi=spi), (1, 0))
    text = str(caught.value)
    assert f"written for SPI {spi}" in text
    assert "SPI 1.0" in text
    assert text.endswith(f"pip install --upgrade {older}")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "Cpu"),
        ("name", "auto"),
        ("name", "a-b"),
        ("name", 3),
        ("distribution", ""),
        ("target", "turret_x.backend"),
        ("target", "turret_x/backend.py:X"),
        ("target", "turret_x.backend:X()"),
        ("probe", ""),
        ("devices", None),
        ("provides", ["adam"]),
        ("provides", frozenset({"matmul"})),
        ("dtypes", frozenset({"float8"})),
        ("dtypes", frozenset({1})),
        ("score", 1.5),
        ("score", True),
        ("stand_in_devices", "cpu"),
        ("install_hint", None),
    ],
)
def test_a_field_of_the_wrong_kind_is_named_with_its_value(field: str, value: Any) -> None:
    with pytest.raises(PluginError, match=f"states {field}=") as caught:
        check(replace(INFO, **{field: value}))
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("thing", [None, "x", {"name": "x"}, BackendInfo])
def test_only_backend_infos_are_taken(thing: object) -> None:
    with pytest.raises(PluginError, match="wanted BackendInfo"):
        check(thing)


def test_sound_data_passes_through_unchanged() -> None:
    assert check(INFO) is INFO
