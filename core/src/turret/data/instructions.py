"""Instruction data: prompts with responses, and conversations, read strictly from a file of JSON lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import BinaryIO, NamedTuple

from turret.data.manifest import Manifest, Source
from turret.data.tokenizers import not_utf8, utf8
from turret.files import open_regular, strict_json
from turret.spi.errors import ConfigError, DataError

MAX_LINE_BYTES = 16 << 20
NAMED_BAD_LINES = 5

_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"  # what JSON takes for white space
_FOLLOWS = {None: ("system", "user"), "system": ("user",), "user": ("assistant",), "assistant": ("user",)}
_FORMS = 'want {"prompt": text, "response": text} or {"messages": [{"role": ..., "content": text}, ...]}'


class Message(NamedTuple):
    """One turn: the role is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What one line held. A prompt and its response are a user's and an assistant's message.

    `chat` says that the line had `messages`; `line` counts from 1.

    Raises: DataError unless a system message is first or absent, user and assistant alternate and the assistant has
    the last word; without `chat` there are two messages.
    """

    messages: tuple[Message, ...]
    chat: bool
    line: int

    def __post_init__(self) -> None:
        before = None
        for index, (role, _) in enumerate(self.messages):
            if role not in (wanted := _FOLLOWS[before]):
                raise DataError(f"message {index} has role {role!r:.80}, want {' or '.join(map(repr, wanted))} there")
            before = role
        if before != "assistant":
            raise DataError(f"the last message is of {before or 'nobody'}, want one of the assistant")
        if not self.chat and len(self.messages) != 2:
            raise DataError(f"got {len(self.messages)} messages for a prompt and its response, want 2, or chat=True")


class BadLine(NamedTuple):
    """A line that was passed over, counted from 1, and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """The examples of a file in order, the hash of the bytes they came from, and what was passed over.

    `bad` counts all bad lines, `bad_lines` names the first few.
    """

    items: tuple[Example, ...] = field(repr=False)
    source: Source
    bad: int
    bad_lines: tuple[BadLine, ...]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def manifest(self) -> Manifest:
        """What a run records and compares when it resumes."""
        return Manifest(sources=(self.source,))


def read_examples(path: str | Path, *, skip_bad: int = 0) -> Examples:
    """The examples of a UTF-8 file with one JSON object a line, all held in memory; blank lines are passed over.

    An object is {"prompt": text, "response": text} or {"messages": [{"role": ..., "content": text}, ...]}: a system
    message may come first, then user and assistant alternate and the assistant has the last word. Other keys are
    refused, and so is an answer of white space only; every other text may be empty. Up to `skip_bad` bad lines are
    passed over and counted.

    Raises: DataError for a file that is missing, not a regular file, unreadable, without examples or that begins with
    a byte order mark, and for one bad line more than `skip_bad`, with its number; ConfigError for another `skip_bad`
    than an integer of at least 0.
    """
    if type(skip_bad) is not int or skip_bad < 0:
        raise ConfigError(f"got skip_bad {skip_bad!r:.80}, want an integer of at least 0")
    lines = _Lines(Path(path))
    found: list[Example] = []
    named: list[BadLine] = []
    bad = 0
    for number, line in lines:
        try:
            if (example := _example(number, line)) is not None:
                found.append(example)
        except DataError as error:
            bad += 1
            if bad > skip_bad:
                raise DataError(_too_many(lines.path, BadLine(number, str(error)), skip_bad, named)) from error
            if len(named) < NAMED_BAD_LINES:
                named.append(BadLine(number, str(error)))
    if not found:
        raise DataError(f"{path} has no examples ({lines.size} bytes, {bad} bad lines); {_FORMS} on each line")
    source = Source(name=lines.path.name, path=str(lines.path), bytes=lines.size, sha256=lines.digest.hexdigest())
    return Examples(items=tuple(found), source=source, bad=bad, bad_lines=tuple(named))


