"""JSON from outside, of which only what the standard allows, and every reader takes alike, is believed."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def strict_json(data: bytes) -> Any:
    """The value that UTF-8 `data` holds.

    Raises: ValueError for anything else (UnicodeDecodeError and json.JSONDecodeError among them), for a key that an
    object has twice or that no UTF-8 can hold, for NaN and Infinity, and for what is nested too deeply.
    Source: RFC 8259, sections 4, 6 and 8.
    """
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"key {key!r:.80} is there twice")
        try:
            key.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"key {key!r:.80} has half of a surrogate pair, which nothing can print") from error
        made[key] = value
    return made


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
