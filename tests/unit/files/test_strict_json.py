"""JSON is read as every reader would, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.files import strict_json

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4))


@given(VALUES)
def test_what_json_writes_comes_back(value: Any) -> None:
    assert strict_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"a": 1, "b": {"c": 1, "c": 1}}', "key 'c' is there twice"),
        (b'{"a": 1, "\\u0061": 1}', "key 'a' is there twice"),
        (b'{"\\ud800": 1}', "half of a surrogate pair"),
        (b"[NaN]", "NaN is not JSON"),
        (b"-Infinity", "-Infinity is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 5_000, "4300"),
        (b'"\xff"', "invalid start byte"),
        (b"\xef\xbb\xbf1", "BOM"),
        (b"1 2", "Extra data"),
        (b"", "Expecting value"),
    ],
    ids=lambda each: each[:16] if isinstance(each, bytes) else None,
)
def test_anything_else_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        strict_json(data)