class _Lines:
    """The numbered lines of a file; size and digest are those of all bytes that were read.

    A line above the limit comes as None.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.digest = hashlib.sha256()

    def __iter__(self) -> Iterator[tuple[int, bytes | None]]:
        try:
            if (stream := open_regular(self.path)) is None:
                raise DataError(f"{self.path} is not a regular file; name a file of JSON lines")
            with stream:
                for number in count(1):
                    line = self._read(stream)
                    if number == 1 and line.startswith(_BOM):
                        raise DataError(f"{self.path} begins with a byte order mark; save it as UTF-8 without one")
                    if not line:
                        return
                    yield number, line if self._ends(stream, line) else None
        except FileNotFoundError as error:
            raise DataError(f"{self.path} does not exist; name a file of JSON lines") from error
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read {self.path}: {error}; check the path and its permissions") from error

    def _read(self, stream: BinaryIO) -> bytes:
        part = stream.readline(MAX_LINE_BYTES + 1)
        self.digest.update(part)
        self.size += len(part)
        return part

    def _ends(self, stream: BinaryIO, part: bytes) -> bool:
        """Whether the line was within the limit; if not, the rest of it is read and forgotten."""
        if len(part) <= MAX_LINE_BYTES or part.endswith(b"\n"):
            return True
        while part and not part.endswith(b"\n"):
            part = self._read(stream)
        return False


def _too_many(path: Path, bad: BadLine, allowed: int, named: list[BadLine]) -> str:
    if not allowed:
        return f"{path}, line {bad.line}: {bad.reason}; correct the line, or allow bad lines with skip_bad"
    before = ", ".join(str(line) for line, _ in named) + (", ..." if allowed > len(named) else "")
    return (
        f"{path}, line {bad.line}: {bad.reason}; this is one bad line more than the {allowed} allowed by skip_bad "
        f"(before it: {before}); correct the file"
    )


def _example(number: int, line: bytes | None) -> Example | None:
    """None for a blank line. Raises: DataError saying what is wrong with the line."""
    if line is None:
        raise DataError(f"the line has more than {MAX_LINE_BYTES} bytes; want a shorter one")
    if not line.strip(_SPACE):
        return None
    raw = _parsed(line)
    if not isinstance(raw, dict):
        raise DataError(f"got {raw!r:.80}; {_FORMS}")
    if set(raw) == {"messages"}:
        return Example(messages=_conversation(raw["messages"]), chat=True, line=number)
    if set(raw) != {"prompt", "response"}:
        raise DataError(f"{_wrong_keys(raw)}; {_FORMS}")
    prompt = Message("user", _text("prompt", raw["prompt"]))
    response = Message("assistant", _answer("response", raw["response"]))
    return Example(messages=(prompt, response), chat=False, line=number)


def _parsed(line: bytes) -> object:
    try:
        return strict_json(line)
    except UnicodeDecodeError as error:
        raise DataError(not_utf8("the line", line, error.start, 0)) from error
    except json.JSONDecodeError as error:
        raise DataError(f"not one JSON object: {error.msg} at character {error.pos + 1}; {_FORMS}") from error
    except ValueError as error:
        raise DataError(f"not one JSON object: {error!s:.120}; {_FORMS}") from error


def _wrong_keys(raw: dict[str, object]) -> str:
    unknown = [key for key in raw if key not in ("prompt", "response", "messages")]
    if unknown:
        return f"unknown key {unknown[0]!r:.80}"
    return f"got the keys {', '.join(map(repr, raw)) or '(none)'}"


def _conversation(raw: object) -> tuple[Message, ...]:
    if not isinstance(raw, list) or not raw:
        raise DataError(f"got messages {raw!r:.80}, want a list with entries")
    messages: list[Message] = []
    for index, entry in enumerate(raw):
        if not isinstance(entry, dict) or set(entry) != {"role", "content"}:
            raise DataError(f"message {index} is {entry!r:.80}, want exactly the keys 'role' and 'content'")
        role, place = entry["role"], f"content of message {index}"
        text = _answer(place, entry["content"]) if role == "assistant" else _text(place, entry["content"])
        messages.append(Message(role, text))
    return tuple(messages)


def _text(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise DataError(f"got {place} {value!r:.80}, want text")
    utf8(value)
    return value


def _answer(place: str, value: object) -> str:
    text = _text(place, value)
    if not text.strip():
        raise DataError(f"got {place} {text!r:.80}, want an answer that is not empty")
    return text
