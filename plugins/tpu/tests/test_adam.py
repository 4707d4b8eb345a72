"""The update's donation: right whatever the caller gives twice; its norm: right in the whole range of float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.spi import Adapted
from turret_tpu.backend import TpuBackend
from turret_tpu.library import jax

X = jax.Array


def update(backend: TpuBackend, p: list[X], g: list[X], m: list[X], v: list[X], **given: Any) -> Adapted[X]:
    table = backend.capabilities()
    assert table.adam is not None
    rate, one, two = (table.required.storage.full((), x, dtype="float32") for x in (0.01, 0.1, 0.01))
    options: dict[str, Any] = {"decay": (0.1,) * len(p), "max_norm": 1.0, "donate": True}
    options |= {"lr": rate, "correction1": one, "correction2": two, "betas": (0.9, 0.99), "eps": 1e-8} | given
    return table.adam.update(p, g, m, v, **options)


def put(backend: TpuBackend, *hosts: Any) -> list[X]:
    return [backend.capabilities().required.storage.from_host(np.asarray(x, np.float32)) for x in hosts]


def host(backend: TpuBackend, done: Adapted[X]) -> list[Any]:
    get = backend.capabilities().required.storage.to_host
    return [get(x) for x in (*done.params, *done.first, *done.second, done.norm, done.finite)]


def test_donated_arrays_are_taken_and_others_are_not(backend: TpuBackend) -> None:
    for donate in (True, False):
        p, g, m, v = ([x] for x in put(backend, [1, 2], [3, 4], [0, 0], [0, 0]))
        update(backend, p, g, m, v, donate=donate)
        assert [x.is_deleted() for x in (*p, *m, *v)] == [donate] * 3
        assert not g[0].is_deleted()


def test_what_is_given_twice_gives_the_same_result_as_copies(backend: TpuBackend) -> None:
    a, b, zero = put(backend, [1, 2], [3, 4], [0, 0])
    rate = put(backend, 0.1)[0]
    cases: dict[str, tuple[Any, ...]] = {
        "one parameter twice": ([a, a], [b, b], put(backend, [0, 0], [0, 0]), put(backend, [0, 0], [0, 0])),
        "one zero for both moments": ([a], [b], [zero], [zero]),
        "a parameter as its gradient": ([a], [a], put(backend, [0, 0]), put(backend, [0, 0])),
        "the rate as a parameter": ([rate], put(backend, 1.0), put(backend, 0.0), put(backend, 0.0)),
    }
    for name, groups in cases.items():
        lr: dict[str, Any] = {"lr": rate} if "rate" in name else {}
        apart = [[x.copy() for x in group] for group in groups]
        kept: dict[str, Any] = {key: x.copy() for key, x in lr.items()}
        want = host(backend, update(backend, *apart, donate=False, **kept))
        got = host(backend, update(backend, *groups, **lr))
        for x, y in zip(got, want, strict=True):
            np.testing.assert_array_equal(x, y, err_msg=name)


def test_a_refused_step_gives_the_old_bits_back_though_they_were_donated(backend: TpuBackend) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        p, g, m, v = ([x] for x in put(backend, [1, 2], [3, bad], [5, 6], [7, 8]))
        got = host(backend, update(backend, p, g, m, v))
        assert not got[-1]
        assert [x.tolist() for x in got[:3]] == [[1, 2], [5, 6], [7, 8]]


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-30, 1e-15, 1.0, 1e15, 1e25, 1e38])
@pytest.mark.parametrize("count", [1, 3000])
def test_the_norm_neither_overflows_nor_underflows(backend: TpuBackend, size: float, count: int) -> None:
    g = np.full(count, size / np.sqrt(count), np.float32)
    done = update(backend, *([x] for x in put(backend, np.ones(count), g, np.zeros(count), np.zeros(count))))
    norm, finite = host(backend, done)[-2:]
    want = np.sqrt((g.astype(np.float64) ** 2).sum())
    assert finite
    # what is below the least normal number may be flushed
    assert abs(norm - want) <= 1e-5 * want + np.finfo(np.float32).tiny * np.sqrt(count)


def test_one_small_gradient_beside_a_large_one(backend: TpuBackend) -> None:
    done = update(backend, *(put(backend, *pair) for pair in (([1], [1]), ([1e30], [1e-30]), ([0], [0]), ([0], [0]))))
    norm, finite = host(backend, done)[-2:]
    assert finite
    assert norm == pytest.approx(1e30, rel=1e-6)


def test_a_norm_beyond_float32_is_not_finite(backend: TpuBackend) -> None:
    big = np.full(100, 3e38, np.float32)
    got = host(backend, update(backend, *([x] for x in put(backend, np.ones(100), big, np.zeros(100), np.zeros(100)))))
    assert np.isinf(got[-2])
    assert not got[-1]
    assert got[0].tolist() == [1] * 100


def test_row_writes_may_be_donated_their_own_rows(backend: TpuBackend) -> None:
    required = backend.capabilities().required
    ids = required.storage.from_host(np.array([1, 0], np.int32))
    for name, want in (("set_rows", [[3, 4], [1, 2]]), ("scatter_add_rows", [[4, 6], [4, 6]])):
        (x,) = put(backend, [[1, 2], [3, 4]])
        got = getattr(required.indexing, name)(x, ids, x, donate=True)
        assert required.storage.to_host(got).tolist() == want
