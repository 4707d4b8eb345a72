"""Values are taken in their own type alone, and an error can say any of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.spi import ConfigError
from turret.train.values import LONGEST, require_count, require_word, shown, typed

UNWRITABLE = 10**5000
NESTED: list[Any] = []
for _ in range(100_000):
    NESTED = [NESTED]

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
)


@given(plain)
def test_a_short_value_is_written_as_it_is_and_a_long_one_is_cut(value: Any) -> None:
    assert shown(value) == repr(value)[:LONGEST]


@pytest.mark.parametrize("value", [UNWRITABLE, [UNWRITABLE], NESTED], ids=["int", "list", "nested"])
def test_a_value_that_python_does_not_write_is_said_all_the_same(value: Any) -> None:
    assert shown(value) == f"a {type(value).__name__} too long to write"


@pytest.mark.parametrize(
    ("kind", "value", "got"),
    [
        ("int", 3, 3),
        ("int | None", None, None),
        ("float", 2, 2.0),
        ("float", math.inf, math.inf),
        ("bool", False, False),
        ("str | None", "cpu", "cpu"),
        ("tuple[str, ...]", ["a", "b"], ("a", "b")),
    ],
)
def test_a_value_of_its_type_is_taken(kind: str, value: Any, got: Any) -> None:
    taken = typed("key", kind, value, source="file")
    assert taken == got and type(taken) is type(got)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("int", value) for value in (True, 2.0, "7", None, [1])),
        *(("float", value) for value in (False, "1", None, math.nan, 10**400, -(10**5000))),
        *(("bool", value) for value in (1, "true", None)),
        *(("str", value) for value in (1, None, ["float16"], b"cpu", UNWRITABLE)),
        *(("tuple[str, ...]", value) for value in ("abc", [1], None, {"a": 1})),
    ],
    ids=lambda value: shown(value)[:20],
)
def test_a_value_of_another_type_is_named_with_what_was_wanted(kind: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^file: key is .+; wanted .+") as caught:
        typed("key", kind, value, source="file")
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize("value", [0, -1, 2**63, 10**400, UNWRITABLE, -UNWRITABLE], ids=lambda value: shown(value)[:20])
def test_a_count_outside_its_range_is_refused_in_one_short_line(value: int) -> None:
    with pytest.raises(ConfigError, match=r"^kv-heads .*; wanted (at least 1|less than 2\*\*63)") as caught:
        require_count("kv_heads", value, 1)
    assert len(str(caught.value)) < 160
    require_count("kv_heads", 2**63 - 1, 1)
    require_count("seed", 2**64 - 1, 0, bits=64)


def test_an_unknown_word_is_cut_and_the_known_ones_are_listed() -> None:
    require_word("log", "json", ("auto", "json"))
    with pytest.raises(ConfigError, match=r"^log 'x{79}; wanted one of auto, json$"):
        require_word("log", "x" * 5000, ("auto", "json"))
