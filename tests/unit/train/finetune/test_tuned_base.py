"""A base is frozen or trained as its method says, is known by its bits, and is refused where it does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tuning_bases import CONTEXT, examples, go_on, mini, save_base, settings, template, tokenizer, tune, write_lines

from turret.models import load_pretrained, save_pretrained
from turret.nn import LowRankAdapter, PackedLinear, base_fingerprint
from turret.registry import open_backend
from turret.spi import CheckpointError, ConfigError, NonFiniteError, TurretError
from turret.train.finetune.tuned_base import open_base


def opened(base: Path, data: Path, **changed: Any) -> Any:
    config = settings(base, data, **changed)
    return open_base(config, open_backend("cpu"))


@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
def test_only_what_is_learned_can_change(base: Path, data: Path, method: str) -> None:
    made = opened(base, data, method=method, targets=("query", "down"))
    trainable = {name for name, parameter in made.model.named_parameters() if parameter.trainable}
    packed = [m for m in made.model.modules() if isinstance(m, PackedLinear)]
    assert bool(packed) == (method == "qlora")
    if method == "full":
        assert trainable == set(mini().state_dict()) == set(made.state())
    else:
        layers = [f"blocks.{n}.{kind}" for n in (0, 1) for kind in ("attention.query", "feed_forward.down")]
        assert trainable == {f"{layer}.adapter.{part}" for layer in layers for part in "ab"} == set(made.state())
    assert made.parameters == mini().parameter_count(), "packed weights count as what they stand for"
    assert made.trained_parameters == sum(value.size for value in made.state().values())


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_tuning_changes_no_bit_of_the_base(base: Path, data: Path, tmp_path: Path, method: str) -> None:
    quantize: Any = "nf4" if method == "qlora" else None
    before = base_fingerprint(load_pretrained(base, backend="cpu", quantize=quantize).model)
    result = tune(base, data, tmp_path / "run", method=method, lr=0.01, output="adapter")
    assert result.base.fingerprint == before == base_fingerprint(result.base.model)
    assert any(np.any(value) for name, value in result.base.state().items() if name.endswith(".b")), "nothing learned"


def test_a_state_comes_back(base: Path, data: Path) -> None:
    for method in ("lora", "full"):
        made = opened(base, data, method=method)
        state = {name: value + np.float32(1) for name, value in made.state().items()}
        made.load(state)
        assert all(np.array_equal(value, state[name]) for name, value in made.state().items())


def test_a_target_that_matches_nothing_lists_what_there_is(base: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match=r"target 'qurey' matches no linear layer; wanted .*query.*value"):
        opened(base, data, targets=("value", "qurey"))


def test_a_rank_above_a_layer_is_refused(base: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match=r"rank 9 is above the smaller side of blocks\.0\.attention\.value"):
        opened(base, data, rank=9)


@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
def test_nan_in_the_base_is_refused_by_its_name(tmp_path: Path, data: Path, method: str) -> None:
    base = save_base(tmp_path / "base")
    arrays = {name: value.copy() for name, value in load_file(base / "model.safetensors").items()}
    name = next(name for name in arrays if "gate" in name)
    arrays[name].flat[5] = np.nan
    save_file(arrays, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(NonFiniteError, match="gate"):
        tune(base, data, tmp_path / "run", method=method)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_context_above_that_of_the_base_is_refused(base: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match=f"context {CONTEXT + 1}, and the base reads {CONTEXT} tokens"):
        opened(base, data, context=CONTEXT + 1)


@pytest.mark.parametrize("changed", [{"batch": 10**9}, {"accumulate": 10**10}])
def test_sizes_that_no_memory_holds_are_refused_before_they_are_tried(
    base: Path, data: Path, changed: dict[str, int]
) -> None:
    with pytest.raises(ConfigError, match="GB of memory"):
        opened(base, data, **changed)


def test_pages_without_number_are_refused(tmp_path: Path, data: Path) -> None:
    base = save_base(tmp_path / "wide", width=96)
    assert mini(width=96).parameter_count() > 100_000
    with pytest.raises(ConfigError, match="optimizer-page 1 cuts"):
        opened(base, data, method="full", optimizer_page=1)
    assert opened(base, data, method="lora", optimizer_page=1).trained_parameters < 100_000


@pytest.fixture(scope="module")
def four_bits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base with one layer in the form of bitsandbytes."""
    from turret.quant import PackedWeight, bitsandbytes

    folder = save_pretrained(
        mini(), tmp_path_factory.mktemp("packed") / "base", tokenizer=tokenizer(), template=template()
    )
    arrays = load_file(folder / "model.safetensors")
    loaded = load_pretrained(folder, backend="cpu").model
    linears = {name: value for name, value in arrays.items() if "proj" in name}
    del loaded
    from turret.registry import use_backend
    from turret.tensor import tensor

    with use_backend(open_backend("cpu")):
        packed = {name: PackedWeight.pack(tensor(value), scales="dynamic") for name, value in linears.items()}
        bitsandbytes.save(folder / "packed.safetensors", packed)
    rest = {name: value for name, value in arrays.items() if name not in linears}
    save_file(rest | load_file(folder / "packed.safetensors"), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "packed.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_base_of_four_bits_is_for_qlora(four_bits: Path, data: Path, method: str) -> None:
    with pytest.raises(ConfigError, match=f"have 4 bits, which method {method} does not take; use qlora"):
        opened(four_bits, data, method=method)


def test_qlora_takes_packed_weights_as_they_are(four_bits: Path, data: Path) -> None:
    made = opened(four_bits, data, method="qlora")
    assert made.fingerprint == base_fingerprint(load_pretrained(four_bits, backend="cpu").model)


@pytest.mark.parametrize("name", ["absent", "empty", "text.gguf", "nul\0"])
def test_no_base_is_one_line(tmp_path: Path, data: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(TurretError) as caught:
        opened(tmp_path / name, data)
    assert "\n" not in str(caught.value)


def test_a_run_goes_on_with_the_base_that_it_was_begun_with(base: Path, data: Path, tmp_path: Path) -> None:
    tune(base, data, tmp_path / "run")
    other = save_base(tmp_path / "other", seed=5)
    with pytest.raises(CheckpointError, match=r"tuned on a base with fingerprint [0-9a-f]{16}\.\.\., and .*other has"):
        go_on(tmp_path / "run", base=str(other), steps=6)
    moved = tmp_path / "moved"
    base_again = save_base(moved)
    assert go_on(tmp_path / "run", base=str(base_again), steps=6).done.step == 6


def test_a_base_may_be_a_run_of_turret(trained: Path, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "d.jsonl", examples(8))
    before = {path: path.read_bytes() for path in (trained / "checkpoints").rglob("*") if path.is_file()}
    for method in ("lora", "qlora", "full"):
        assert tune(trained, data, tmp_path / method, method=method, steps=2).done.step == 2
    assert before == {path: path.read_bytes() for path in (trained / "checkpoints").rglob("*") if path.is_file()}


def test_adapters_are_attached_with_what_was_asked_for(base: Path, data: Path) -> None:
    made = opened(base, data, rank=3, alpha=6.0, adapter_dropout=0.25, targets=("blocks.1.*.value",))
    assert made.adapters is not None
    ((name, adapter),) = made.adapters.items()
    assert name == "blocks.1.attention.value" and isinstance(adapter, LowRankAdapter)
    assert (adapter.rank, adapter.alpha, adapter.dropout) == (3, 6.0, 0.25)
