from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.spi import Required
from turret.spi.array_api import Hooks, required_from


def numpy_slots() -> Required[Any]:
    return required_from(np, hooks=Hooks(quiet=lambda: np.errstate(all="ignore")))


def strict_slots() -> Required[Any]:
    import array_api_strict

    return required_from(array_api_strict, hooks=Hooks(quiet=lambda: np.errstate(all="ignore")))


def jax_slots() -> Required[Any]:
    import jax
    import jax.numpy as jnp

    hooks = Hooks(
        synchronize=lambda *arrays: [x.block_until_ready() for x in arrays],
        erf=jax.scipy.special.erf,
        scatter_add_rows=lambda base, ids, rows, donate: base.at[ids].add(rows),
        set_rows=lambda base, ids, rows, donate: base.at[ids].set(rows),
    )
    return required_from(jnp, hooks=hooks)


SLOTS: dict[str, Callable[[], Required[Any]]] = {"numpy": numpy_slots, "strict": strict_slots, "jax": jax_slots}


@functools.cache
def slots_of(name: str) -> Required[Any]:
    return SLOTS[name]()


class Space:
    """The required slots over one namespace, and the way in and out."""

    def __init__(self, name: str) -> None:
        self.name, self.required = name, slots_of(name)
        self.storage, self.matmul = self.required.storage, self.required.matmul
        self.elementwise, self.reduction = self.required.elementwise, self.required.reduction
        self.layout, self.indexing = self.required.layout, self.required.indexing
        self.array_type = type(self.storage.arange(1))

    def put(self, host: Any, dtype: Any = None) -> Any:
        return self.storage.from_host(np.asarray(host), dtype=dtype)

    def get(self, array: Any) -> Any:
        assert isinstance(array, self.array_type), f"not an array of the namespace: {type(array)}"
        return self.storage.to_host(array)

    def same(self, got: Any, want: Any) -> None:
        """Equal in dtype, shape and value; NaN equals NaN, 0 equals -0."""
        host, want = self.get(got), np.asarray(want)
        assert (host.dtype, host.shape) == (want.dtype, want.shape)
        assert np.array_equal(host, want, equal_nan=host.dtype.kind == "f")

    def close(self, got: Any, want: Any, tolerance: float = 3e-6) -> None:
        """Like `same`, but for rounding."""
        host, want = self.get(got), np.asarray(want)
        assert (host.dtype, host.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(host, want, rtol=tolerance, atol=tolerance)


@pytest.fixture(params=list(SLOTS), scope="session")
def space(request: pytest.FixtureRequest) -> Space:
    return Space(request.param)


@pytest.fixture(params=["numpy", "strict"], scope="session")
def eager_space(request: pytest.FixtureRequest) -> Space:
    """For many shapes: JAX compiles each of them."""
    return Space(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.fixture
def normal(rng: np.random.Generator) -> Callable[..., Any]:
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)
