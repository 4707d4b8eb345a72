"""Texts that share a row: each is read as if it stood alone, whichever way attention is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.models import DecoderConfig, LanguageModel, MiniConfig, build_model
from turret.nn import Segments, dropping
from turret.registry import use_backend
from turret.spi import ConfigError, ShapeError
from turret.tensor import Gradients, RandomStream, Tensor, backward, capture, no_grad, ops, tensor

SIZES: dict[str, Any] = {"vocabulary": 31, "context": 12, "width": 16, "heads": 4, "kv_heads": 2, "feed_forward": 24}
CONFIGS: dict[str, Any] = {
    "decoder": DecoderConfig(**SIZES),
    "mini": MiniConfig(**SIZES),
    "normed": MiniConfig(**SIZES, head_size=6, query_key_norm=True, attention_bias="all"),
}
IDS = np.random.default_rng(3).integers(0, 31, (2, 12), dtype=np.int32)
NUMBERS = np.array([[0] * 5 + [1] * 1 + [2] * 6, [7] * 12], np.int32)
TEXTS = [(0, 0, 5), (0, 5, 6), (0, 6, 12), (1, 0, 12)]


def alone(model: LanguageModel) -> np.ndarray[Any, Any]:
    """Logits of every text for itself, put together."""
    rows: list[list[Any]] = [[], []]
    for row, start, stop in TEXTS:
        rows[row].append(model(tensor(IDS[row : row + 1, start:stop])).numpy())
    return np.concatenate([np.concatenate(row, axis=1) for row in rows], axis=0)


def masked(segments: Segments) -> Segments:
    return Segments(ids=segments.ids, positions=segments.positions)


@pytest.mark.parametrize(
    ("spec", "family", "attention"),
    [
        *(("cpu", family, attention) for family in CONFIGS for attention in ("materialized", "flash")),
        ("metal:cpu", "normed", "flash"),
        pytest.param("tpu:cpu", "decoder", "materialized", marks=pytest.mark.slow),
    ],
)
def test_a_text_among_others_is_read_as_if_it_stood_alone(spec: str, family: str, attention: str) -> None:
    with use_backend(spec), no_grad():
        model = build_model(CONFIGS[family], seed=1).save_memory(attention=attention)
        segments, wanted = Segments.of(NUMBERS), alone(model)
        for each in (segments, masked(segments)):
            got = model(tensor(IDS), segments=each).numpy()
            np.testing.assert_allclose(got, wanted, atol=2e-6, rtol=0)


@pytest.mark.parametrize("attention", ["materialized", "flash"])
def test_gradients_are_those_of_the_texts_alone(attention: str) -> None:
    with use_backend("cpu"):
        model = build_model(CONFIGS["mini"], seed=1).save_memory(attention=attention, checkpointing="block")
        seed = tensor(np.random.default_rng(4).normal(size=(2, 12, 31)).astype(np.float32))
        segments = Segments.of(NUMBERS)
        found = [backward(model(tensor(IDS), segments=each), seed) for each in (segments, masked(segments))]
        parts = [backward(model(tensor(IDS[row : row + 1, a:b])), seed[row : row + 1, a:b]) for row, a, b in TEXTS]

        def host(gradients: Gradients, parameter: Tensor) -> Any:
            return gradients[parameter].numpy().astype(np.float64)

        for parameter in model.parameters():
            wanted = sum(host(part, parameter) for part in parts)
            for each in found:
                np.testing.assert_allclose(host(each, parameter), wanted, atol=3e-5 * abs(wanted).max(), rtol=0)


@pytest.mark.parametrize("spec", ["metal:cpu", "tpu:cpu"])
def test_one_program_serves_every_layout_of_a_row(spec: str) -> None:
    with use_backend(spec), no_grad():
        model = build_model(CONFIGS["mini"], seed=1)

        def step(ids: Tensor, numbers: Tensor, positions: Tensor) -> Tensor:
            return model(ids, segments=Segments(ids=numbers, positions=positions))

        run = capture(step, state=[model])
        for numbers in (NUMBERS, NUMBERS[::-1].copy()):
            segments = Segments.of(numbers)
            got = run(tensor(IDS), segments.ids, segments.positions).numpy()
            np.testing.assert_allclose(got, model(tensor(IDS), segments=segments).numpy(), atol=2e-6, rtol=0)
        assert run.compiles == 1


def test_dropped_probabilities_do_not_let_a_text_see_another() -> None:
    with use_backend("cpu"):
        model = build_model(CONFIGS["mini"], seed=1).regularize(attention=0.5)
        changed = IDS.copy()
        changed[0, :5] = 1

        def logits(ids: Any) -> Any:
            with dropping(RandomStream(5)):
                return model(tensor(ids), segments=Segments.of(NUMBERS)).numpy()

        first, second = logits(IDS), logits(changed)
        assert (first[0, 5:] == second[0, 5:]).all()
        assert (first[0, :5] != second[0, :5]).any()


@pytest.mark.parametrize("spec", ["cpu", "tpu:cpu"])
def test_masked_attention_by_rows_is_the_same_function(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turret.nn.segments.ROWS", 5)  # three pieces of a row of twelve
    with use_backend(spec):
        model = build_model(CONFIGS["mini"], seed=1)
        seed = tensor(np.random.default_rng(4).normal(size=(2, 12, 31)).astype(np.float32))
        segments, found = masked(Segments.of(NUMBERS)), []
        for attention in ("materialized", "flash"):
            model.save_memory(attention=attention)
            logits = model(tensor(IDS), segments=segments)
            gradients = backward(logits, seed)
            found.append([logits.numpy(), *(gradients[parameter].numpy() for parameter in model.parameters())])
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5 * max(1, np.abs(one).max()), rtol=0)


def test_bad_segments_are_refused() -> None:
    with use_backend("cpu"):
        model = build_model(CONFIGS["mini"], seed=1)
        with pytest.raises(ShapeError, match=r"segments got \(12,\) int32"):
            Segments.of(NUMBERS[0])
        with pytest.raises(ShapeError, match="float64"):
            Segments.of(NUMBERS.astype(np.float64))
        with pytest.raises(ShapeError, match=r"token ids \(2, 11\) with segments of \(2, 12\)"):
            model(tensor(IDS[:, :11].copy()), segments=Segments.of(NUMBERS))
        q, k = tensor(np.ones((1, 4, 2, 2), np.float32)), tensor(np.ones((1, 4, 1, 2), np.float32))
        for spans in ([(0, 2)], [(0, 2), (3, 4)], [(0, 0), (0, 4)], [], [(0, 5)]):
            with pytest.raises(ConfigError, match="spans that follow one another"):
                ops.segmented_attention(q, k, k, scale=1.0, spans=spans)


@pytest.mark.parametrize(
    "numbers",
    [np.array([[0] * 4 + [1] * 4 + [0] * 4], np.int32), np.array([[0] * 4 + [2**32] * 4 + [2**33] * 4], np.int64)],
)
def test_runs_are_texts_of_their_own_whatever_their_numbers(numbers: Any) -> None:
    with use_backend("cpu"), no_grad():
        model = build_model(CONFIGS["mini"], seed=1)
        segments, ids = Segments.of(numbers), tensor(IDS[:1])
        wanted = np.concatenate([model(tensor(IDS[:1, n : n + 4])).numpy() for n in (0, 4, 8)], axis=1)
        for each in (segments, masked(segments)):
            np.testing.assert_allclose(model(ids, segments=each).numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("numbers", [[[0, 1]], np.zeros((1, 2), np.float32), np.zeros(2, np.int32), None])
def test_what_are_no_rows_of_numbers_is_refused(numbers: Any) -> None:
    with pytest.raises(ShapeError, match=r"wanted an array of integers \(B, T\)"):
        Segments.of(numbers)
