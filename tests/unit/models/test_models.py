"""Both model families: names, counts, values, causality, seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.models import Decoder, DecoderConfig, LanguageModel, Mini, MiniConfig, build_model, model_config
from turret.registry import OpenBackend
from turret.spi import ConfigError, DataError, DTypeError, ShapeError
from turret.tensor import no_grad, ops, tensor

Array = npt.NDArray[Any]
Config = DecoderConfig | MiniConfig


def stirred(model: LanguageModel, seed: int = 3) -> LanguageModel:
    """Weights large enough that every part matters: norms away from one, biases away from zero."""
    random = np.random.default_rng(seed)
    state = model.state_dict()
    model.load_state_dict({n: (v * 8 + random.normal(size=v.shape) * 0.2).astype(np.float32) for n, v in state.items()})
    return model


def some_ids(vocabulary: int, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, vocabulary, shape).astype(np.int32)


def test_the_first_model_has_19419_parameters_under_its_known_names(plain: OpenBackend) -> None:
    model = build_model(DecoderConfig(vocabulary=27))
    assert isinstance(model, Decoder)
    assert model.parameter_count() == model.config.parameter_count() == 19_419
    block = [
        "attention_norm.scale",
        "attention_norm.bias",
        *(f"attention.{p}.{k}" for p in ("query", "key", "value", "output") for k in ("weight", "bias")),
        "feed_forward_norm.scale",
        "feed_forward_norm.bias",
        *(f"feed_forward.{p}.{k}" for p in ("expand", "project") for k in ("weight", "bias")),
    ]
    assert list(model.state_dict()) == [
        "token_embedding.weight",
        "position_embedding.weight",
        *(f"blocks.{n}.{name}" for n in range(2) for name in block),
        "final_norm.scale",
        "final_norm.bias",
        "language_model_head.weight",
        "language_model_head.bias",
    ]


@pytest.mark.parametrize("tied", [True, False])
def test_the_names_of_mini(plain: OpenBackend, tied: bool) -> None:
    model = build_model(MiniConfig(vocabulary=27, blocks=1, tied_head=tied))
    assert isinstance(model, Mini)
    assert list(model.state_dict()) == [
        "token_embedding.weight",
        "blocks.0.attention_norm.scale",
        *(f"blocks.0.attention.{p}.weight" for p in ("query", "key", "value", "output")),
        "blocks.0.feed_forward_norm.scale",
        *(f"blocks.0.feed_forward.{p}.weight" for p in ("gate", "up", "down")),
        "final_norm.scale",
        *([] if tied else ["language_model_head.weight"]),
    ]
    assert model.parameter_count() == 27 * 64 * (1 if tied else 2) + 12_288 + 24_576 + 3 * 64


sizes = st.integers(1, 3)


@given(kv=sizes, group=sizes, d=sizes, v=st.integers(1, 9), c=sizes, n=sizes, f=st.integers(1, 9), head=sizes)
@settings(max_examples=30, deadline=None)
def test_the_closed_form_counts_what_is_built(
    plain: OpenBackend, kv: int, group: int, d: int, v: int, c: int, n: int, f: int, head: int
) -> None:
    heads = kv * group
    decoder = DecoderConfig(
        vocabulary=v,
        context=c,
        width=heads * d,
        heads=heads,
        kv_heads=kv,
        blocks=n,
        feed_forward=f,
        tied_head=head == 1,
        head_bias=head == 3,
    )
    mini = MiniConfig(
        vocabulary=v,
        context=c,
        width=heads * 2 * d,
        heads=heads,
        kv_heads=kv,
        blocks=n,
        feed_forward=f,
        tied_head=head == 1,
    )
    for config in (decoder, mini):
        model = build_model(config)
        assert model.parameter_count() == config.parameter_count()
        assert model.parameter_count() == sum(p.numpy().size for p in model.parameters())


def test_logits_equal_the_equations_in_float64(backend: OpenBackend, config: Config, reference: Any) -> None:
    model, ids = stirred(build_model(config)), some_ids(config.vocabulary, 3, 9)
    with no_grad():
        got = model(tensor(ids))
        last = model(tensor(ids), last=True)
    want = np.stack([reference(model)(row) for row in ids])
    assert got.shape == (3, 9, config.vocabulary)
    assert np.abs(want).max() > 1  # a test of something
    np.testing.assert_allclose(got.numpy(), want, rtol=2e-4, atol=2e-4 * np.abs(want).max())
    np.testing.assert_allclose(last.numpy(), want[:, -1:], rtol=2e-4, atol=2e-4 * np.abs(want).max())


def test_gradients_of_the_loss_equal_central_differences(plain: OpenBackend, config: Config, reference: Any) -> None:
    model, ids = stirred(build_model(config), seed=5), some_ids(config.vocabulary, 1, 6, seed=2)
    targets = some_ids(config.vocabulary, 1, 6, seed=3)
    ops.cross_entropy(model(tensor(ids)), tensor(targets)).backward()
    random, oracle = np.random.default_rng(0), reference(model)

    def loss() -> float:
        logits = oracle(ids[0])
        top = logits.max(-1)
        nll = np.log(np.exp(logits - top[:, None]).sum(-1)) + top - logits[np.arange(6), targets[0]]
        return float(nll.mean())

    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        weight, direction = oracle.w[name], random.normal(size=parameter.shape)
        step = 1e-7
        oracle.w[name] = weight + step * direction
        up = loss()
        oracle.w[name] = weight - step * direction
        slope = (up - loss()) / (2 * step)
        oracle.w[name] = weight
        got = float((parameter.grad.numpy().astype(np.float64) * direction).sum())
        assert got == pytest.approx(slope, rel=2e-3, abs=2e-5 * np.sqrt(weight.size)), name


def test_later_tokens_never_change_earlier_logits(backend: OpenBackend, config: Config) -> None:
    model, ids = stirred(build_model(config)), some_ids(config.vocabulary, 2, 12)
    with no_grad():
        before = model(tensor(ids)).numpy()
        for place in (5, 11):
            changed = ids.copy()
            changed[:, place:] = (changed[:, place:] + 1) % config.vocabulary
            after = model(tensor(changed)).numpy()
            np.testing.assert_array_equal(after[:, :place], before[:, :place])
            assert not np.array_equal(after[:, place:], before[:, place:])


def test_rows_of_a_batch_are_independent(backend: OpenBackend, config: Config) -> None:
    model, ids = stirred(build_model(config)), some_ids(config.vocabulary, 3, 7)
    with no_grad():
        together = model(tensor(ids)).numpy()
        # A logit is a sum with cancellation: its error goes with the largest of them, not with itself.
        allowed = 2e-5 * np.abs(together).max()
        for row in range(3):
            alone = model(tensor(ids[row : row + 1])).numpy()[0]
            np.testing.assert_allclose(alone, together[row], rtol=0, atol=allowed)


def test_a_seed_decides_every_weight(
    plain: OpenBackend, make_backend: Callable[..., OpenBackend], config: Config
) -> None:
    def bits(seed: int) -> dict[str, bytes]:
        return {name: value.tobytes() for name, value in build_model(config, seed=seed).state_dict().items()}

    first = bits(1)
    assert first == bits(1)
    second = bits(2)
    drawn = [name for name in first if name.endswith(".weight")]
    assert all(first[name] != second[name] for name in drawn)
    assert len({first[name] for name in drawn}) == len(drawn)


def test_a_seed_means_the_same_on_every_backend(backend: OpenBackend) -> None:
    state = build_model(DecoderConfig(vocabulary=27), seed=7).state_dict()
    words = np.random.Philox(key=7, counter=0).random_raw(2).astype("<u8").view("<u4").tolist()
    for i, (radius, angle) in enumerate(zip(words[::2], words[1::2], strict=True)):  # Box and Muller 1958, eq. 1
        size, turn = math.sqrt(-2 * math.log((radius + 1) / 2**32)), 2 * math.pi * angle / 2**32
        want = np.float32(0.02 * size * math.cos(turn)), np.float32(0.02 * size * math.sin(turn))
        assert state["token_embedding.weight"].reshape(-1)[2 * i : 2 * i + 2] == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("kind", ["decoder", "mini"])
def test_weights_start_small_and_residual_outputs_smaller(plain: OpenBackend, kind: str) -> None:
    sizes = {"vocabulary": 256, "width": 128, "heads": 4, "blocks": 8, "feed_forward": 256, "context": 128}
    state = build_model(model_config(kind, sizes), seed=11).state_dict()
    for name, value in state.items():
        if name.endswith("norm.scale"):
            assert (value == 1).all()
        elif name.endswith(".bias"):
            assert (value == 0).all()
        else:
            residual = name.endswith(("attention.output.weight", "project.weight", "down.weight"))
            std = 0.02 / math.sqrt(16) if residual else 0.02
            assert value.std() == pytest.approx(std, rel=4 / math.sqrt(2 * value.size)), name
            assert abs(value.mean()) < 5 * std / math.sqrt(value.size), name


def test_a_fresh_model_knows_nothing(backend: OpenBackend, config: Config) -> None:
    model, ids = build_model(config), some_ids(config.vocabulary, 4, 16)
    with no_grad():
        loss = ops.cross_entropy(model(tensor(ids[:, :-1])), tensor(ids[:, 1:])).item()
    assert loss == pytest.approx(math.log(config.vocabulary), abs=0.05)


def test_ids_past_the_context_or_of_the_wrong_kind_are_refused(plain: OpenBackend, config: Config) -> None:
    model = build_model(config)
    with pytest.raises(ShapeError, match=r"17 tokens pass the context of 16|65 tokens pass the context of 64"):
        model(tensor(some_ids(config.vocabulary, 1, config.context + 1)))
    for wrong in (some_ids(5, 3), some_ids(5, 0, 3), some_ids(5, 3, 0), np.zeros((1, 2), np.float32)):
        with pytest.raises(DataError, match=r"token ids Tensor\(shape=.*wanted int32 of shape \(B, T\)"):
            model(tensor(wrong))
    for host in ([[1, 2]], some_ids(5, 1, 2)):
        with pytest.raises((DataError, DTypeError), match=rf"{type(host).__name__}; wanted an int32 Tensor"):
            model(host)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("decoder", {"vocabulary": 0}, "vocabulary is 0"),
        ("decoder", {"vocabulary": 27, "heads": 5}, "width 32 does not divide over 5 heads"),
        ("decoder", {"vocabulary": 27, "heads": 0}, "heads is 0"),
        ("decoder", {"vocabulary": 27, "kv_heads": 3}, "4 query heads do not divide over 3"),
        ("decoder", {"vocabulary": 27, "blocks": 1.5}, "blocks is 1.5"),
        ("decoder", {"vocabulary": 27, "context": "16"}, "context is '16'"),
        ("decoder", {"vocabulary": True}, "vocabulary is True"),
        ("decoder", {"vocabulary": 27, "gelu": "quick"}, "gelu is 'quick'; wanted 'erf' or 'tanh'"),
        ("decoder", {"vocabulary": 27, "eps": 0}, "eps is 0"),
        ("decoder", {"vocabulary": 27, "eps": math.inf}, "eps is inf"),
        ("decoder", {"vocabulary": 27, "tied_head": True}, "a tied head has no bias"),
        ("decoder", {"vocabulary": 27, "head_bias": "false"}, "head_bias is 'false'; wanted true or false"),
        ("decoder", {}, "vocabulary"),
        ("decoder", {"vocabulary": 27, "width_": 3}, "no key 'width_'; did you mean 'width'"),
        ("decoder", {"vocabulary": 27, "zzz": 3}, "no key 'zzz'; known: blocks"),
        ("mini", {"vocabulary": 27, "width": 12, "heads": 4}, "head size 3 is odd"),
        ("mini", {"vocabulary": 27, "rope_theta": -1.0}, "rope_theta is -1.0"),
        ("mini", {"vocabulary": 27, "eps": "small"}, "eps is 'small'"),
        ("mini", {"vocabulary": 27, "tied_head": 1}, "tied_head is 1; wanted true or false"),
        ("mini", {"vocabulary": 27, "gelu": "erf"}, "no key 'gelu'"),
        ("decodr", {}, "no model family 'decodr'; did you mean 'decoder'"),
        ("gpt2", {}, "known: decoder, mini"),
    ],
)
def test_impossible_configurations_are_refused(kind: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_config(kind, values)


def test_a_configuration_makes_a_round_trip_through_plain_values(plain: OpenBackend, config: Config) -> None:
    model = build_model(config)
    assert model_config(model.kind, model.config_dict()) == config
    assert all(isinstance(v, (int, float, str, bool, type(None))) for v in model.config_dict().values())
