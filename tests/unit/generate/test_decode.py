"""Decoding with a cache equals the full forward, also past the context."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.data import ByteTokenizer, ReservedByteTokenizer
from turret.generate import Decoding, SamplingConfig, StopRules, eos_of, generate_ids, generate_text
from turret.models import DecoderConfig, LanguageModel, MiniConfig, build_model
from turret.registry import OpenBackend
from turret.spi import DataError
from turret.tensor import no_grad, tensor

CONTEXT = 12
CONFIGS = {
    "decoder": DecoderConfig(vocabulary=256, context=CONTEXT, width=16, heads=2, blocks=2, feed_forward=32),
    "mini": MiniConfig(vocabulary=262, context=CONTEXT, width=16, heads=4, kv_heads=2, blocks=2, feed_forward=32),
}


@pytest.fixture(params=sorted(CONFIGS))
def model(request: pytest.FixtureRequest, backend: OpenBackend) -> LanguageModel:
    made = build_model(CONFIGS[request.param], seed=2)
    for p in made.parameters():  # larger weights: logits that differ visibly
        p.assign(p.backend.tools.storage.from_host(p.numpy() * 8))
    return made


def full(model: LanguageModel, ids: list[int]) -> np.ndarray:
    with no_grad():
        return model(tensor(np.array([ids], np.int32))).numpy()[0, -1]


def test_logits_equal_the_full_forward_over_what_is_held(model: LanguageModel) -> None:
    rng = np.random.default_rng(1)
    decoding = Decoding(model)
    seen: list[int] = []
    for count in (3, 1, 1, 4, 1, 1, 1, 1, 1, 1, 2, 1, 1, 30, 1):
        fresh = rng.integers(0, 256, count).tolist()
        seen += fresh
        logits = decoding.push(fresh)
        assert 0 < len(decoding.held) <= CONTEXT
        assert decoding.held == seen[-len(decoding.held) :]
        np.testing.assert_allclose(logits, full(model, decoding.held), rtol=2e-4, atol=2e-4)


def test_past_the_context_half_of_it_is_replayed(model: LanguageModel) -> None:
    decoding = Decoding(model)
    decoding.push(list(range(CONTEXT)))
    assert len(decoding.held) == CONTEXT
    decoding.push([77])
    assert decoding.held == [*range(CONTEXT - CONTEXT // 2 + 1, CONTEXT), 77]


def test_greedy_ids_are_those_of_the_full_forward(model: LanguageModel) -> None:
    ids = [5, 6, 7]
    made = generate_ids(model, ids, SamplingConfig(temperature=0.0))
    for _ in range(CONTEXT - len(ids)):
        chosen = next(made)
        assert chosen == int(full(model, ids).argmax())
        ids.append(chosen)


def test_the_same_seed_gives_the_same_text(model: LanguageModel) -> None:
    tokenizer = ByteTokenizer() if model.vocabulary == 256 else ReservedByteTokenizer()
    texts = [
        "".join(
            generate_text(
                model,
                tokenizer,
                "hi",
                sampling=SamplingConfig(seed=seed),
                rules=StopRules(max_new_tokens=30, eos_ids=eos_of(tokenizer)),
            )
        )
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("ids", "named"),
    [([], "no token"), ([300], "300"), ([-1], "-1"), ([1.5], "float"), ([True], "bool"), (None, "NoneType")],
)
def test_bad_ids_are_named(model: LanguageModel, ids: Any, named: str) -> None:
    with pytest.raises(DataError, match=named):
        Decoding(model).push(ids)


def test_an_empty_prompt_begins_at_the_end_of_sequence_id(backend: OpenBackend) -> None:
    model = build_model(CONFIGS["mini"], seed=2)
    rules, sampling = StopRules(max_new_tokens=5), SamplingConfig(seed=4)
    text = "".join(generate_text(model, ReservedByteTokenizer(), "", sampling=sampling, rules=rules))
    ids = generate_ids(model, [1], sampling)
    assert text == ReservedByteTokenizer().decode([next(ids) for _ in range(5)])


def test_replaced_tokens_go_on_from_what_is_the_same(model: LanguageModel) -> None:
    decoding = Decoding(model)
    decoding.push([1, 2, 3, 4, 5])
    for ids in ([1, 2, 9, 8], [1, 2, 9, 8, 7], [4], [4], [4, 5, 6], [4, 5]):
        np.testing.assert_allclose(decoding.replace(ids), full(model, ids), rtol=2e-4, atol=2e-4)
        assert decoding.held == ids


def test_a_cache_grows_with_what_it_holds(backend: OpenBackend) -> None:
    config = MiniConfig(vocabulary=40, context=700, width=16, heads=4, kv_heads=2, blocks=1, feed_forward=16)
    model = build_model(config, seed=3)
    ids = np.random.default_rng(2).integers(0, 40, 640).tolist()
    decoding = Decoding(model, expected=300)
    rooms = []
    for start in range(0, 640, 160):
        logits = decoding.push(ids[start : start + 160])
        rooms.append(decoding._cache.capacity)
        np.testing.assert_allclose(logits, full(model, ids[: start + 160]), rtol=2e-4, atol=2e-4)
    assert rooms == [300, 600, 600, 700]


def test_no_id_is_chosen_that_the_tokenizer_lacks(backend: OpenBackend) -> None:
    model = build_model(DecoderConfig(vocabulary=300, context=CONTEXT), seed=2)
    made = generate_text(
        model, ByteTokenizer(), [7], sampling=SamplingConfig(seed=1), rules=StopRules(max_new_tokens=60)
    )
    assert "".join(made)
