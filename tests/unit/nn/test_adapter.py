"""One low-rank adapter: what it adds, its gradients, and the layer it stands beside."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.nn import Init, Linear, LowRankAdapter, PackedLinear, computing, dropping
from turret.nn.linear import JOINED_ROWS, project
from turret.registry import OpenBackend, open_backend, use_backend
from turret.spi import BackendMismatch, ConfigError, DType, ShapeError
from turret.tensor import Parameter, RandomStream, Tensor, backward, tensor

RANDOM = np.random.default_rng(8)


def host(*shape: int) -> Any:
    return RANDOM.normal(size=shape).astype(np.float32)


def adapter(inputs: int = 32, outputs: int = 6, *, rank: int = 3, alpha: float = 5.0, **options: Any) -> LowRankAdapter:
    """One whose b is not 0."""
    made = LowRankAdapter(inputs, outputs, rank=rank, alpha=alpha, init=Init(4), **options)
    made.b.assign(tensor(host(outputs, rank)).value)
    return made


def double(x: Tensor) -> Any:
    return x.numpy().astype(np.float64)


def test_it_adds_the_scaled_product(backend: OpenBackend) -> None:
    made, x = adapter(), tensor(host(2, 5, 32))
    wanted = double(x) @ double(made.a).T @ double(made.b).T * (5 / 3)
    np.testing.assert_allclose(made(x).numpy(), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(double(x) @ made.delta().T, wanted, rtol=1e-12)
    assert made(x).shape == (2, 5, 6)


def test_a_is_uniform_within_the_bound_of_glorot_and_b_is_0(backend: OpenBackend) -> None:
    made = LowRankAdapter(500, 7, rank=100, alpha=1, init=Init(1))
    bound, a = math.sqrt(6 / 600), made.a.numpy()
    assert (a.shape, a.dtype.name, made.b.shape) == ((100, 500), "float32", (7, 100))
    assert not made.b.numpy().any()
    assert np.abs(a).max() <= bound
    counts, _ = np.histogram(a, bins=20, range=(-bound, bound))
    assert ((counts - 2500) ** 2 / 2500).sum() < 43.8  # chi-squared with 19 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(a[:, :-1].ravel(), a[:, 1:].ravel())[0, 1]) < 0.02


def test_draws_depend_on_seed_and_number_alone(backend: OpenBackend) -> None:
    one, two = Init(9), Init(9)
    first, second = one.uniform((3, 5), bound=1.0), one.uniform((3, 5), bound=1.0)
    two.normal((40,))
    assert np.array_equal(two.uniform((3, 5), bound=1.0), second)
    assert not np.array_equal(first, second)
    assert not np.array_equal(Init(10).uniform((3, 5), bound=1.0), first)
    kept = [-0.9769064784049988, -0.5169016122817993, -0.7771483063697815]
    assert Init(0).uniform((3,), bound=1.0).tolist() == kept  # a seed keeps its meaning


def test_gradients_are_those_of_finite_differences(backend: OpenBackend) -> None:
    made, x = adapter(8, 5, rank=2), Parameter(host(4, 8))
    direction = RANDOM.normal(size=(4, 5))
    found = backward((made(x) * tensor(direction.astype(np.float32))).sum())
    values = {"a": double(made.a), "b": double(made.b), "x": double(x)}

    def loss(**changed: Any) -> float:
        v = values | changed
        return float((v["x"] @ v["a"].T @ v["b"].T * made.scale * direction).sum())

    for name, parameter in (("a", made.a), ("b", made.b), ("x", x)):
        got = found[parameter].numpy()
        for place in np.ndindex(got.shape):
            step = np.zeros(got.shape)
            step[place] = 1e-6
            difference = (loss(**{name: values[name] + step}) - loss(**{name: values[name] - step})) / 2e-6
            assert got[place] == pytest.approx(difference, rel=2e-4, abs=2e-4)


def test_dropout_is_on_the_input_and_inside_dropping_alone(backend: OpenBackend) -> None:
    made, x = adapter(dropout=0.4), tensor(host(50, 32))
    assert made(x).numpy().tobytes() == adapter_without_dropout(made)(x).numpy().tobytes()
    kept = RandomStream(3).bernoulli(0.6, 50, 32).numpy()
    with dropping(RandomStream(3)):
        got = made(x).numpy()
    wanted = np.where(kept, double(x) / 0.6, 0) @ made.delta().T
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def adapter_without_dropout(made: LowRankAdapter) -> LowRankAdapter:
    plain = LowRankAdapter(32, 6, rank=made.rank, alpha=made.alpha, init=Init(4))
    plain.load_state_dict(made.state_dict())
    return plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank 0; wanted a whole number of at least 1"),
        ({"rank": -2}, "rank -2"),
        ({"rank": 2.0}, r"rank 2\.0"),
        ({"rank": True}, "rank True"),
        ({"alpha": 0}, "alpha 0; wanted a finite number above 0"),
        ({"alpha": -1.0}, "alpha -1"),
        ({"alpha": math.inf}, "alpha inf"),
        ({"alpha": 1e39}, "alpha 1e\\+39"),
        ({"alpha": 10**400}, "alpha 1000"),
        ({"alpha": math.nan}, "alpha nan"),
        ({"alpha": "8"}, "alpha '8'"),
        ({"dropout": 1.0}, r"adapter dropout 1\.0; wanted a rate"),
        ({"dropout": -0.1}, "adapter dropout"),
        ({"dropout": math.nan}, "adapter dropout"),
        ({"inputs": 0}, "inputs 0; wanted at least 1"),
        ({"outputs": -1}, "outputs -1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(backend: OpenBackend, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LowRankAdapter(**({"inputs": 8, "outputs": 4, "rank": 2, "alpha": 4, "init": Init(0)} | options))


def layer(kind: str, *, bias: bool = True) -> Linear | PackedLinear:
    made = Linear(32, 6, init=Init(2), bias=bias, std=0.5)
    return made if kind == "plain" else PackedLinear.of(made, scales="dynamic")


@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_a_layer_adds_what_its_adapter_gives_and_nothing_after(backend: OpenBackend, kind: str) -> None:
    map_, made, x = layer(kind), adapter(), tensor(host(3, 32))
    before, names, state = map_(x).numpy(), [n for n, _ in map_.named_parameters()], map_.state_dict()
    map_.attach(made)
    np.testing.assert_allclose(map_(x).numpy(), before + made(x).numpy(), rtol=1e-6, atol=1e-6)
    assert [n for n, _ in map_.named_parameters()] == [*names, "adapter.a", "adapter.b"]
    assert [n for n, _ in map_.named_parameters(extra=False)] == names
    assert map_.state_dict().keys() == state.keys()
    assert {id(made.a), id(made.b)} <= {id(t) for t in map_.held_tensors()}
    assert map_.detach() is made
    assert map_(x).numpy().tobytes() == before.tobytes()
    assert [n for n, _ in map_.named_parameters()] == names
    layer(kind).attach(made)  # it is free again


def test_what_cannot_be_attached_is_refused(backend: OpenBackend) -> None:
    map_, made = layer("plain"), adapter()
    with pytest.raises(ConfigError, match="no adapter to detach"):
        map_.detach()
    with pytest.raises(ShapeError, match=r"Linear of \(6, 32\) got an adapter of \(6, 16\)"):
        map_.attach(adapter(16))
    with pytest.raises(ConfigError, match="got int for an adapter"):
        map_.attach(3)  # type: ignore[arg-type]
    with use_backend("tpu:cpu") as other, pytest.raises(BackendMismatch, match=r"its adapter on tpu:cpu"):
        assert other is open_backend("tpu:cpu")
        map_.attach(adapter())
    map_.attach(made)
    with pytest.raises(ConfigError, match="Linear has an adapter already"):
        map_.attach(adapter())
    with pytest.raises(ConfigError, match="attached elsewhere"):
        layer("plain").attach(made)
    assert map_.adapter is made
    with pytest.raises(ConfigError, match="a Linear with an adapter; merge"):
        PackedLinear.of(map_)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [3, JOINED_ROWS + 1])
@pytest.mark.parametrize("kinds", ["pp", "pq", "qq"])
def test_project_adds_the_deltas_of_each_map(backend: OpenBackend, rows: int, kinds: str) -> None:
    maps = [layer("plain" if kind == "p" else "packed") for kind in kinds]
    maps[0].attach(adapter())
    x = Parameter(host(rows, 32))
    apart = [each(x) for each in maps]
    together = project(x, *maps)  # type: ignore[arg-type]
    for one, other in zip(apart, together, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-5, atol=1e-5)
    wanted, found = backward((apart[0] + apart[1]).sum()), backward((together[0] + together[1]).sum())
    for parameter in (x, *maps[0].adapter.parameters()):  # type: ignore[union-attr]
        np.testing.assert_allclose(found[parameter].numpy(), wanted[parameter].numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("spec", "dtype"), [("cpu", "float16"), ("tpu:cpu", "bfloat16")])
@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_it_computes_in_the_format_of_the_layers(kind: str, spec: str, dtype: DType) -> None:
    with use_backend(spec):
        map_, made, x = layer(kind), adapter(), tensor(host(8, 32))
        map_.attach(made)
        exact = map_(x).numpy()
        with computing(dtype):
            low = map_(x.cast(dtype))
        assert low.dtype == dtype
        np.testing.assert_allclose(low.cast("float32").numpy(), exact, rtol=0.05, atol=0.2)
        found = backward(low.cast("float32").sum())
        assert {found[p].dtype for p in (made.a, made.b)} == {"float32"}


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12), st.floats(1e-3, 1e3))
def test_any_shape_has_its_delta(inputs: int, outputs: int, rank: int, alpha: float) -> None:
    with use_backend("cpu"):
        made = adapter(inputs, outputs, rank=rank, alpha=alpha)
        assert made.delta().shape == (outputs, inputs)
        wanted = alpha / rank * sum(np.outer(double(made.b)[:, i], double(made.a)[i]) for i in range(rank))
        np.testing.assert_allclose(made.delta(), wanted, rtol=1e-9, atol=1e-9)
