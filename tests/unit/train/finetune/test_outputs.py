"""What a run leaves is the tuned model: as an adapter on its base, and merged, whatever the base was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tuning_bases import BEGIN, END, eos, go_on, save_base, save_decoder, tokenizer, train_base, tune

from turret.models import LanguageModel, load_pretrained
from turret.models.weights.adapter_files import load_adapter
from turret.registry import open_backend
from turret.spi import CheckpointError, ConfigError
from turret.tensor import no_grad, tensor
from turret.train.finetune import FinetuneResult
from turret.train.opening import Opened, open_model

IDS = [[3, 200, 41, 77, 8, 19, 102, 5]]
RATE: dict[str, Any] = {"lr": 0.05, "steps": 6, "targets": ("query", "value", "down")}


def logits(model: LanguageModel, ids: list[list[int]] = IDS) -> npt.NDArray[Any]:
    with no_grad():
        return model(tensor(ids, backend=model.parameters()[0].backend)).numpy()


def opened(path: str | Path, **options: Any) -> Opened:
    return open_model(Path(path), open_backend("cpu"), **options)


def check(result: FinetuneResult, base: Path, *, quantize: Any = None) -> Opened:
    """The two outputs are one model, which is not the base; returns the merged one."""
    adapted = opened(base, quantize=quantize, adapter=Path(result.outputs["adapter"]))
    merged = opened(result.outputs["merged"])
    plain = logits(opened(base, quantize=quantize).model)
    told, whole = logits(adapted.model), logits(merged.model)
    size = np.abs(told - plain).max()
    assert size > 0.01, "nothing was learned"
    np.testing.assert_allclose(whole, told, atol=2e-5 * max(1.0, np.abs(told).max()))
    return merged


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_merged_is_the_base_and_its_adapter(base: Path, data: Path, tmp_path: Path, method: str) -> None:
    result = tune(base, data, tmp_path / "run", method=method, **RATE)
    merged = check(result, base, quantize="nf4" if method == "qlora" else None)
    assert merged.form == "hf" and merged.eos_ids == (eos(),) and merged.template is not None
    assert merged.tokenizer.encode("one cat").tolist() == tokenizer().encode("one cat").tolist()
    assert merged.model.parameter_count() == result.base.parameters, "every weight is a float again"
    assert opened(tmp_path / "run").source == merged.source, "a run folder means its merged model"


def test_an_adapter_is_read_back_bit_for_bit(base: Path, data: Path, tmp_path: Path) -> None:
    result = tune(base, data, tmp_path / "run", output="adapter", **RATE)
    assert result.outputs.keys() == {"adapter"} and not (tmp_path / "run" / "merged").exists()
    again = load_adapter(result.outputs["adapter"], load_pretrained(base, backend="cpu").model)
    state = result.base.state()
    assert again.keys() == dict(result.base.adapters or {}).keys()
    assert all(np.array_equal(value, state[name]) for name, value in again.state_dict().items())
    np.testing.assert_array_equal(logits(again.model), logits(result.base.model))  # type: ignore[arg-type]


def test_an_adapter_fits_no_other_base(base: Path, data: Path, tmp_path: Path) -> None:
    result = tune(base, data, tmp_path / "run", output="adapter")
    other = save_base(tmp_path / "other", seed=3)
    with pytest.raises(ConfigError, match="trained on a base with fingerprint"):
        opened(other, adapter=Path(result.outputs["adapter"]))


def test_a_whole_tuned_model_is_written(base: Path, data: Path, tmp_path: Path) -> None:
    result = tune(base, data, tmp_path / "run", method="full", lr=0.01)
    assert result.outputs.keys() == {"merged"}
    merged = load_pretrained(result.outputs["merged"], backend="cpu").model
    state = result.base.model.state_dict()
    assert all(np.array_equal(value, state[name]) for name, value in merged.state_dict().items())
    assert not np.array_equal(logits(merged), logits(load_pretrained(base, backend="cpu").model))


def test_the_other_family_has_both_outputs(tmp_path: Path, data: Path) -> None:
    base = save_decoder(tmp_path / "base")
    result = tune(base, data, tmp_path / "run", **(RATE | {"targets": ("query", "key", "value", "expand")}))
    assert check(result, base).architecture == "gpt2"


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_a_run_of_turret_on_bytes_stays_one(trained: Path, data: Path, tmp_path: Path, method: str) -> None:
    result = tune(trained, data, tmp_path / "run", method=method, **(RATE | {"targets": ("query", "up")}))
    merged = check(result, trained, quantize="nf4" if method == "qlora" else None)
    assert (merged.form, merged.tokenizer.name, merged.eos_ids) == ("checkpoint", "reserved-bytes", (1,))
    assert opened(tmp_path / "run").source == merged.source


@pytest.mark.parametrize("family", ["mini", "decoder"])
def test_a_run_of_turret_with_a_tokenizer_keeps_it(tmp_path: Path, data: Path, family: str) -> None:
    words = tmp_path / "tokenizer.json"
    words.write_text(tokenizer().to_json().replace(END, "<|endoftext|>").replace(BEGIN, "<|other|>"))
    base = train_base(tmp_path / "base", "--tokenizer", str(words), model=family)
    result = tune(base, data, tmp_path / "run", **(RATE | {"targets": ("value", "output")}))
    merged = check(result, base)
    assert merged.form == "safetensors" and merged.eos_ids == (1,)


def test_the_layout_of_the_base_is_kept(tmp_path: Path, data: Path) -> None:
    base = save_base(tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
    (base / "config.json").write_text(json.dumps(config))
    result = tune(base, data, tmp_path / "run", steps=2, output="merged")
    assert json.loads((Path(result.outputs["merged"]) / "config.json").read_text())["model_type"] == "mistral"


def test_outputs_of_an_earlier_end_do_not_stay(base: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tune(base, data, run, lr=0.01)
    (run / ".saving-left").mkdir()
    result = go_on(run, steps=6, output="adapter")
    assert result.outputs.keys() == {"adapter"}
    assert not (run / "merged").exists() and not list(run.glob(".saving-*"))
    before = (run / "adapter" / "adapter_model.safetensors").read_bytes()
    result = go_on(run, steps=8, output="both")
    assert (run / "adapter" / "adapter_model.safetensors").read_bytes() != before
    check(result, base)


def test_what_cannot_be_written_leaves_the_checkpoint(base: Path, data: Path, tmp_path: Path) -> None:
    """A file stands where the merged model is to be."""
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").touch()
    tune(base, data, run, output="adapter")
    (run / "merged").write_text("mine")
    with pytest.raises(CheckpointError, match="merged is there already"):
        go_on(run, output="both")
    assert (run / "merged").read_text() == "mine"
    (run / "merged").unlink()
    check(go_on(run, output="both", steps=6), base)


def test_a_tuned_model_is_a_base_again(base: Path, data: Path, tmp_path: Path) -> None:
    first = tune(base, data, tmp_path / "first", **RATE)
    second = tune(tmp_path / "first", data, tmp_path / "second", **RATE)
    assert second.base.fingerprint != first.base.fingerprint
    check(second, Path(first.outputs["merged"]))


def test_a_merged_model_can_come_alone(base: Path, data: Path, tmp_path: Path) -> None:
    result = tune(base, data, tmp_path / "run", output="merged")
    assert result.outputs.keys() == {"merged"} and not (tmp_path / "run" / "adapter").exists()
