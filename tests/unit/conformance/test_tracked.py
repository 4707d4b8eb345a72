from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from turret.conformance.oracle.special import ERF
from turret.conformance.tracked import Tracked, value_of

UNIT = 2.0**-24
SPACING = 2.0**-149
often = settings(max_examples=120, deadline=None, derandomize=True)

# Each step keeps its argument where the operation is well defined, so that the chain may be any chain.
UNARY: dict[str, Callable[[Any], Any]] = {
    "exp": lambda x: np.exp(np.tanh(x)),
    "log": lambda x: np.log(np.abs(x) + 0.5),
    "sqrt": lambda x: np.sqrt(np.square(x) + 0.25),
    "tanh": np.tanh,
    "square": lambda x: np.square(np.tanh(x)),
    "negative": lambda x: -x,
    "absolute": np.abs,
    "power": lambda x: np.tanh(x) ** 2,
    "sum": lambda x: x - x.sum(axis=0, keepdims=True),
    "mean": lambda x: x - x.mean(axis=-1, keepdims=True),
    "sum of two axes": lambda x: x + x.sum(axis=(0, 1)),
    "max": lambda x: np.exp(x - x.max(axis=-1, keepdims=True)),
    "reversed": lambda x: x[::-1],
    "transposed twice": lambda x: x.T.transpose(1, 0),
    "reshaped": lambda x: x.reshape(-1).reshape(x.shape),
    "scaled": lambda x: x * 0.75 - 1.5,
    "from scalar": lambda x: 2.0 - x,
    "softmax": lambda x: (
        np.exp(x - x.max(axis=-1, keepdims=True))
        / np.exp(x - x.max(axis=-1, keepdims=True)).sum(axis=-1, keepdims=True)
    ),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: np.tanh(a) * b,
    "divide": lambda a, b: a / (np.abs(b) + 0.5),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "matmul": lambda a, b: np.tanh(a) @ b.swapaxes(0, 1) @ np.tanh(a),
    "where": lambda a, b: np.where(np.arange(value_of(a).shape[-1]) % 2 == 0, a, b),
    "where constant": lambda a, b: np.where(np.arange(value_of(a).shape[-1]) % 2 == 0, a, 1),
    "halves": lambda a, b: np.concatenate([a[:1], b[1:]], axis=0),
    "stacked": lambda a, b: np.stack([a, b]).sum(axis=0),
    "repeated": lambda a, b: np.repeat(a, 2, axis=0)[::2] + np.swapaxes(np.swapaxes(b, 0, 1), 0, 1),
}
step = st.one_of(
    st.tuples(st.sampled_from(sorted(UNARY)), st.integers(0, 9), st.none()),
    st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 9), st.integers(0, 9)),
)


def exact(*shape: int, rng: np.random.Generator, scale: float = 1.0) -> Any:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def tracked(x: Any) -> Tracked:
    return Tracked(x.astype(np.float64), np.zeros(x.shape), UNIT)


def grown(made: list[Any], steps: list[tuple[str, int, int | None]]) -> list[Any]:
    """All values of a chain: each step uses any two earlier ones."""
    made = list(made)
    for name, a, b in steps:
        one = made[a % len(made)]
        made.append(UNARY[name](one) if b is None else BINARY[name](one, made[b % len(made)]))
    return made


@often
@given(
    steps=st.lists(step, min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(1, 1), (2, 3), (4, 7), (3, 65)]),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_float32_stays_within_the_tracked_error(
    steps: list[tuple[str, int, int | None]], seed: int, shape: tuple[int, int], scale: float
) -> None:
    rng = np.random.default_rng(seed)
    start = [exact(*shape, rng=rng, scale=scale) for _ in range(2)]
    narrow, wide = grown(start, steps), grown([tracked(x) for x in start], steps)
    for got, bound in zip(narrow, wide, strict=True):
        assert got.dtype == np.float32
        if not np.all(np.isfinite(bound.value)) or np.max(np.abs(bound.value)) > 1e30:
            return
        # first order: where errors are no longer small beside the values, nothing is promised
        if np.max(bound.error) > 1e-2:
            return
        assert np.all(np.abs(got - bound.value) <= bound.error + SPACING)


