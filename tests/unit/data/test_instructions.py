"""A file of examples is read in whole, or refused with the line that is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.data.instructions import MAX_LINE_BYTES, NAMED_BAD_LINES, Example, Message, read_examples
from turret.data.manifest import Manifest
from turret.spi.errors import ConfigError, DataError

GOOD = b'{"prompt": "Say hi", "response": "Hi."}'
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "2"},
]


def written(folder: Path, *lines: bytes) -> Path:
    path = folder / "examples.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


def chat(*roles: str) -> bytes:
    return json.dumps({"messages": [{"role": role, "content": "x"} for role in roles]}).encode()


def test_both_forms_are_read_in_order_with_their_lines(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, b"", b" \t\r", json.dumps({"messages": CHAT}).encode() + b"\r", b"")
    found = read_examples(path)
    assert found.items == (
        Example(messages=(Message("user", "Say hi"), Message("assistant", "Hi.")), chat=False, line=1),
        Example(messages=tuple(Message(**message) for message in CHAT), chat=True, line=4),
    )
    assert (len(found), found.bad, found.bad_lines) == (2, 0, ())


def test_the_hash_is_of_the_file_whatever_its_lines_hold(tmp_path: Path) -> None:
    path = written(tmp_path, b"broken", b"", GOOD, b"a" * (MAX_LINE_BYTES + 2), GOOD)
    source = read_examples(str(path), skip_bad=2).source
    data = path.read_bytes()
    assert (source.name, source.path, source.bytes) == ("examples.jsonl", str(path), len(data))
    assert source.sha256 == hashlib.sha256(data).hexdigest()


def test_a_changed_file_is_not_what_a_run_was_trained_on(tmp_path: Path) -> None:
    before = read_examples(written(tmp_path, GOOD)).manifest
    assert Manifest.from_dict(before.to_dict()) == before
    before.require_same(read_examples(written(tmp_path, GOOD)).manifest)
    with pytest.raises(DataError, match=r"examples\.jsonl"):
        before.require_same(read_examples(written(tmp_path, GOOD, GOOD)).manifest)


texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.tuples(texts, texts.filter(str.strip)), min_size=1), st.booleans())
def test_every_text_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], escaped: bool
) -> None:
    lines = [json.dumps({"response": b, "prompt": a}, ensure_ascii=escaped).encode() for a, b in pairs]
    found = read_examples(written(tmp_path_factory.mktemp("texts"), *lines))
    assert [tuple(message.content for message in example.messages) for example in found.items] == pairs


BAD = {
    b"{": "not one JSON object",
    b"[]": r"got \[\]; want",
    b"null": "got None; want",
    GOOD + GOOD: "not one JSON object: Extra data at character 40",
    b'{"prompt": "a"}': "got the keys 'prompt'; want",
    b"{}": r"got the keys \(none\); want",
    b'{"prompt": "a", "response": "b", "messages": []}': "got the keys 'prompt', 'response', 'messages'; want",
    b'{"prompt": "a", "response": "b", "id": 7}': "unknown key 'id'; want",
    b'{"prompt": "a", "response": "b", "prompt": "c"}': "key 'prompt' is there twice",
    b'{"prompt": 1, "response": "b"}': "got prompt 1, want text",
    b'{"prompt": "a", "response": null}': "got response None, want text",
    b'{"prompt": "a", "response": ""}': "got response '', want an answer that is not empty",
    b'{"prompt": "a", "response": " \\n"}': r"got response ' \\n', want an answer",
    b'{"prompt": NaN, "response": "b"}': "NaN is not JSON",
    b'{"prompt": -Infinity, "response": "b"}': "-Infinity is not JSON",
    b'{"prompt": "\\ud800", "response": "b"}': r"lone surrogate U\+D800",
    b'{"\\ud800": "a", "response": "b"}': r"key '\\ud800' has half of a surrogate pair",
    b'{"prompt": "\xff", "response": "b"}': "not UTF-8: bytes ff",
    b'{"prompt": ' + b"1" * 5000 + b', "response": "b"}': "not one JSON object: Exceeds the limit",
    b"[" * 200_000: "nested too deeply",
    b'{"messages": []}': r"got messages \[\], want a list with entries",
    b'{"messages": "hi"}': "got messages 'hi', want a list",
    b'{"messages": [{"role": "user"}]}': "message 0 is .*, want exactly the keys",
    b'{"messages": [{"role": "user", "content": "a", "name": "b"}]}': "message 0 is .*, want exactly the keys",
    b'{"messages": [{"role": "user", "content": ["a"]}]}': r"got content of message 0 \['a'\], want text",
    b'{"messages": [{"role": ["user"], "content": "a"}]}': r"message 0 has role \['user'\], want 'system' or 'user'",
    b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]}': "message 1 '', want an",
    chat("assistant"): "message 0 has role 'assistant', want 'system' or 'user' there",
    chat("user", "system"): "message 1 has role 'system', want 'assistant' there",
    chat("user", "user"): "message 1 has role 'user', want 'assistant' there",
    chat("system", "assistant"): "message 1 has role 'assistant', want 'user' there",
    chat("user", "tool"): "message 1 has role 'tool', want 'assistant' there",
    chat("user", "assistant", "user"): "the last message is of user, want one of the assistant",
    chat("system"): "the last message is of system, want one of the assistant",
}


@pytest.mark.parametrize(("line", "message"), BAD.items(), ids=range(len(BAD)))
def test_a_bad_line_is_named_and_can_be_passed_over(tmp_path: Path, line: bytes, message: str) -> None:
    path = written(tmp_path, GOOD, line, GOOD)
    with pytest.raises(DataError, match=message) as caught:
        read_examples(path)
    text = str(caught.value)
    assert text.startswith(f"{path}, line 2: ") and "\n" not in text and len(text) < 600
    found = read_examples(path, skip_bad=1)
    assert ([example.line for example in found.items], found.bad, found.bad_lines[0].line) == ([1, 3], 1, 2)
    assert found.bad_lines[0].reason in text


def test_one_bad_line_more_than_allowed_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, b"?", GOOD, b"?", b"?")
    with pytest.raises(DataError, match=r"line 5: .* one bad line more than the 2 allowed .* \(before it: 2, 4\)"):
        read_examples(path, skip_bad=2)
    assert read_examples(path, skip_bad=3).bad == 3


def test_only_the_first_bad_lines_are_named(tmp_path: Path) -> None:
    found = read_examples(written(tmp_path, *[b"?"] * 20, GOOD), skip_bad=20)
    assert [bad.line for bad in found.bad_lines] == list(range(1, NAMED_BAD_LINES + 1))
    assert found.bad == 20


def test_a_line_may_be_as_long_as_the_limit_and_no_longer(tmp_path: Path) -> None:
    fill = b"a" * (MAX_LINE_BYTES - len(b'{"prompt": "", "response": "b"}'))
    longest = b'{"prompt": "' + fill + b'", "response": "b"}'
    assert len(longest) == MAX_LINE_BYTES
    assert len(read_examples(written(tmp_path, longest, longest))) == 2
    for lines in ([longest + b" ", GOOD], [GOOD, longest + b" "]):
        with pytest.raises(DataError, match=f"the line has more than {MAX_LINE_BYTES} bytes"):
            read_examples(written(tmp_path, *lines))
        assert len(read_examples(written(tmp_path, *lines), skip_bad=1)) == 1


@pytest.mark.parametrize("lines", [[], [b""], [b"", b" ", b""], [b"?"]])
def test_a_file_without_examples_is_refused(tmp_path: Path, lines: list[bytes]) -> None:
    with pytest.raises(DataError, match=r"has no examples \(\d+ bytes, \d bad lines\); want"):
        read_examples(written(tmp_path, *lines), skip_bad=1)


def test_a_byte_order_mark_is_refused_even_where_bad_lines_are_allowed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="begins with a byte order mark; save it as UTF-8 without one"):
        read_examples(written(tmp_path, b"\xef\xbb\xbf" + GOOD), skip_bad=9)


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "none", "does not exist"),
        (tmp_path, "is not a regular file"),
        ("a\0b", "cannot read"),
        (tmp_path / ("n" * 300), "cannot read"),
    ):
        with pytest.raises(DataError, match=message):
            read_examples(path)


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is not a regular file"):
        read_examples(tmp_path / "pipe")


@pytest.mark.parametrize("skip_bad", [-1, True, 1.0, None])
def test_the_number_of_bad_lines_allowed_is_checked(tmp_path: Path, skip_bad: object) -> None:
    with pytest.raises(ConfigError, match="got skip_bad"):
        read_examples(written(tmp_path, GOOD), skip_bad=skip_bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(("roles", "is_chat"), [((), True), (("user",), False), (("assistant",), True)])
def test_an_example_made_by_hand_obeys_the_same_order(roles: tuple[str, ...], is_chat: bool) -> None:
    with pytest.raises(DataError, match="want"):
        Example(messages=tuple(Message(role, "x") for role in roles), chat=is_chat, line=1)


def test_a_prompt_and_its_response_are_two_messages() -> None:
    messages = tuple(Message(role, "x") for role in ("system", "user", "assistant"))
    with pytest.raises(DataError, match="got 3 messages for a prompt and its response, want 2"):
        Example(messages=messages, chat=False, line=1)
