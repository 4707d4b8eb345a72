"""What users get wrong on `turret train` and `turret generate`: one line, status 2 (1 for data), nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from turret.cli import main

SMALL = [
    *("--backend", "cpu", "--layers", "1", "--heads", "2", "--width", "16", "--context", "16", "--batch", "2"),
    *("--steps", "4", "--eval-batches", "1", "--log", "json"),
]


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    status = main(list(args))
    out, err = capsys.readouterr()
    return status, out, err


def error_of(err: str) -> str:
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, err
    return lines[0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--model", "decodr"], "decodr"),
        (["--width", "30", "--heads", "4"], "does not divide"),
        (["--heads", "4", "--kv-heads", "3"], "do not divide"),
        (["--layers", "0"], "layers 0"),
        (["--batch", "-1"], "batch -1"),
        (["--context", "0"], "context 0"),
        (["--steps", "0"], "steps 0"),
        (["--steps", "abc"], "abc"),
        (["--lr", "0"], "lr 0"),
        (["--lr", "nan"], "number"),
        (["--min-lr", "1"], "min_lr 1"),
        (["--warmup", "4"], "warmup"),
        (["--schedule", "cosin"], "cosin"),
        (["--beta1", "1"], "beta1 1"),
        (["--weight-decay", "-0.5"], "weight_decay -0.5"),
        (["--grad-clip", "0"], "grad_clip 0"),
        (["--val-fraction", "1"], "val_fraction 1"),
        (["--seed", "-1"], "seed -1"),
        (["--keep", "0"], "keep 0"),
        (["--width", "1000000"], "memory"),
        (["--layers", "100000000"], "memory"),
        (["--ff", "9" * 18], "memory"),
        (["--ff", "9" * 24], "2**63"),
        *((["--" + name, "1" + "0" * 400], "2**63") for name in ("width", "ff", "layers", "eval-batches", "context")),
        (["--model", "mini", "--width", "1" + "0" * 400], "2**63"),
        (["--seed", "1" + "0" * 400], "2**64"),
        (["--optimizer-page", "1" + "0" * 400], "2**63"),
        (["--optimizer-page", "1", "--layers", "4", "--width", "128"], "at least"),
        (["--context", "1000000000000"], "memory"),
        (["--batch", "1000000000000"], "memory"),
        (["--accumulate", "1000000000000"], "memory"),
        (["--eval-batches", "1000000000000"], "memory"),
        (["--steps", "9" * 24], "2**63"),
        (["--config", "/dev/null"], "regular file"),
        (["--config", ""], "empty path"),
        (["--log", "loud"], "loud"),
        (["--backend", "cuda9"], "cuda9"),
        (["--backend", "cpu:7"], "'7'"),
        (["--corpus", "builtin:pyton-docs"], "builtin:pyton-docs"),
        (["--no-such-option", "1"], "no-such-option"),
        (["--resume", "auto", "--model", "mni"], "mni"),
        (["--resume", ""], "--resume"),
        (["--config", "/nonexistent/x.toml"], "x.toml"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_bad_option_is_named_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], named: str
) -> None:
    out = tmp_path / "run"
    status, stdout, err = call(capsys, "train", "--out", str(out), *SMALL, *options)
    assert status in ((1, 2) if "cpu:7" in options else (2,))
    assert stdout == ""
    assert named in error_of(err)
    assert len(error_of(err)) < 600
    assert not out.exists() or [path.name for path in out.iterdir()] == [".lock"]


@pytest.mark.parametrize("made", ["missing", "empty", "binary", "short", "folder without files"])
def test_a_corpus_that_cannot_be_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], made: str) -> None:
    source = tmp_path / "corpus.bin"
    if made == "folder without files":
        source.mkdir()
    elif made != "missing":
        source.write_bytes({"empty": b"", "binary": b"abc\xff\xfe" * 100, "short": b"abc"}[made])
    status, stdout, err = call(capsys, "train", "--out", str(tmp_path / "run"), "--corpus", str(source), *SMALL)
    assert (status, stdout) == (1, "")
    assert "corpus" in error_of(err)
    status = main(["train", "--out", str(tmp_path / "run"), *SMALL])
    assert status == 0, "the refused call must not have used up the folder"


def test_a_folder_with_files_is_refused_as_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for extra in ([], ["--resume", "auto"]):
        status, _, err = call(capsys, "train", "--out", str(tmp_path), *SMALL, *extra)
        assert status == 2 and "not empty" in error_of(err)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_train_without_out_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, "train", *SMALL)
    assert status == 2 and "--out" in error_of(err)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("lr = 'fast'", "lr is 'fast'"),
        ("stepz = 3", "did you mean 'steps'"),
        ("steps = 2.5", "steps is 2.5"),
        ("steps = true", "steps is True"),
        ("corpus = 3", "corpus is 3"),
        ("min-lr = 0.1\nmin_lr = 0.1", "twice"),
        ("steps =", "TOML"),
        *((f"{name} = 1{'0' * 400}", f"{name} is 1000") for name in ("lr", "dropout", "min_lr", "grad_clip")),
        (f"steps = 1{'0' * 400}", "2**63"),
        (f"steps = {'9' * 5000}", "more digits than Python reads"),
        (f"lr = {'9' * 5000}", "more digits than Python reads"),
        (f"lr = 0x{'f' * 9000}", "lr is a int too long"),
        (f"width = 0x{'f' * 9000}", "2**63"),
        (f"log = '{'x' * 5000}'", "wanted one of auto, progress, json"),
    ],
    ids=lambda text: text[:30],
)
def test_a_bad_configuration_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, named: str
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    status, _, err = call(capsys, "train", "--out", str(tmp_path / "run"), "--config", str(file))
    assert status == 2
    assert named in error_of(err)
    assert len(error_of(err)) < 400
    assert not (tmp_path / "run").exists()


def test_the_command_line_beats_the_file_which_beats_defaults(tmp_path: Path) -> None:
    from turret.train import read_manifest

    file, out = tmp_path / "run.toml", tmp_path / "run"
    file.write_text("steps = 3\nlayers = 2\neval-batches = 1\nseed = 5\n")
    status = main(["train", "--out", str(out), "--config", str(file), *SMALL, "--steps", "2"])
    assert status == 0
    train = read_manifest(out).train
    assert (train["steps"], train["layers"], train["seed"], train["keep"]) == (2, 1, 5, 3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", "--out", str(out), *SMALL]) == 0
    return out


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--top-k", "0"], "top_k"),
        (["--top-p", "0"], "top_p"),
        (["--top-p", "1.5"], "top_p"),
        (["--max-new-tokens", "0"], "max_new_tokens"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_bad_sampling_is_named(
    trained: Path, capsys: pytest.CaptureFixture[str], options: list[str], named: str
) -> None:
    status, out, err = call(capsys, "generate", str(trained), "--prompt", "a", "--backend", "cpu", *options)
    assert (status, out) == (2, "")
    assert named in error_of(err)


def test_generate_streams_prompt_and_continuation(trained: Path) -> None:
    from turret.cli.generate import command

    args = [str(trained), "--prompt", "h\u00e9", "--backend", "cpu", "--max-new-tokens", "40", "--seed", "3"]
    first, second = (CliRunner().invoke(command, args, catch_exceptions=False) for _ in range(2))
    assert first.exit_code == 0
    assert first.stdout.startswith("h\u00e9")
    assert first.stdout == second.stdout


def test_inspect_reports_what_the_checkpoint_holds(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    status, out, _ = call(capsys, "inspect", str(trained), "--json")
    assert status == 0
    described = json.loads(out)
    assert described["step"] == 4 and described["model"] == "decoder"
    assert described["tensors"]["token_embedding.weight"] == [256, 16]
    status, _, err = call(capsys, "inspect", str(trained / "nothing"))
    assert status == 1 and "does not exist" in error_of(err)


def test_an_exploding_run_stops_and_keeps_the_last_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    options = ["--lr", "1e36", "--min-lr", "0", "--warmup", "0", "--schedule", "constant", "--checkpoint-every", "1"]
    status, stdout, err = call(capsys, "train", "--out", str(out), *SMALL, "--steps", "30", *options)
    assert (status, stdout) == (1, "")
    assert "step " in error_of(err)
    from turret.train import CheckpointStore

    kept = CheckpointStore(out).latest_good()
    assert kept.checkpoint is not None and not kept.skipped


def test_a_run_without_room_for_its_picture_still_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    out = tmp_path / "run"
    assert call(capsys, "train", "--out", str(out), *SMALL)[0] == 0
    (out / "loss.png").unlink()
    (out / "loss.png").mkdir()
    status, stdout, err = call(capsys, "train", "--resume", str(out))
    assert status == 0
    assert json.loads(stdout)["loss_curve"] is None
    assert "loss.png" in err


def test_a_resumed_run_keeps_what_decides_its_losses(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, "train", "--resume", str(trained), "--lr", "0.5")
    assert status == 2
    assert "keeps lr" in error_of(err)


@pytest.mark.parametrize("model", ["decoder", "mini"])
def test_both_families_train_and_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str) -> None:
    out = tmp_path / "run"
    options = ["--model", model, "--accumulate", "2", "--heads", "2", "--kv-heads", "1", "--width", "16"]
    assert call(capsys, "train", "--out", str(out), *SMALL, *options)[0] == 0
    args = ["generate", str(out), "--prompt", "The ", "--backend", "cpu", "--max-new-tokens", "50", "--top-k", "5"]
    status = main(args)
    assert status == 0