@often
@given(steps=st.lists(step, min_size=1, max_size=6), seed=st.integers(0, 2**32 - 1))
def test_the_tracked_value_is_what_float64_gives(steps: list[tuple[str, int, int | None]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    start = [exact(3, 4, rng=rng) for _ in range(2)]
    with np.errstate(all="ignore"):
        plain = grown([x.astype(np.float64) for x in start], steps)
        bounded = grown([tracked(x) for x in start], steps)
    for want, got in zip(plain, bounded, strict=True):
        assert np.array_equal(got.value, want, equal_nan=True)
        assert got.error.shape == want.shape
        assert not np.isnan(got.error).any()
        assert (got.error >= 0).all()


@pytest.mark.parametrize(
    ("operation", "units"),
    [(lambda a, b: a + b, 1), (lambda a, b: a * b, 1), (lambda a, b: a / b, 3), (lambda a, b: np.exp(a), 8)],
    ids=["add", "multiply", "divide", "exp"],
)
def test_one_operation_on_exact_values_may_round_a_few_units(operation: Any, units: float) -> None:
    rng = np.random.default_rng(0)
    got = operation(tracked(exact(50, rng=rng)), tracked(exact(50, rng=rng)))
    assert np.allclose(got.error, units * UNIT * np.abs(got.value), rtol=1e-12, atol=0)


def test_cancellation_keeps_the_error_of_what_cancelled() -> None:
    big = tracked(np.full(1, 1e6, np.float32)) + 0.1
    left = big - 1e6
    assert left.error[0] >= 1e6 * UNIT
    assert left.error[0] < 1e6 * UNIT * 3


def test_an_error_grows_with_the_length_of_a_sum_and_slower_than_it() -> None:
    short, long = (tracked(np.ones(n, np.float32)).sum().error / n for n in (10, 10_000))
    assert short == pytest.approx(10 * UNIT)
    assert long == pytest.approx(5 * math.sqrt(10_000) * UNIT)


@pytest.mark.parametrize("terms", [1, 3, 65, 1000])
def test_a_product_of_exact_matrices_is_within_its_bound_in_any_order(terms: int) -> None:
    rng = np.random.default_rng(terms)
    a, b = exact(4, terms, rng=rng, scale=100.0), exact(terms, 5, rng=rng)
    bound = tracked(a) @ tracked(b)
    one_by_one = np.zeros((4, 5), np.float32)
    for k in range(terms):
        one_by_one += np.multiply.outer(a[:, k], b[k])
    for got in (a @ b, one_by_one):
        assert np.all(np.abs(got - bound.value) <= bound.error)
    magnitude = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    assert np.allclose(bound.error, min(terms, 5 * math.sqrt(terms)) * UNIT * magnitude, rtol=1e-12, atol=0)


def test_erf_follows_its_slope() -> None:
    x = Tracked(np.array([0.0, 1.0, 4.0]), np.full(3, 1e-4), UNIT)
    got = ERF(x)
    slope = 2 / math.sqrt(math.pi) * np.exp(-np.square(x.value))
    assert np.all(got.error >= slope * 1e-4)
    assert np.all(got.error <= slope * 1e-4 + 17 * UNIT)


@pytest.mark.parametrize(
    ("move", "plain"),
    [
        (lambda x: x[1], lambda x: x[1]),
        (lambda x: x[:, None, ::2], lambda x: x[:, None, ::2]),
        (lambda x: x.T, lambda x: x.T),
        (lambda x: x.copy().astype(np.float64), lambda x: x),
        (lambda x: np.moveaxis(x, 0, 1), lambda x: np.moveaxis(x, 0, 1)),
        (lambda x: np.expand_dims(x, 1), lambda x: np.expand_dims(x, 1)),
        (lambda x: np.broadcast_to(x, (2, 3, 4)), lambda x: np.broadcast_to(x, (2, 3, 4))),
        (lambda x: np.take(x, np.array([2, 0]), 0), lambda x: x[[2, 0]]),
        (lambda x: np.take_along_axis(x, np.array([[1], [0], [2]]), 1), lambda x: x[[0, 1, 2], [1, 0, 2]][:, None]),
        (lambda x: np.repeat(x, np.array([1, 0, 2]), 0), lambda x: x[[0, 2, 2]]),
        (lambda x: np.stack([r for r in x]), lambda x: x),
        (lambda x: np.squeeze(x[None]), lambda x: x),
    ],
)
def test_moving_elements_moves_their_errors_along(move: Any, plain: Any) -> None:
    value, error = np.arange(12.0).reshape(3, 4), np.arange(12.0).reshape(3, 4) / 8
    got = move(Tracked(value, error, UNIT))
    assert np.array_equal(got.value, plain(value))
    assert np.array_equal(got.error, plain(error))


def test_what_is_padded_in_or_chosen_from_constants_is_exact() -> None:
    x = Tracked(np.ones(3), np.full(3, 0.5), UNIT)
    assert np.array_equal(np.pad(x, 1, constant_values=7.0).error, [0, 0.5, 0.5, 0.5, 0])  # type: ignore[call-overload]
    for constant in (1, 1.0, True, np.float64(1), np.ones(3)):
        chosen = np.where(np.array([True, False, True]), x, constant)  # type: ignore[call-overload]
        assert np.array_equal(chosen.error, [0.5, 0, 0.5])
        assert np.array_equal(chosen.value, np.ones(3))


def test_comparisons_look_at_values_and_give_plain_booleans() -> None:
    x, y = Tracked([1.0, 2.0, np.nan], [9.0, 9.0, 9.0], UNIT), Tracked([1.0, 3.0, 1.0], 0.0, UNIT)
    for got, want in (
        (x < y, [False, True, False]),
        (x <= y, [True, True, False]),
        (x > y, [False, False, False]),
        (x >= y, [True, False, False]),
        (x == y, [True, False, False]),
        (x != y, [False, True, True]),
        (y > 2.0, [False, True, False]),
        (np.isfinite(x), [True, True, False]),
    ):
        assert type(got) is np.ndarray
        assert got.tolist() == want


def test_what_is_not_finite_carries_no_error_of_its_own() -> None:
    with np.errstate(all="ignore"):
        x = tracked(np.array([np.inf, -np.inf, np.nan, 3e38], np.float32))
        for got in (x * 0.0, x - x, x / x, np.exp(x), x + x):
            assert not np.isnan(got.error).any()


def test_what_the_rules_do_not_know_is_refused() -> None:
    x = tracked(np.ones((2, 2), np.float32))
    unknown: tuple[Any, ...] = (
        np.sin,
        np.floor,
        np.cumsum,
        np.linalg.inv,
        lambda y: y**3,
        lambda y: y.astype(np.int32),
    )
    for operation in unknown:
        with pytest.raises(TypeError):
            operation(x)
    with pytest.raises(TypeError):
        np.add(x, x, out=np.zeros((2, 2)))  # type: ignore[call-overload]
