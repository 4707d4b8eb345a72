"""`turret finetune` says what it did in one object, and what is wrong in one line with the right exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuning_bases import CONTEXT, examples, save_base, train_base, write_lines

from turret.cli import main

Call = Callable[..., tuple[int, str, list[str]]]
SHORT = ("--steps", "2", "--context", str(CONTEXT), "--backend", "cpu", "--log", "json")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("data") / "examples.jsonl", examples())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, base: Path, data: Path) -> Path:
    """A run that has ended."""
    run = tmp_path_factory.mktemp("done") / "run"
    assert main(["finetune", str(base), "--data", str(data), "--out", str(run), *SHORT]) == 0
    return run


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Exit status, standard output and the lines of standard error of `turret ...`."""

    def called(*args: Any) -> tuple[int, str, list[str]]:
        capsys.readouterr()
        status = main([str(each) for each in args])
        printed = capsys.readouterr()
        return status, printed.out, printed.err.splitlines()

    return called


def refused(answer: tuple[int, str, list[str]], status: int, said: str) -> None:
    """No result, and one line for people after the records of what happened before."""
    got, out, lines = answer
    assert (got, out) == (status, "")
    *before, last = lines
    assert last.startswith("error: ") and said in last and len(last) < 500
    assert all(line.startswith("{") for line in before)


def test_the_result_is_one_object(call: Call, base: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    status, out, lines = call(
        *("finetune", base, "--data", data, "--out", run, *SHORT, "--method", "qlora", "--rank", 4, "--target", "down")
    )
    assert status == 0
    result = json.loads(out)
    assert (result["ended"], result["steps"], result["method"], result["best_step"]) == ("finished", 2, "qlora", 2)
    assert result["parameters"] == 9328 and result["trained_parameters"] == 2 * 4 * (16 + 32)
    assert result["examples"]["kept"] == 22 and result["validation_examples"]["kept"] == 2
    assert result["tokens_seen"] == 2 * CONTEXT and 0 < result["packed_fill"] <= 1
    assert result["val_loss"] == result["best_val_loss"] and len(result["base_sha256"]) == 64
    for name in ("adapter", "merged", "checkpoint", "loss_curve"):
        assert Path(result[name]).exists(), name
    assert json.loads(lines[0])["event"] == "train_start"


def test_options_may_come_from_a_file_and_the_line_wins(call: Call, base: Path, data: Path, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(
        f'data = "{data}"\nbase = "{base}"\nrank = 3\ntargets = ["key"]\nsteps = 9\noutput = "adapter"\n'
    )
    status, out, _ = call("finetune", "--config", settings, "--out", tmp_path / "run", *SHORT, "--target", "query")
    assert status == 0
    result = json.loads(out)
    assert result["steps"] == 2 and "merged" not in result and result["trained_parameters"] == 2 * 3 * (16 + 16)


def test_a_run_is_resumed_by_its_folder_alone(call: Call, base: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call("finetune", base, "--data", data, "--out", run, *SHORT)[0] == 0
    status, out, _ = call("finetune", "--resume", run, "--steps", 3, "--log", "json")
    assert status == 0 and json.loads(out)["steps"] == 3
    status, out, _ = call("finetune", base, "--data", data, "--out", run, "--resume", "auto", *SHORT, "--steps", 4)
    assert status == 0 and json.loads(out)["steps"] == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rank", "0"), "rank 0; wanted at least 1"),
        (("--rank", "99"), "rank 99 is above the smaller side of"),
        (("--target", "nowhere"), "target 'nowhere' matches no linear layer; wanted"),
        (("--method", "full", "--output", "adapter"), "output adapter with method full"),
        (("--context", "65"), "context 65, and the base reads 64 tokens"),
        (("--patience", "1", "--val-fraction", "0"), "patience without validation"),
        (("--precision", "float16"), "precision float16: cpu"),
        (("--batch", "1000000000"), "GB of memory"),
        (("--backend", "abacus"), "abacus"),
        (("--steps", "two"), "'two' is not a valid integer"),
        (("--learn", "prompt"), "learn 'prompt'"),
        (("--adapter-dropout", "1"), "adapter dropout"),
        (("--lr", "nan"), "lr is nan"),
    ],
)
def test_wrong_options_are_status_2(
    call: Call, base: Path, data: Path, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    run = tmp_path / "run"
    refused(call("finetune", base, "--data", data, "--out", run, *SHORT, *options), 2, said)
    assert not (run / "checkpoints").exists()
    assert call("finetune", base, "--data", data, "--out", run, *SHORT)[0] == 0, "the folder can be used after that"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--data", "d.jsonl", "--out", "run"), "finetune needs BASE, the model to begin with"),
        (("base", "--out", "run"), "finetune needs --data FILE.jsonl"),
        (("base", "--data", "d.jsonl"), "finetune needs --out DIR"),
        (("base", "--data", "d.jsonl", "--out", "full"), "full is not empty"),
        (("base", "--data", "d.jsonl", "--out", "full/file"), "is a file"),
        (("base", "--data", "d.jsonl", "--out", ""), "an empty path"),
        (("base", "--data", "", "--out", "run"), "one of them is empty"),
        (("--resume", "", "--out", "run"), "--resume got an empty text"),
        (("--resume", "auto"), "give --out DIR"),
        (("base", "more", "--out", "run"), "unexpected extra argument"),
        (("base", "--config", "absent.toml"), "absent.toml: the configuration cannot be read"),
    ],
)
def test_a_call_that_says_too_little_is_status_2(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    refused(call("finetune", *args), 2, said)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 25: not one JSON object"),
        ('{"prompt": "a", "response": " "}', "line 25: got response ' '"),
        ('{"prompt": "a", "answer": "b"}', "line 25: unknown key 'answer'"),
    ],
)
def test_a_broken_line_is_status_1_or_passed_over(call: Call, base: Path, tmp_path: Path, line: str, said: str) -> None:
    data = write_lines(tmp_path / "d.jsonl", [*examples(), line])
    refused(call("finetune", base, "--data", data, "--out", tmp_path / "a", *SHORT), 1, said)
    status, out, lines = call("finetune", base, "--data", data, "--out", tmp_path / "a", *SHORT, "--skip-bad", 1)
    assert status == 0 and json.loads(out)["examples"]["bad"] == 1
    assert any("1 bad lines passed over: line 25" in each for each in lines)


