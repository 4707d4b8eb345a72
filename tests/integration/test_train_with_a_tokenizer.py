"""A run on subword tokens: self-contained checkpoints, and bit-equal losses however it was killed."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from runs import TINY, final_hashes, finish, losses, start, steps_done, wait_for_step

from turret.cli import main
from turret.registry import open_backend
from turret.train import load_model, read_manifest

STEPS = 30
WORDS = "the of and a to in is that it for was on are as with whose together another between".split()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A corpus of two files, its tokenizer, and another tokenizer."""
    folder = tmp_path_factory.mktemp("files")
    draw = random.Random(3)
    (folder / "corpus").mkdir()
    for name in ("a.txt", "b.txt"):
        lines = (" ".join(draw.choices(WORDS, k=9)) for _ in range(250))
        (folder / "corpus" / name).write_text("\n".join(lines) + "\n")
    named = {"corpus": str(folder / "corpus")}
    for name, size in (("tokenizer", "290"), ("other", "280")):
        named[name] = str(folder / f"{name}.json")
        options = ["--corpus", named["corpus"], "--vocabulary", size, "--out", named[name]]
        assert main(["tokenizer", "train", *options]) == 0
    return named


def options(files: dict[str, str], run: Path) -> list[str]:
    wanted = ("--out", str(run), "--corpus", files["corpus"], "--tokenizer", files["tokenizer"])
    return [*wanted, "--steps", str(STEPS), *TINY]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, files: dict[str, str]) -> Path:
    """A run that was never interrupted; what it printed lies beside it."""
    run = tmp_path_factory.mktemp("whole") / "run"
    ended = finish(*options(files, run))
    assert ended.returncode == 0, ended.stderr
    (run.parent / "printed.json").write_text(ended.stdout)
    return run


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    status = main(list(args))
    printed = capsys.readouterr()
    return status, printed.out, printed.err.splitlines()[-1] if printed.err else ""


def test_the_run_is_on_the_tokenizers_ids(whole: Path, files: dict[str, str]) -> None:
    from turret.data.subword import SubwordTokenizer

    printed: dict[str, Any] = json.loads((whole.parent / "printed.json").read_text())
    tokenizer = SubwordTokenizer.from_file(files["tokenizer"])
    texts = [path.read_text() for path in sorted(Path(files["corpus"]).iterdir())]
    ids = [tokenizer.encode(text) for text in texts]
    count = sum(len(each) for each in ids) + 1
    assert printed["bytes_per_token"] == round(sum(map(len, texts)) / count, 4) > 2
    manifest = read_manifest(whole)
    assert manifest.tokenizer == "subword"
    assert manifest.model["config"]["vocabulary"] == 290
    assert manifest.extra["tokens"]["count"] == count
    assert (whole / "tokens.bin").stat().st_size == 4 * count


