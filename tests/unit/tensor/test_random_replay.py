"""Random numbers of a function that runs again, and masks that are the same everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.registry import OpenBackend, use_backend
from turret.spi import ConfigError, GraphError, ShapeError
from turret.tensor import Parameter, RandomStream, Tensor, backward, checkpoint, ops, tensor

RNG = np.random.default_rng(11)
VALUES = RNG.standard_normal((6, 5)).astype(np.float32)


def noisy(x: Tensor, stream: RandomStream) -> Tensor:
    kept = stream.bernoulli(0.6, *x.shape)
    return ops.where(kept, x * x, 0.0) * stream.uniform(*x.shape) + x * stream.normal(*x.shape)


def gradient(x: Parameter, y: Tensor) -> np.ndarray:
    return backward(y.sum())[x].numpy()


def test_a_checkpoint_draws_the_same_numbers_again(backend: OpenBackend) -> None:
    x, plain, saved = Parameter(VALUES), RandomStream(3), RandomStream(3)
    want = gradient(x, noisy(x, plain))
    got = gradient(x, checkpoint(lambda x: noisy(x, saved), x))
    np.testing.assert_array_equal(got, want)
    assert saved.counter == plain.counter == 3  # the second run moved no stream


def test_a_checkpoint_within_a_checkpoint_draws_the_same_numbers_again(backend: OpenBackend) -> None:
    x, plain, saved = Parameter(VALUES), RandomStream(3), RandomStream(3)

    def twice(x: Tensor) -> Tensor:
        inner = checkpoint(lambda x: noisy(x, saved), x * saved.uniform(*x.shape))
        return noisy(inner, saved)

    want = gradient(x, noisy(noisy(x * plain.uniform(*x.shape), plain), plain))
    np.testing.assert_array_equal(gradient(x, checkpoint(twice, x)), want)
    assert saved.counter == plain.counter


def test_draws_after_a_checkpoint_are_not_those_in_it(backend: OpenBackend) -> None:
    x, stream = Parameter(VALUES), RandomStream(3)
    y = checkpoint(lambda x: noisy(x, stream), x)
    backward(y.sum())
    assert not np.array_equal(stream.uniform(4).numpy(), RandomStream(3).uniform(4).numpy())


@pytest.mark.parametrize("second", ["fewer", "more", "another shape", "another probability"])
def test_a_checkpoint_that_draws_otherwise_the_second_time_is_refused(backend: OpenBackend, second: str) -> None:
    x, stream, runs = Parameter(VALUES), RandomStream(3), []

    def changing(x: Tensor) -> Tensor:
        runs.append(1)
        again = len(runs) > 1
        if again and second == "fewer":
            return x * 2.0
        if again and second == "another shape":
            return x * stream.bernoulli(0.5, 5).cast("float32")
        kept = stream.bernoulli(0.25 if again and second == "another probability" else 0.5, *x.shape)
        if again and second == "more":
            stream.uniform(2)
        return x * kept.cast("float32")

    y = checkpoint(changing, x)
    with pytest.raises(GraphError, match="same numbers in the same order"):
        backward(y.sum())
    assert stream.counter == 1


def test_bernoulli_is_true_as_often_as_it_says(backend: OpenBackend) -> None:
    drawn = RandomStream(5).bernoulli(0.3, 100, 1000).numpy()
    assert drawn.dtype == np.bool_
    assert abs(drawn.mean() - 0.3) < 5 * (0.3 * 0.7 / 1e5) ** 0.5
    stream = RandomStream(5)
    assert not stream.bernoulli(0.0, 1000).numpy().any()
    assert stream.bernoulli(1.0, 1000).numpy().all()


@pytest.mark.parametrize("probability", [-0.1, 1.5, float("nan")])
def test_bernoulli_refuses_what_is_no_probability(backend: OpenBackend, probability: float) -> None:
    stream = RandomStream(5)
    with pytest.raises(ConfigError, match="0 <= probability <= 1"):
        stream.bernoulli(probability, 3)
    assert stream.counter == 0


def test_masks_are_the_words_of_philox_on_every_backend() -> None:
    words = np.random.Philox(key=9, counter=2 << 128).random_raw(50).view("<u4")
    want = ((words >> 8) * 2.0**-24 < 0.7).reshape(4, 25)
    for spec in ("cpu", "minimal", "metal:cpu", "tpu:cpu"):
        with use_backend(spec):
            stream = RandomStream(9, counter=2)
            np.testing.assert_array_equal(stream.bernoulli(0.7, 4, 25).numpy(), want, err_msg=spec)


def test_a_function_may_make_its_own_stream(backend: OpenBackend) -> None:
    x = Parameter(VALUES)
    y = checkpoint(lambda x: x * RandomStream(5).uniform(*x.shape), x)
    np.testing.assert_array_equal(gradient(x, y), RandomStream(5).uniform(6, 5).numpy())


@pytest.mark.parametrize("number", [-1, 1.5, "a", None, True, 1 << 64])
@pytest.mark.parametrize("which", ["seed", "counter"])
def test_a_stream_of_no_number_is_refused(backend: OpenBackend, which: str, number: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{which} .*0 <= {which} < 2\*\*64"):
        RandomStream(**{"seed": 1, which: number})


@pytest.mark.parametrize("shape", [(-1,), (2.5,), ("a",), (3, True), (None,)])
def test_a_shape_that_is_none_is_refused_and_draws_nothing(backend: OpenBackend, shape: Any) -> None:
    stream = RandomStream(1)
    for draw in (stream.uniform, stream.normal, lambda *s: stream.bernoulli(0.5, *s)):
        with pytest.raises(ShapeError, match="sizes of at least 0"):
            draw(*shape)
    assert stream.counter == 0


def test_a_checkpoint_sees_the_context_of_its_first_run(plain: OpenBackend) -> None:
    x = Parameter(VALUES)
    with use_backend("cpu"):
        y = checkpoint(lambda x: x.cast("float32") * tensor(2.0, backend=x.backend), x)
    np.testing.assert_array_equal(gradient(x, y), np.full((6, 5), 2, np.float32))
