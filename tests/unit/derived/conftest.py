from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from turret.derived import fill
from turret.spi import HALVES, OPTIONAL_SLOTS, Capabilities, Required
from turret.spi.array_api import Hooks, required_from


def numpy_slots() -> Required[Any]:
    return required_from(np, accumulation="float32", hooks=Hooks(quiet=lambda: np.errstate(all="ignore")))


class OneDtype:
    """A slot that refuses array operands of several dtypes in one call, where NumPy would promote without a word."""

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._slot, name)

        def call(*arguments: Any, **options: Any) -> Any:
            operands = arguments[1:] if name == "where" else arguments
            dtypes = {x.dtype.name for x in operands if isinstance(x, np.ndarray)}
            assert len(dtypes) == 1, f"{name} of {dtypes}"
            return method(*arguments, **options)

        return call


def strict_slots() -> Required[Any]:
    import array_api_strict

    return required_from(array_api_strict, hooks=Hooks(quiet=lambda: np.errstate(all="ignore")))


def jax_slots() -> Required[Any]:
    import jax
    import jax.numpy as jnp

    hooks = Hooks(
        synchronize=lambda *arrays: [x.block_until_ready() for x in arrays],
        erf=jax.scipy.special.erf,
        rsqrt=jax.lax.rsqrt,
        scatter_add_rows=lambda base, ids, rows, donate: base.at[ids].add(rows),
        set_rows=lambda base, ids, rows, donate: base.at[ids].set(rows),
        matmul=functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST),
    )
    return required_from(jnp, accumulation="float32", hooks=hooks)


SLOTS: dict[str, Callable[[], Required[Any]]] = {"numpy": numpy_slots, "strict": strict_slots, "jax": jax_slots}


@functools.cache
def slots_of(name: str) -> Required[Any]:
    return SLOTS[name]()


class Traced:
    """A slot whose every call is one traced and compiled program: derived slots must not notice."""

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __getattr__(self, name: str) -> Callable[..., Any]:
        import jax

        method = getattr(self._slot, name)

        def call(*arguments: Any, **options: Any) -> Any:
            arrays = {key: value for key, value in options.items() if isinstance(value, jax.Array)}
            rest = {key: value for key, value in options.items() if key not in arrays}
            return jax.jit(lambda given, named: method(*given, **named, **rest))(arguments, arrays)

        return call


TRACEABLE = set(OPTIONAL_SLOTS) - {"quantized_linear", "random", "compile"}


class Bench:
    """Derived slots of one namespace, JAX's traced. Everything put on it must come out of the test bit-equal."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.required = slots_of(name)
        if name == "numpy":
            slots: dict[str, Any] = {slot: OneDtype(getattr(self.required, slot)) for slot in ("elementwise", "matmul")}
            self.required = dataclasses.replace(self.required, **slots)
        self.tools = fill(Capabilities(required=self.required))
        if name == "jax":
            slots = {slot: Traced(getattr(self.tools, slot)) for slot in TRACEABLE}
            self.tools = dataclasses.replace(self.tools, **slots)
        # one half of each library: NumPy has float16 alone
        self.halves = sorted(self.tools.storage.device().dtypes & HALVES)[:1]
        self._placed: list[tuple[Any, Any]] = []

    def put(self, host: Any, dtype: Any = None) -> Any:
        array = self.tools.storage.from_host(np.asarray(host), dtype=dtype)
        self._placed.append((array, self.tools.storage.to_host(array)))
        return array

    def get(self, array: Any) -> Any:
        host = self.tools.storage.to_host(array)
        assert type(array) is type(self.tools.storage.arange(1)), f"not an array of the namespace: {type(array)}"
        return host

    def close(self, got: Any, want: Any, tolerance: float = 4e-6) -> None:
        host, want = self.get(got), np.asarray(want, np.float64)
        assert host.shape == want.shape
        error = np.abs(host.astype(np.float64) - want)
        assert not host.size or np.max(error / (1 + np.abs(want))) <= tolerance, f"off by {np.max(error)}"

    def same(self, got: Any, want: Any) -> None:
        host, want = self.get(got), np.asarray(want)
        assert host.dtype == want.dtype and host.shape == want.shape
        assert host.tobytes() == want.tobytes()

    def check_untouched(self) -> None:
        for array, before in self._placed:
            assert self.tools.storage.to_host(array).tobytes() == before.tobytes(), "an input was written"


@pytest.fixture(params=list(SLOTS))
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.param)
    yield made
    made.check_untouched()


@pytest.fixture(params=["numpy", "strict"])
def eager_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """For what does not depend on tracing: every traced call costs a compilation."""
    made = Bench(request.param)
    yield made
    made.check_untouched()


@pytest.fixture
def jax_bench() -> Iterator[Bench]:
    made = Bench("jax")
    yield made
    made.check_untouched()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def normal(rng: np.random.Generator) -> Callable[..., Any]:
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)


def _differences(function: Callable[..., Any], inputs: Sequence[Any], dy: Any, step: float = 1e-5) -> list[Any]:
    gradients = []
    wide = [np.array(x, np.float64) for x in inputs]
    for x in wide:
        gradient = np.zeros_like(x)
        for i in np.ndindex(x.shape):
            kept = x[i]
            x[i] = kept + step
            above = function(*wide)
            x[i] = kept - step
            below = function(*wide)
            x[i] = kept
            gradient[i] = np.sum((above - below) * np.asarray(dy, np.float64)) / (2 * step)
        gradients.append(gradient)
    return gradients


@pytest.fixture
def differences() -> Callable[..., list[Any]]:
    """(function, inputs, dy) to the gradient of sum(function(*inputs) * dy) for each input, by centred differences."""
    return _differences


@pytest.fixture
def attention() -> Callable[..., Any]:
    """Vaswani et al. 2017, eq. 1, one query head at a time, float64."""

    def attend(q: Any, k: Any, v: Any, scale: float, offset: int) -> Any:
        b, t, h, _ = q.shape
        group = h // k.shape[2]
        out = np.zeros((b, t, h, v.shape[3]))
        for n, i, head in np.ndindex(b, t, h):
            seen = min(offset + i + 1, k.shape[1])
            scores = scale * k[n, :seen, head // group].astype(np.float64) @ q[n, i, head].astype(np.float64)
            weights = np.exp(scores - scores.max())
            out[n, i, head] = weights / weights.sum() @ v[n, :seen, head // group].astype(np.float64)
        return out

    return attend


@pytest.fixture
def rounded() -> Callable[..., Any]:
    """A float64 truth rounded to a half, widened to float32 as `to_host` gives it; and one unit in its last place."""
    import ml_dtypes

    def to(dtype: str, truth: Any) -> tuple[Any, Any]:
        narrow = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        bits = 8 if dtype == "bfloat16" else 11
        value = np.asarray(truth, np.float32).astype(narrow).astype(np.float32)
        return value, np.maximum(np.abs(value), 1e-3) * math.ldexp(1.0, 1 - bits)

    return to
