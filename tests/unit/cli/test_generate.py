"""`turret generate` with published models: text, messages, ends, rates, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from chat_models import END, parrot, random_mini, saved, tokenizer

from turret.cli import main
from turret.models.weights.adapter_files import save_adapter
from turret.nn import attach_adapters


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(parrot("red", context=100, ends=True), tmp_path_factory.mktemp("red") / "model"))


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    status = main(["generate", *args, "--backend", "cpu"])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_text_is_continued_up_to_the_models_end(red: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, red, "--prompt", "say ", "--temperature", "0") == (0, "say red\n", "")


def test_a_message_is_answered_without_being_repeated(red: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, red, "--prompt", "say", "--chat") == (0, "red\n", "")


def test_rates_are_one_object_on_stderr(red: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, red, "--prompt", "say ", "--json")
    assert (status, out, err.count("\n")) == (0, "say red\n", 1)
    rates = json.loads(err)
    assert rates["prompt_tokens"] == len(tokenizer().encode("say "))
    assert rates["new_tokens"] == len(tokenizer().encode("red")) + 1
    assert rates["prefill_seconds"] > 0 and rates["prefill_tokens_per_second"] > 0
    assert rates["decode_tokens_per_second"] > 0
    rates = json.loads(call(capsys, red, "--prompt", "say ", "--json", "--max-new-tokens", "1")[2])
    assert rates["new_tokens"] == 1 and rates["decode_tokens_per_second"] is None


def test_an_adapter_changes_the_text_and_fits_one_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = random_mini(context=60)
    base, other = saved(model, tmp_path / "base"), saved(random_mini(context=60, seed=1), tmp_path / "other")
    adapters = attach_adapters(model, rank=2, alpha=64.0, targets=("query", "value"))
    adapters.load_state_dict({name: value + 1 for name, value in adapters.state_dict().items()})
    save_adapter(tmp_path / "adapter", model, adapters)
    prompt = ("--prompt", "one", "--temperature", "0", "--max-new-tokens", "12")
    plain, adapted = (
        call(capsys, str(base), *prompt, *more) for more in ([], ["--adapter", str(tmp_path / "adapter")])
    )
    assert plain[0] == adapted[0] == 0 and plain[1] != adapted[1]
    status, out, err = call(capsys, str(other), *prompt, "--adapter", str(tmp_path / "adapter"))
    assert (status, out) == (2, "") and "was trained on a base" in err and err.count("\n") == 1
    status, out, err = call(capsys, str(tmp_path / "adapter"), *prompt)
    assert (status, out) == (1, "") and "an adapter without its base" in err


def test_a_terminal_does_not_obey_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(saved(parrot("\x1b[2J", context=60, ends=True), tmp_path / "model"))
    assert call(capsys, place, "--prompt", "a")[1] == "a\x1b[2J\n", "a pipe gets the text as it is"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert call(capsys, place, "--prompt", "a")[1] == "a\\x1b[2J\n"


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--prompt", ""], 2, "--prompt is empty"),
        (["--prompt", "\udcff"], 1, "surrogate"),
        (["--prompt", f"a{END}", "--chat"], 1, "forge a turn"),
        (["--prompt", "a", "--quantize", "q4"], 2, "nf4"),
        (["--prompt", "a", "--context", "1000"], 2, "wanted 1 to 100"),
        (["--prompt", "a", "--adapter", "nowhere"], 1, "nowhere"),
        (["--prompt", "a", "--temperature", "nan"], 2, "temperature"),
        ([], 2, "--prompt"),
    ],
    ids=ascii,
)
def test_what_makes_no_sense_is_refused_in_one_line(
    red: str, capsys: pytest.CaptureFixture[str], options: list[str], status: int, message: str
) -> None:
    got, out, err = call(capsys, red, *options)
    assert (got, out) == (status, "")
    assert message in err and err.startswith("error: ") and err.count("\n") == 1


def test_what_is_no_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("hello")
    (tmp_path / "weights.safetensors").write_text("hello")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text("{}")
    for place in ("nothing", "file", "weights.safetensors", ".", "config", "nul\0"):
        status, out, err = call(capsys, str(tmp_path / place), "--prompt", "a")
        assert (status, out) == (1, ""), place
        assert err.startswith("error: ") and err.count("\n") == 1


def test_a_model_without_a_template_answers_no_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = saved(parrot("red", context=60, ends=True), tmp_path / "model", chat=False)
    status, out, err = call(capsys, str(place), "--prompt", "a", "--chat")
    assert (status, out) == (2, "") and "no chat template" in err


def test_four_bits_of_four_bits_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = saved(random_mini(context=60), tmp_path / "model")
    config = json.loads((place / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    (place / "config.json").write_text(json.dumps(config))
    status, out, err = call(capsys, str(place), "--prompt", "a", "--quantize", "nf4")
    assert (status, out) == (2, "") and "4 bits already" in err
