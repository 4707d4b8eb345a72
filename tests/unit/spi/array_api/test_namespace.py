from __future__ import annotations

import inspect
import warnings
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turret.spi import Elementwise, Indexing, Layout, Matmul, Reduction, Storage, Unsupported
from turret.spi.array_api import Hooks, required_from

PROTOCOLS = {
    "storage": Storage,
    "matmul": Matmul,
    "elementwise": Elementwise,
    "reduction": Reduction,
    "layout": Layout,
    "indexing": Indexing,
}


def test_all_forty_five_functions_are_there(space: Any) -> None:
    functions = [
        (slot, name)
        for slot, protocol in PROTOCOLS.items()
        for name, member in vars(protocol).items()
        if inspect.isfunction(member) and not name.startswith("_")
    ]
    assert len(functions) == 45
    assert all(callable(getattr(getattr(space.required, slot), name)) for slot, name in functions)


def without(*names: str) -> Any:
    everything = {name: getattr(np, name) for name in np.__all__ if name not in names}
    return SimpleNamespace(**everything, __name__="halfway")


def test_a_namespace_that_lacks_functions_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match=r"'halfway' lacks permute_dims, take_along_axis of .*array-api-compat"):
        required_from(without("permute_dims", "take_along_axis"))
    assert required_from(without()).storage.device().name == "halfway"


def test_a_namespace_without_a_dtype_has_one_dtype_less() -> None:
    def asarray(x: Any, **options: Any) -> Any:
        if x.dtype == np.float64:
            raise TypeError("no float64 here")
        return np.asarray(x, **options)

    namespace = without("asarray")
    namespace.asarray = asarray
    assert "float64" not in required_from(namespace).storage.device().dtypes


def test_numpy_warns_without_the_quiet_hook_and_not_with_it() -> None:
    x = np.array([1000, 0], np.float32)
    with pytest.warns(RuntimeWarning, match="overflow"):
        required_from(np).elementwise.exp(x)
    quiet = required_from(np, hooks=Hooks(quiet=lambda: np.errstate(all="ignore")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quiet.elementwise.exp(x)[0] == np.inf


def test_the_callers_error_state_is_left_alone() -> None:
    with np.errstate(all="raise"):
        before = np.geterr()
        required = required_from(np, hooks=Hooks(quiet=lambda: np.errstate(all="ignore")))
        required.elementwise.log(np.zeros(2, np.float32))
        assert np.geterr() == before
        with pytest.raises(FloatingPointError):
            np.log(np.zeros(2))


def test_hooked_functions_are_quiet_and_boxed_too() -> None:
    entered: list[str] = []

    @contextmanager
    def quiet() -> Any:
        entered.append("in")
        yield

    hooks = Hooks(quiet=quiet, erf=lambda x: np.float32(0.5), rsqrt=lambda x: np.float32(2))
    elementwise = required_from(np, hooks=hooks).elementwise
    entered.clear()
    assert type(elementwise.erf(np.zeros((), np.float32))) is np.ndarray
    assert type(elementwise.rsqrt(np.zeros((), np.float32))) is np.ndarray
    assert entered == ["in", "in"]


def test_a_library_that_needs_no_guard_gets_none() -> None:
    import jax.numpy as jnp

    assert required_from(jnp).elementwise.add is jnp.add


def test_required_slots_can_be_traced() -> None:
    import jax
    import jax.numpy as jnp

    required = required_from(jnp)

    def step(x: Any, ids: Any) -> tuple[Any, ...]:
        y = required.matmul.matmul(x, x, transpose_b=True)
        z = required.layout.pad(required.elementwise.exp(y), [(0, 1), (0, 0)])
        column = required.layout.slice(required.reduction.sum(z, axis=1, keepdims=True), (0, 0), (3, 1))
        rows = required.indexing.gather_rows(x, ids)
        where = required.elementwise.less(required.storage.arange(3), 2)
        grown = required.indexing.scatter_add_rows(x, ids, rows)
        return column, grown, required.storage.cast(where, "float32"), required.reduction.argmax(x, axis=1)

    x, ids = jnp.arange(6, dtype="float32").reshape(3, 2) / 6, jnp.array([2, 2], "int32")
    for traced, eager in zip(jax.jit(step)(x, ids), step(x, ids), strict=True):
        np.testing.assert_allclose(traced, eager, rtol=1e-6)
