"""`turret chat` of lines from a pipe: a message a line, commands, and what is refused."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from chat_models import END, parrot, random_mini, saved, template, tokenizer

from turret.cli import main
from turret.generate import SamplingConfig, StopRules, generate_text
from turret.train.opening import open_model


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(parrot("red", context=200, ends=True), tmp_path_factory.mktemp("red") / "model"))


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lines: str | bytes, *args: str
) -> tuple[int, str, str]:
    raw = lines if isinstance(lines, bytes) else lines.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
    status = main(["chat", *args, "--backend", "cpu"])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_every_line_is_answered_with_what_was_said_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = random_mini(context=300)
    place = saved(model, tmp_path / "model")
    options = ["--temperature", "0", "--max-new-tokens", "6", "--system", "be blue"]
    status, out, err = call(monkeypatch, capsys, "one\n\ntwo three\r\nfour", str(place), *options)
    heard = [{"role": "system", "content": "be blue"}]
    wanted = ""
    for text in ("one", "two three", "four"):
        heard.append({"role": "user", "content": text})
        ids = template().encode(tokenizer(), heard, add_generation_prompt=True).tolist()
        rules = StopRules(max_new_tokens=6, eos_ids=(tokenizer().eos_id or 0,))
        sampling = SamplingConfig(temperature=0.0)
        answer = "".join(generate_text(model, tokenizer(), ids, sampling=sampling, rules=rules))
        heard.append({"role": "assistant", "content": answer})
        wanted += answer + "\n"
    assert status == 0
    assert out == re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", wanted)
    assert ">" not in err and "error" not in err


def test_the_same_seed_gives_the_same_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(saved(random_mini(context=300), tmp_path / "model"))
    options = ["--temperature", "3", "--max-new-tokens", "20"]
    seeds = ("1", "1", "2")
    heard = [call(monkeypatch, capsys, "one\none\n", place, *options, "--seed", seed) for seed in seeds]
    assert heard[0] == heard[1] != heard[2]


def test_commands_are_obeyed(red: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = f"/help\n/system blue\none\n/reset\n/system\n/system a{END}\n/nope\x1b[2J\n /etc\n/quit\nnever read\n"
    status, out, err = call(monkeypatch, capsys, lines, red)
    assert (status, out) == (0, "red\nred\n")
    said = err.splitlines()
    assert said[0].startswith("/reset ") and any(line.startswith("/quit ") for line in said)
    assert said[-5:-1] == [
        "the system message is set",
        "the conversation is forgotten",
        "there is no system message",
        f"message 0 (system) holds the control token '{END}', which would forge a turn; take it out of the text; "
        "the system message stays as it was",
    ]
    assert said[-1].startswith("no command '/nope") and "\x1b" not in err


def test_a_line_that_cannot_be_sent_is_told_and_the_next_one_is_taken(
    red: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = b"yes " + END.encode() + b"\ncaf\xe9\n" + b"x" * 900 + b"\none\n"
    status, out, err = call(monkeypatch, capsys, lines, red)
    assert (status, out) == (0, "red\n")
    said = err.splitlines()
    assert len(said) == 3 and all(line.startswith("not sent: ") for line in said)
    assert "forge a turn" in said[0] and "is not UTF-8" in said[1] and "the model reads 200" in said[2]


def test_a_long_conversation_tells_what_it_forgets(
    red: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = call(monkeypatch, capsys, "a message\n" * 12, red, "--max-new-tokens", "10")
    assert (status, out) == (0, "red\n" * 12)
    assert "the context of 200 is full: forgot the oldest turn\n" in err


def test_control_characters_of_an_answer_are_shown_and_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = saved(parrot("\x1b[2J\r\x07\x7f\u009b\t\u00e9", context=100, ends=True), tmp_path / "model")
    assert call(monkeypatch, capsys, "one\n", str(place))[:2] == (0, "\\x1b[2J\\x0d\\x07\\x7f\\x9b\t\u00e9\n")


def test_no_line_is_a_conversation_too(
    red: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, capsys, "", red) == (0, "", "")


def test_an_answer_at_its_limit_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = saved(parrot("abc", context=100, ends=False), tmp_path / "model")
    status, out, err = call(monkeypatch, capsys, "one\n", str(place), "--max-new-tokens", "5")
    assert (status, out, err) == (0, "abcab\n", "the answer reached the most tokens it may have\n")


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--temperature", "-1"], 2, "temperature"),
        (["--top-p", "2"], 2, "top_p"),
        (["--top-k", "0"], 2, "top_k"),
        (["--max-new-tokens", "0"], 2, "max_new_tokens"),
        (["--seed", "-1"], 2, "seed"),
        (["--quantize", "int3"], 2, "nf4"),
        (["--context", "0"], 2, "context is 0"),
        (["--context", "201"], 2, "wanted 1 to 200"),
        (["--system", f"a{END}"], 1, "forge a turn"),
        (["--adapter", "nowhere"], 1, "nowhere"),
        (["--adapter", ""], 2, "empty path"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_in_one_line(
    red: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    status: int,
    message: str,
) -> None:
    got, out, err = call(monkeypatch, capsys, "one\n", red, *options)
    assert (got, out) == (status, "")
    assert message in err and err.startswith("error: ") and err.count("\n") == 1


def test_a_model_without_a_template_leads_to_generate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = saved(parrot("red", context=60, ends=True), tmp_path / "model", chat=False)
    status, out, err = call(monkeypatch, capsys, "one\n", str(place))
    assert (status, out) == (2, "") and "no chat template" in err and "turret generate" in err


def test_what_is_no_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("hello")
    for place in ("nothing", "file", "."):
        status, out, err = call(monkeypatch, capsys, "one\n", str(tmp_path / place))
        assert (status, out) == (1, "") and err.startswith("error: ") and err.count("\n") == 1


def test_a_closed_stdin_is_told(red: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["chat", red, "--backend", "cpu"]) == 2
    assert "stdin is closed" in capsys.readouterr().err


def test_packed_weights_and_a_shorter_context_talk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from turret.registry import open_backend

    place = saved(random_mini(context=300), tmp_path / "model")
    options = ["--quantize", "nf4", "--context", "80", "--temperature", "0", "--max-new-tokens", "4"]
    status, out, _ = call(monkeypatch, capsys, "one\n", str(place), *options)
    opened = open_model(place, open_backend("cpu"), quantize="nf4", context=80)
    ids = template().encode(tokenizer(), [{"role": "user", "content": "one"}], add_generation_prompt=True).tolist()
    rules = StopRules(max_new_tokens=4, eos_ids=opened.eos_ids)
    pieces = generate_text(opened.model, tokenizer(), ids, sampling=SamplingConfig(temperature=0.0), rules=rules)
    from turret.cli.screen import visible

    assert (status, out) == (0, visible("".join(pieces)) + "\n")
