"""The living specification: it opens, keeps the surprising parts of the contract, and trains like the cpu backend."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turret.models import DecoderConfig, build_model
from turret.optim import Adam
from turret.registry import OpenBackend, Registry, use_backend
from turret.registry.names import Spec
from turret.spi import OPTIONAL_SLOTS, BackendInfo, BackendUnavailable, DTypeError, ShapeError, Toolset
from turret.tensor import ops, tensor


@pytest.fixture(scope="module")
def registry() -> Registry:
    """The example is installed wherever the tests are run."""
    return Registry()


@pytest.fixture(scope="module")
def info(registry: Registry) -> BackendInfo:
    return registry.loadable(Spec.parse("minimal"))


@pytest.fixture(scope="module")
def minimal(registry: Registry) -> OpenBackend:
    return registry.open("minimal")


@pytest.fixture(scope="module")
def tools(minimal: OpenBackend) -> Toolset[Any]:
    return minimal.tools


def losses(backend: OpenBackend | str) -> list[float]:
    """Three updates of a decoder of two blocks on fixed ids."""
    ids = np.random.default_rng(5).integers(0, 27, (3, 4, 17)).astype(np.int32)
    found = []
    with use_backend(backend):
        model = build_model(DecoderConfig(vocabulary=27), seed=2)
        adam = Adam(model.named_parameters())
        for batch in ids:
            loss = ops.cross_entropy(model(tensor(batch[:, :-1])), tensor(batch[:, 1:]))
            loss.backward()
            adam.step(lr=1e-2)
            found.append(loss.item())
    return found


def test_three_steps_of_training_cost_what_they_cost_on_cpu(minimal: OpenBackend) -> None:
    here = losses(minimal)
    assert here[0] == pytest.approx(math.log(27), abs=0.1)
    assert here == pytest.approx(losses("cpu"), abs=1e-5)
    assert here[2] != pytest.approx(here[0], abs=1e-3), "nothing was learned: the comparison would be empty"


def test_it_writes_out_the_required_slots_and_leaves_the_rest_to_be_composed(minimal: OpenBackend) -> None:
    table = minimal.backend.capabilities()
    assert minimal.tools.native == frozenset()
    assert [slot for slot in OPTIONAL_SLOTS if getattr(table, slot) is not None] == []
    assert minimal.backend.capabilities() is table


def test_a_device_name_is_refused(registry: Registry) -> None:
    with pytest.raises(BackendUnavailable, match="takes no device name, got '7'"):
        registry.open("minimal:7")


def test_its_announced_dtypes_are_those_of_its_device(info: BackendInfo, tools: Toolset[Any]) -> None:
    assert tools.storage.device().dtypes == info.dtypes


def test_every_result_of_rank_0_is_an_array(tools: Toolset[Any]) -> None:
    one, ids = np.array(1.5, np.float32), np.array(0, np.int32)
    row, yes = np.array([1.5, 2.5], np.float32), np.array(True)
    e, r = tools.elementwise, tools.reduction
    unary = [e.negative, e.exp, e.log, e.sqrt, e.rsqrt, e.tanh, e.erf, e.isfinite]
    binary = [e.add, e.subtract, e.multiply, e.divide, e.maximum, e.minimum, e.equal, e.less, e.less_equal]
    results = [f(one) for f in unary] + [f(one, 2.0) for f in binary] + [f(2.0, one) for f in binary]
    results += [e.logical_and(yes, yes), e.where(yes, one, 2.0), r.sum(row, axis=0), r.mean(row, axis=0)]
    results += [r.max(row, axis=0), r.argmax(row, axis=0), tools.layout.slice(one, (), ()), tools.layout.pad(one, ())]
    results += [tools.indexing.gather_rows(row, ids), tools.indexing.gather_last(row, ids)]
    assert [type(each) for each in results] == [np.ndarray] * len(results)
    assert {each.shape for each in results} == {()}
    floats = [each for each in results if each.dtype.kind == "f"]
    assert {each.dtype.name for each in floats} == {"float32"}


def test_nothing_is_shared_with_the_host(tools: Toolset[Any]) -> None:
    host = np.ones(3, np.float32)
    held = tools.storage.from_host(host)
    host[:] = 7
    back = tools.storage.to_host(held)
    back[:] = 9
    assert tools.storage.to_host(held).tolist() == [1, 1, 1]


def test_values_that_are_not_finite_travel_in_silence(tools: Toolset[Any]) -> None:
    e = tools.elementwise
    odd = np.array([math.nan, math.inf, -math.inf, 0.0, -1.0, 3e38], np.float32)
    assert np.isnan(e.maximum(odd, 1.0)[0])
    assert np.isnan(e.minimum(odd, 1.0)[0])
    assert np.isnan(tools.reduction.max(odd, axis=0))
    assert e.multiply(odd, 10.0)[5] == math.inf
    assert e.rsqrt(odd)[3] == math.inf
    assert e.log(odd)[3] == -math.inf
    assert np.isnan(e.log(odd)[4])
    assert e.erf(odd).tolist()[1:3] == [1.0, -1.0]
    assert e.where(e.isfinite(odd), odd, 0.0).tolist()[:3] == [0, 0, 0]
    assert np.isnan(tools.reduction.mean(odd[:0], axis=0))


def test_halves_accumulate_in_float32(tools: Toolset[Any]) -> None:
    ones, large = np.ones((1, 4096), np.float16), np.full(4, 60000, np.float16)
    assert tools.matmul.matmul(ones, ones, transpose_b=True).tolist() == [[4096]]
    assert tools.reduction.sum(ones, axis=1).tolist() == [4096]
    assert tools.reduction.mean(large, axis=0) == np.float16(60000)
    added = tools.indexing.scatter_add_rows(np.zeros(1, np.float16), np.zeros(4096, np.int32), ones[0])
    assert (added.tolist(), added.dtype) == ([4096], np.float16)


def test_a_half_is_rounded_once(tools: Toolset[Any]) -> None:
    x = np.arange(1, 400, dtype=np.float16)
    assert np.array_equal(tools.elementwise.rsqrt(x), (1 / np.sqrt(x.astype(np.float64))).astype(np.float16))


@pytest.mark.parametrize("donate", [False, True])
def test_rows_are_added_and_set_without_touching_the_base(tools: Toolset[Any], donate: bool) -> None:
    base, ids = np.zeros((3, 2), np.float32), np.array([2, 0, 2], np.int32)
    rows = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    added = tools.indexing.scatter_add_rows(base, ids, rows, donate=donate)
    assert added.tolist() == [[3, 4], [0, 0], [6, 8]]
    placed = tools.indexing.set_rows(base, ids, rows, donate=donate)
    assert placed[:2].tolist() == [[3, 4], [0, 0]]
    assert placed[2].tolist() in rows[[0, 2]].tolist()
    assert not base.any()


def test_the_first_of_equals_is_the_greatest(tools: Toolset[Any]) -> None:
    place = tools.reduction.argmax(np.array([[1, 3, 3], [2, 2, 2]], np.int32), axis=1)
    assert (place.tolist(), place.dtype) == ([1, 0], np.int32)


def test_what_it_cannot_do_is_an_error_of_the_interface(tools: Toolset[Any]) -> None:
    with pytest.raises(DTypeError, match="minimal has no bfloat16"):
        tools.storage.full((1,), 1.0, dtype="bfloat16")
    with pytest.raises(DTypeError, match="complex64"):
        tools.storage.from_host(np.zeros(1, np.complex64))
    with pytest.raises(ShapeError, match="empty axis"):
        tools.reduction.max(np.zeros((2, 0), np.float32), axis=-1)
    with pytest.raises(ShapeError, match="empty axis"):
        tools.reduction.argmax(np.zeros((2, 0), np.float32), axis=1)