def test_what_is_no_base_is_status_1(call: Call, data: Path, tmp_path: Path) -> None:
    for name in ("absent", "folder", "text.gguf"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "text.gguf").write_text("no model")
        refused(call("finetune", tmp_path / name, "--data", data, "--out", tmp_path / "run", *SHORT), 1, name)


def test_an_adapter_is_no_base(call: Call, done: Path, data: Path, tmp_path: Path) -> None:
    refused(
        call("finetune", done / "adapter", "--data", data, "--out", tmp_path / "run", *SHORT),
        1,
        "an adapter without its base",
    )


def test_a_run_goes_on_with_its_own_base_and_data(
    call: Call, base: Path, data: Path, done: Path, tmp_path: Path
) -> None:
    other = save_base(tmp_path / "other", seed=4)
    refused(call("finetune", other, "--resume", done, "--steps", 3), 1, "give that base with BASE")
    changed = write_lines(tmp_path / "examples.jsonl", examples(seed=9))
    refused(call("finetune", "--resume", done, "--data", changed, "--steps", 3), 1, "is not the one this run was")
    refused(call("finetune", "--resume", done, "--rank", 2), 2, "a resumed run keeps rank 8, got 2")
    refused(call("finetune", "--resume", done, "--steps", 1), 2, "past --steps 1")


def test_checkpoints_are_not_mistaken_for_one_another(call: Call, done: Path, data: Path, tmp_path: Path) -> None:
    trained = train_base(tmp_path / "trained")
    refused(call("finetune", "--resume", trained), 1, "a checkpoint of turret train; resume it with that")
    refused(call("train", "--resume", done), 1, "a checkpoint of turret finetune; resume it with that")
    checkpoint = done / "checkpoints" / "step-00000002"
    refused(call("generate", checkpoint, "--prompt", "one", "--backend", "cpu"), 1, "which is no model by itself")
    refused(
        call("finetune", checkpoint, "--data", data, "--out", tmp_path / "run", *SHORT),
        1,
        "which is no model by itself",
    )


def test_help_names_every_option_of_the_configuration(call: Call) -> None:
    from turret.train.finetune.config import FinetuneConfig

    status, out, _ = call("finetune", "--help")
    assert status == 0
    special = {"base": "BASE", "targets": "--target", "capture": "--capture / --no-capture"}
    for name in FinetuneConfig(base="b", data="d").to_dict():
        assert special.get(name, "--" + name.replace("_", "-")) in out, name


def test_the_help_says_the_defaults_that_hold(call: Call) -> None:
    from turret.cli.finetune import OPTIONS
    from turret.train.finetune.config import FinetuneConfig

    defaults = FinetuneConfig(base="b", data="d").to_dict()
    for name, _, text in OPTIONS:
        value = defaults[name.replace("-", "_")]
        if value is not None and name not in ("data", "log"):
            assert text.endswith(f"[{value}]"), name
