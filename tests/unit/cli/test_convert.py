"""`turret convert` writes a folder that says the same: bytes become a tokenizer.json, an adapter is merged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_models import parrot, random_mini, saved, template, tokenizer

from turret.cli import main
from turret.models import DecoderConfig, MiniConfig, build_model, load_pretrained, save_pretrained
from turret.models.weights.adapter_files import save_adapter
from turret.nn import attach_adapters, pack_linears
from turret.registry import use_backend
from turret.train.checkpoint import CheckpointContent, write_checkpoint


def call(capsys: pytest.CaptureFixture[str], command: str, *args: str) -> tuple[int, str, str]:
    status = main([command, *args, "--backend", "cpu"])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def checkpoint(folder: Path, kind: str, words: str) -> Path:
    """A checkpoint of turret of a random model on bytes."""
    sizes: dict[str, Any] = {"vocabulary": 262 if words == "reserved-bytes" else 256, "context": 32, "width": 16}
    config = DecoderConfig(**sizes) if kind == "decoder" else MiniConfig(**sizes)
    with use_backend("cpu"):
        model = build_model(config, seed=4)
    content = CheckpointContent(
        model={"kind": kind, "config": model.config_dict()},
        train={},
        tokenizer=words,
        data={},
        step=0,
        tokens_seen=0,
        position={"step": 0, "tokens_seen": 0},
        random={},
        parameters=model.state_dict(),
        optimizer={"m": np.zeros(1, np.float32)},
    )
    return write_checkpoint(folder, content)


def said(capsys: pytest.CaptureFixture[str], place: Path, *more: str) -> str:
    options = ["--prompt", "caf\u00e9 <|eos|>", "--temperature", "0.5", "--max-new-tokens", "16", *more]
    status, out, err = call(capsys, "generate", str(place), *options)
    assert (status, err) == (0, "")
    return out


@pytest.mark.parametrize("words", ["bytes", "reserved-bytes"])
@pytest.mark.parametrize(("kind", "form"), [("mini", "hf"), ("mini", "safetensors"), ("decoder", "safetensors")])
def test_a_checkpoint_says_the_same_in_another_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, kind: str, form: str
) -> None:
    place, out = checkpoint(tmp_path / "run", kind, words), tmp_path / "out"
    status, printed, err = call(capsys, "convert", str(place), "--to", form, "--out", str(out))
    assert (status, err) == (0, "")
    described = json.loads(printed)
    assert described["form"] == form and described["from"] == "checkpoint" and not described["chat_template"]
    assert described["architecture"] == ("llama" if form == "hf" else "turret")
    assert described["bytes"] == sum(each.stat().st_size for each in out.iterdir())
    assert said(capsys, out) == said(capsys, place)
    eos = load_pretrained(out, backend="cpu").eos_ids
    assert eos == ((1,) if words == "reserved-bytes" else ())


def test_a_decoder_that_no_published_layout_has_names_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = checkpoint(tmp_path / "run", "decoder", "bytes")
    status, out, err = call(capsys, "convert", str(place), "--to", "hf", "--out", str(tmp_path / "out"))
    assert (status, out) == (1, "") and "--to safetensors" in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_tokenizer_template_and_architecture_come_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = random_mini(context=40)
    place = saved(model, tmp_path / "model")
    config = json.loads((place / "config.json").read_text())
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
    (place / "config.json").write_text(json.dumps(config))
    own, back = tmp_path / "own", tmp_path / "back"
    assert call(capsys, "convert", str(place), "--to", "safetensors", "--out", str(own))[0] == 0
    assert call(capsys, "convert", str(place), "--to", "hf", "--out", str(back))[0] == 0
    for folder in (own, back):
        loaded = load_pretrained(folder, backend="cpu")
        assert loaded.tokenizer is not None and loaded.template is not None
        assert loaded.tokenizer.fingerprint == tokenizer().fingerprint and loaded.template.source == template().source
        assert loaded.eos_ids == (tokenizer().eos_id,)
        for name, value in loaded.model.state_dict().items():
            np.testing.assert_array_equal(value, model.state_dict()[name])
    assert json.loads((back / "config.json").read_text())["model_type"] == "mistral"


def test_an_adapter_is_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = random_mini(context=60)
    base = saved(model, tmp_path / "base")
    adapters = attach_adapters(model, rank=2, alpha=4.0, targets=("*",))
    adapters.load_state_dict({name: value + np.float32(0.1) for name, value in adapters.state_dict().items()})
    save_adapter(tmp_path / "adapter", model, adapters)
    wanted = said(capsys, base, "--adapter", str(tmp_path / "adapter"))
    options = ["--to", "hf", "--out", str(tmp_path / "out"), "--adapter", str(tmp_path / "adapter")]
    status, printed, _ = call(capsys, "convert", str(base), *options)
    assert status == 0 and json.loads(printed)["adapter"] == str(tmp_path / "adapter")
    assert said(capsys, tmp_path / "out") == wanted != said(capsys, base)


def test_weights_of_four_bits_are_written_as_what_they_stand_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = random_mini(context=40)
    pack_linears(model)
    place = save_pretrained(model, tmp_path / "model", tokenizer=tokenizer())
    assert call(capsys, "convert", str(place), "--to", "safetensors", "--out", str(tmp_path / "out"))[0] == 0
    first, second = (load_pretrained(each, backend="cpu").model.state_dict() for each in (place, tmp_path / "out"))
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])


def test_what_is_there_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = saved(parrot("red", context=20, ends=True), tmp_path / "model")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    for name in ("file", "link", "model"):
        status, out, err = call(capsys, "convert", str(place), "--to", "hf", "--out", str(tmp_path / name))
        assert (status, out, err.count("\n")) == (2, "", 1) and "stays as it is" in err
    assert (tmp_path / "file").read_text() == "mine"
    assert call(capsys, "convert", str(place), "--to", "hf", "--out", str(tmp_path / "empty"))[0] == 0


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"--to": "gguf"}, 2, "gguf"),
        ({"--out": ""}, 2, "empty path"),
        ({"--out": "nul\0"}, 1, "could not be written"),
        ({"--adapter": "nowhere"}, 1, "nowhere"),
    ],
    ids=ascii,
)
def test_what_makes_no_sense_is_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(parrot("red", context=20, ends=True), tmp_path / "model")
    options = {"--to": "hf", "--out": "out"} | change
    got, out, err = call(capsys, "convert", "model", *(word for option in options.items() for word in option))
    assert (got, out, err.count("\n")) == (status, "", 1)
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_is_no_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("nothing", "."):
        status, out, err = call(
            capsys, "convert", str(tmp_path / place), "--to", "hf", "--out", str(tmp_path / "a" / "b")
        )
        assert (status, out) == (1, "") and err.count("\n") == 1
    assert not (tmp_path / "a").exists()
