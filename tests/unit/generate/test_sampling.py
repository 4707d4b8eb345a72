"""Sampling follows the exact distribution, in float64, as a pure function of seed and token number."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from turret.generate.sampling import Sampler, SamplingConfig
from turret.spi.errors import ConfigError, NonFiniteError, ShapeError

Floats = npt.NDArray[np.float64]

LOGITS = np.array([1.0, 3.0, -2.0, 3.0, 0.5, 2.0], np.float32)
logits_of = hnp.arrays(np.float32, st.integers(1, 12), elements=st.floats(-30, 30, width=32))


def exact(logits: npt.ArrayLike, temperature: float) -> list[float]:
    """softmax(logits / temperature) from the definition."""
    weights = [math.exp(value / temperature) for value in np.asarray(logits, np.float64).tolist()]
    return [weight / sum(weights) for weight in weights]


def sampler(allowed: int | None = None, **settings: float) -> Sampler:
    return Sampler(SamplingConfig(**settings), allowed)  # type: ignore[arg-type]


def frequencies(one: Sampler, logits: npt.NDArray[np.float32], count: int = 4000) -> npt.NDArray[np.int64]:
    return np.bincount([one.pick(logits, n) for n in range(count)], minlength=len(logits))


@given(logits=logits_of, n=st.integers(0, 50))
def test_temperature_zero_takes_the_first_of_the_largest(logits: npt.NDArray[np.float32], n: int) -> None:
    greedy = sampler(temperature=0, top_k=1, top_p=0.5, seed=n)
    values = logits.tolist()
    assert greedy.pick(logits, n) == values.index(max(values))
    assert greedy.probabilities(logits).tolist() == [index == values.index(max(values)) for index in range(len(values))]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_draws_follow_the_softmax_at_a_temperature(temperature: float) -> None:
    one = sampler(temperature=temperature, seed=17)
    want = exact(LOGITS, temperature)
    np.testing.assert_allclose(one.probabilities(LOGITS), want, rtol=1e-12)
    counts = frequencies(one, LOGITS)
    likely = np.array(want) * counts.sum() >= 5
    table = [counts[likely], np.array(want)[likely] / np.array(want)[likely].sum() * counts[likely].sum()]
    assert stats.chisquare(*table).pvalue > 0.001


def test_draws_after_both_cuts_follow_the_renormalized_rest() -> None:
    one = sampler(temperature=2.0, top_k=4, top_p=0.8, seed=5)
    # Of the four largest (ids 1, 3, 5, 0) the first three hold 0.85 of the weight, the first two 0.64.
    p = exact(LOGITS[[1, 3, 5]], 2.0)
    np.testing.assert_allclose(one.probabilities(LOGITS), [0, p[0], 0, p[1], 0, p[2]], rtol=1e-12)
    counts = frequencies(one, LOGITS)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    assert stats.chisquare(counts[[1, 3, 5]], np.array(p) * counts.sum()).pvalue > 0.001


@given(logits=logits_of, k=st.integers(1, 15), temperature=st.floats(0.2, 5))
def test_top_k_keeps_the_k_largest_and_the_first_of_equals(
    logits: npt.NDArray[np.float32], k: int, temperature: float
) -> None:
    got = sampler(temperature=temperature, top_k=k).probabilities(logits)
    best = sorted(range(len(logits)), key=lambda index: (-logits[index], index))[:k]
    want = np.zeros(len(logits))
    want[best] = exact(logits[best], temperature)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert set(np.flatnonzero(got)) <= set(best)


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    np.testing.assert_array_equal(
        sampler(top_k=10**9).probabilities(LOGITS), sampler(temperature=1.0).probabilities(LOGITS)
    )


@given(logits=logits_of, p=st.floats(0.01, 0.999))
def test_top_p_keeps_the_fewest_that_reach_p(logits: npt.NDArray[np.float32], p: float) -> None:
    whole = sampler(temperature=1.0).probabilities(logits)
    kept = sampler(top_p=p).probabilities(logits) > 0
    mass = sum((Fraction(float(value)) for value in whole[kept]), Fraction(0))
    smallest = Fraction(float(whole[kept].min()))
    slack = Fraction(1, 10**12)
    assert mass >= Fraction(p) - slack
    assert kept.sum() == 1 or mass - smallest < Fraction(p) + slack
    assert kept.all() or whole[kept].min() >= whole[~kept].max()


def test_top_p_counts_exactly_reaching_p_as_reached() -> None:
    quarters = np.zeros(4, np.float32)
    assert np.flatnonzero(sampler(top_p=0.5).probabilities(quarters)).tolist() == [0, 1]
    assert np.flatnonzero(sampler(top_p=0.51).probabilities(quarters)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("p", [1e-300, 5e-324, 0.001])
def test_a_tiny_top_p_leaves_the_most_likely(p: float) -> None:
    assert sampler(top_p=p).probabilities(LOGITS).tolist() == [0, 1, 0, 0, 0, 0]


def test_a_top_p_of_one_keeps_even_what_rounding_would_lose() -> None:
    logits = np.array([0.0, -40.0, -60.0])
    assert (sampler(top_p=1.0).probabilities(logits) > 0).all()
    assert sampler(top_p=1 - 2**-53).probabilities(logits)[0] > 0.999


@pytest.mark.parametrize("count", [3, 7, 10, 49, 1000])
def test_a_sum_that_rounds_below_p_keeps_all(count: int) -> None:
    assert (sampler(top_p=1 - 2**-53).probabilities(np.zeros(count)) > 0).sum() >= count - 1


def test_a_token_depends_on_seed_and_number_only() -> None:
    forward = [sampler(seed=4).pick(LOGITS, n) for n in range(60)]
    one = sampler(seed=4)
    assert [one.pick(LOGITS, n) for n in reversed(range(60))] == forward[::-1]
    assert [sampler(seed=5).pick(LOGITS, n) for n in range(60)] != forward
    assert len(set(forward)) > 2


@pytest.mark.parametrize("last", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("count", [1, 3, 100, 4099])
def test_the_ends_of_the_unit_interval_give_possible_ids(
    last: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turret.generate.sampling.fraction", lambda *_: last)
    logits = np.concatenate([[-math.inf], np.linspace(0, 3, count), [-math.inf]])
    assert sampler(temperature=1.0).pick(logits, 0) == (1 if last == 0 else count)


def test_ids_beyond_the_tokenizer_are_never_sampled() -> None:
    wide = np.concatenate([LOGITS, [50.0, math.nan]])
    for settings in ({"temperature": 0.0}, {"temperature": 1.0}, {"top_k": 3}, {"top_p": 0.9}):
        limited = sampler(6, **settings)
        assert [limited.pick(wide, n) for n in range(50)] == [sampler(**settings).pick(LOGITS, n) for n in range(50)]
    assert sampler(100, temperature=0).pick(LOGITS, 0) == 1


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-5])
def test_a_tiny_temperature_is_nearly_greedy(temperature: float) -> None:
    np.testing.assert_array_equal(sampler(temperature=temperature).probabilities(LOGITS), [0, 0.5, 0, 0.5, 0, 0])


@pytest.mark.parametrize("temperature", [1e300, 1.7e308])
def test_a_huge_temperature_is_uniform_and_top_k_still_knows_the_largest(temperature: float) -> None:
    np.testing.assert_allclose(sampler(temperature=temperature).probabilities(LOGITS), [1 / 6] * 6)
    kept = sampler(temperature=temperature, top_k=2).probabilities(LOGITS[1:])
    np.testing.assert_allclose(kept, [0.5, 0, 0.5, 0, 0])


def test_extreme_but_finite_logits_do_not_overflow() -> None:
    logits = np.array([1.7e308, -1.7e308, 1.7e308])
    np.testing.assert_array_equal(sampler(temperature=0.5).probabilities(logits), [0.5, 0, 0.5])


def test_masked_ids_are_never_chosen() -> None:
    masked = np.array([-math.inf, 0.0, -math.inf, 0.0], np.float32)
    assert set(frequencies(sampler(top_k=3, seed=1), masked, 200).nonzero()[0]) == {1, 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([0.0, math.nan], "logit of id 1 is nan"),
        ([math.inf, 0.0], "logit of id 0 is inf"),
        ([-math.inf, -math.inf], "all 2 logits are -inf"),
    ],
)
def test_logits_that_make_no_distribution_are_refused(temperature: float, logits: list[float], message: str) -> None:
    with pytest.raises(NonFiniteError, match=message):
        sampler(temperature=temperature).pick(np.array(logits), 0)


@pytest.mark.parametrize("shape", [(0,), (1, 4), ()])
def test_logits_are_one_row(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"want \(V,\)"):
        sampler().pick(np.zeros(shape), 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_float_width_is_taken_and_left_alone(dtype: type[np.floating]) -> None:
    logits = LOGITS.astype(dtype)
    sampler(top_k=2, top_p=0.5).pick(logits, 0)
    np.testing.assert_array_equal(logits, LOGITS)


@pytest.mark.parametrize("n", [-1, 2**64])
def test_token_numbers_are_counted_from_zero(n: int) -> None:
    with pytest.raises(ConfigError, match=f"token number {n}"):
        sampler().pick(LOGITS, n)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", value) for value in (-0.1, math.nan, math.inf, "1", None, True)]
    + [("top_k", value) for value in (0, -1, 1.5, True, "3")]
    + [("top_p", value) for value in (0, -0.5, 1.01, math.nan, "1", True)]
    + [("seed", value) for value in (-1, 2**64, 0.5, None)],
)
def test_settings_that_make_no_distribution_are_refused_with_their_value(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"got {name} {value!r}"):
        SamplingConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("allowed", [0, -1, 2.0])
def test_an_impossible_limit_is_refused(allowed: int) -> None:
    with pytest.raises(ConfigError, match="allowed ids"):
        Sampler(SamplingConfig(), allowed)


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        SamplingConfig().top_k = 3  # type: ignore[misc]