def test_a_checkpoint_needs_no_other_file(
    tmp_path: Path, whole: Path, files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    from turret.cli.generate import command

    shutil.copytree(whole / "checkpoints", tmp_path / "run" / "checkpoints")
    run = tmp_path / "run"
    trained = load_model(run, open_backend("cpu"))
    assert (trained.tokenizer.name, trained.tokenizer.vocabulary_size, trained.tokenizer.eos_id) == ("subword", 290, 0)
    args = [str(run), "--prompt", "the of ", "--backend", "cpu", "--max-new-tokens", "20", "--seed", "3"]
    first, second = (CliRunner().invoke(command, args, catch_exceptions=False) for _ in range(2))
    assert first.exit_code == 0 and first.stdout == second.stdout and first.stdout.startswith("the of ")
    status, out, _ = call(capsys, "inspect", str(run), "--json")
    described = json.loads(out)
    assert status == 0 and described["tokenizer"] == "subword"
    assert described["files"].keys() == {"model.safetensors", "optimizer.safetensors", "tokenizer.json"}
    assert described["train"]["tokenizer_file"] == files["tokenizer"]


def test_a_damaged_tokenizer_in_a_checkpoint_is_found(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole / "checkpoints", tmp_path / "run" / "checkpoints")
    name = (tmp_path / "run" / "checkpoints" / "latest").read_text().strip()
    place = tmp_path / "run" / "checkpoints" / name / "tokenizer.json"
    place.write_bytes(place.read_bytes().replace(b"BPE", b"BPF", 1))
    for command in (["inspect"], ["generate", "--prompt", "a", "--backend", "cpu"]):
        status, out, err = call(capsys, *command, str(tmp_path / "run"))
        assert (status, out) == (1, "") and "tokenizer.json: damaged or edited" in err


def interrupted(files: dict[str, str], run: Path) -> None:
    process = start(*options(files, run))
    wait_for_step(process, run, 8)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert 8 <= steps_done(run) < STEPS


def test_a_resumed_run_needs_neither_the_tokenizer_nor_the_kept_tokens(
    tmp_path: Path, files: dict[str, str], whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    (tmp_path / "t.json").write_bytes(Path(files["tokenizer"]).read_bytes())
    interrupted({**files, "tokenizer": str(tmp_path / "t.json")}, run)
    (tmp_path / "t.json").unlink()
    status, _, err = call(capsys, "train", "--out", str(run), "--resume", "auto", "--tokenizer", files["other"])
    assert status == 2 and "is not the tokenizer of this run" in err
    (run / "tokens.bin").write_bytes((run / "tokens.bin").read_bytes()[:-4])
    status, _, err = call(capsys, "train", "--out", str(run), "--resume", "auto")
    assert status == 1 and "tokens.bin has " in err and "remove it" in err
    (run / "tokens.bin").unlink()
    # The same tokenizer is welcome from anywhere.
    ended = finish("--out", str(run), "--resume", "auto", "--tokenizer", files["tokenizer"])
    assert ended.returncode == 0, ended.stderr
    assert losses(run) == losses(whole)
    assert final_hashes(run) == final_hashes(whole)


@pytest.mark.slow
def test_a_run_goes_on_in_another_folder(tmp_path: Path, files: dict[str, str], whole: Path) -> None:
    interrupted(files, tmp_path / "run")
    ended = finish("--out", str(tmp_path / "new"), "--resume", str(tmp_path / "run"))
    assert ended.returncode == 0, ended.stderr
    assert final_hashes(tmp_path / "new") == final_hashes(whole)


@pytest.mark.slow
def test_killed_at_any_instant_the_losses_are_bit_equal(tmp_path: Path, files: dict[str, str], whole: Path) -> None:
    run, draw = tmp_path / "run", random.Random(5)
    for _ in range(8):
        process = start(*options(files, run), "--resume", "auto")
        wait_for_step(process, run, steps_done(run) + draw.randrange(0, 5))
        process.send_signal(signal.SIGKILL)
        process.wait()
    ended = finish(*options(files, run), "--resume", "auto")
    assert ended.returncode == 0, ended.stderr
    assert losses(run) == losses(whole)
    assert final_hashes(run) == final_hashes(whole)


DIE_WHILE_ENCODING = """
import os, signal, sys
count = int(os.environ["TOUCH"])
def hook(event, arguments):
    global count
    if event in ("open", "os.rename", "os.remove") and "tokens." in str(arguments[0]):
        count -= 1
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
"""


@pytest.mark.slow
@pytest.mark.parametrize("touch", [1, 2, 3, 4, 5, 6])
def test_killed_while_tokens_are_made_the_run_begins_anew(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch, touch: int
) -> None:
    run = tmp_path / "run"
    few = [*options(files, run), "--resume", "auto", "--steps", "3"]
    monkeypatch.setenv("TOUCH", str(touch))
    assert finish(*few, first=DIE_WHILE_ENCODING).returncode == -signal.SIGKILL
    ended = finish(*few)
    assert ended.returncode == 0, ended.stderr
    assert steps_done(run) == 3


NO_ROOM = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))
"""


def test_without_room_for_the_tokens_nothing_is_left_and_the_run_can_begin_later(
    tmp_path: Path, files: dict[str, str]
) -> None:
    run = tmp_path / "run"
    full = finish(*options(files, run), first=NO_ROOM)
    assert full.returncode == 1
    error = full.stderr.splitlines()[-1]
    assert error.startswith("error: cannot keep the tokens of ") and "check its space" in error
    assert [path.name for path in run.iterdir()] == [".lock"]
    ended = finish(*options(files, run), "--steps", "3")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"--tokenizer": "nowhere.json"}, 1, "nowhere.json"),
        ({"--tokenizer": ""}, 2, "tokenizer got an empty text"),
        ({"--tokenizer": "words.txt"}, 1, "words.txt"),
        ({"--tokenizer": "."}, 1, "."),
        ({"--corpus": "words.txt"}, 1, "has 5 tokens, context 16 needs at least 17"),
        ({"--context": "100000000"}, 2, "memory"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_and_uses_nothing_up(
    tmp_path: Path,
    files: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("the of and")
    wanted = {"--corpus": files["corpus"], "--tokenizer": files["tokenizer"], "--steps": "3", "--val-fraction": "0"}
    given = [word for option in (wanted | change).items() for word in option]
    got, out, err = call(capsys, "train", "--out", "run", *TINY, *given)
    assert (got, out) == (status, "")
    assert err.startswith("error: ")
    assert message in err
    good = [word for option in wanted.items() for word in option]
    assert call(capsys, "train", "--out", "run", *TINY, *good)[0] == 0


@pytest.mark.parametrize(
    ("largest", "status", "message"),
    [
        (2**22 - 1, 2, "GB of memory"),
        (2**22, 1, "largest token id"),
        (2**32 - 1, 1, ""),
        (2**32, 1, ""),
    ],
)
def test_ids_that_no_machine_has_rows_for_are_refused_before_the_model_is_made(
    tmp_path: Path, files: dict[str, str], capsys: pytest.CaptureFixture[str], largest: int, status: int, message: str
) -> None:
    raw = json.loads(Path(files["tokenizer"]).read_text())
    raw["model"]["vocab"]["zz"] = largest
    (tmp_path / "t.json").write_text(json.dumps(raw))
    given = ["--corpus", files["corpus"], "--tokenizer", str(tmp_path / "t.json"), *TINY, "--width", "1000000"]
    got, out, err = call(capsys, "train", "--out", str(tmp_path / "run"), *given)
    assert (got, out) == (status, "")
    assert err.startswith("error: ") and message in err
    assert not (tmp_path / "run").exists()


def test_the_configuration_file_names_it_as_the_option_does(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "run.toml").write_text(f'tokenizer = "{files["tokenizer"]}"\nsteps = 3\n')
    given = ["--config", str(tmp_path / "run.toml"), "--corpus", files["corpus"], *TINY]
    assert main(["train", "--out", str(tmp_path / "run"), *given]) == 0
    assert read_manifest(tmp_path / "run").tokenizer == "subword"


def test_a_run_on_bytes_is_not_resumed_with_a_tokenizer(
    tmp_path: Path, files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert main(["train", "--out", run, "--corpus", files["corpus"], "--steps", "3", *TINY]) == 0
    capsys.readouterr()
    status, _, err = call(capsys, "train", "--resume", run, "--tokenizer", files["tokenizer"])
    assert status == 2 and "keeps its bytes" in err
