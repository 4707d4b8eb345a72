"""The tokenizer and the chat template in a model's directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from turret.data.bounded_file import read_text
from turret.data.chat_template import ChatTemplate
from turret.data.subword import MOST_BYTES, SubwordTokenizer, added_token
from turret.spi.errors import DataError

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def load_tokenizer(directory: str | Path) -> tuple[SubwordTokenizer, ChatTemplate | None]:
    """What tokenizer.json, tokenizer_config.json and chat_template.jinja of a directory say, the last two if there.

    Tokens that only `added_tokens_decoder` of the configuration knows are added; its `eos_token` ends generations.

    Raises: DataError for a directory without tokenizer.json and for files that cannot be used; and as
        `SubwordTokenizer` and `ChatTemplate` do.
    """
    folder = Path(directory)
    place = folder / "tokenizer.json"
    beside = folder / "tokenizer_config.json"
    # A link to nothing is a broken download and no folder without the file.
    config = _object(beside) if os.path.lexists(beside) else {}
    text = read_text(place, MOST_BYTES)
    special = {name: found for name in sorted(config) if name.endswith("_token") and (found := _text(config[name]))}
    added = _added(config, folder)
    if added:
        document = _object(place)
        known = document.get("added_tokens")
        listed = known if isinstance(known, list) else []
        have = {each.get("content") for each in listed if isinstance(each, dict)}
        missing = [each for each in added if each["content"] not in have]
        document["added_tokens"] = [*listed, *missing]
        text = json.dumps(document)
    eos = special.get("eos_token")
    tokenizer = SubwordTokenizer.from_json(text, eos_id=eos, what=str(place))
    source = _template(config, folder)
    return tokenizer, None if source is None else ChatTemplate(source, special=special)


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path, MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error!s:.100})") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} holds a {type(value).__name__}, want an object")
    return value


def _text(value: Any) -> str | None:
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def _added(config: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    entries = config.get("added_tokens_decoder", {})
    wrong = DataError(f"{folder / 'tokenizer_config.json'}: added_tokens_decoder maps no ids to tokens with a content")
    if not isinstance(entries, dict):
        raise wrong
    found = []
    for token_id, entry in entries.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str) or not token_id.isdecimal():
            raise wrong
        flags = {name: bool(entry[name]) for name in _FLAGS if name in entry}
        found.append(added_token(entry["content"], int(token_id[:10]), special=False) | flags)
    return sorted(found, key=lambda each: int(each["id"]))


def _template(config: dict[str, Any], folder: Path) -> str | None:
    place = folder / "chat_template.jinja"
    if os.path.lexists(place):
        return read_text(place, MOST_BYTES)
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {each.get("name"): each.get("template") for each in source if isinstance(each, dict)}
        source = named.get("default")
        if source is None:
            raise DataError(f"{folder / 'tokenizer_config.json'}: none of its chat templates is named 'default'")
    if source is not None and not isinstance(source, str):
        raise DataError(f"{folder / 'tokenizer_config.json'}: chat_template is a {type(source).__name__}, want text")
    return source
