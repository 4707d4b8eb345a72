"""Where MLX's own functions would break the contract."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from turret.spi import Toolset

Put = Callable[[Any], mx.array]


def test_exp_is_accurate_to_the_end_of_its_range(tools: Toolset[mx.array], put: Put) -> None:
    x = np.linspace(-87, 88.7, 2001).astype(np.float32)
    got = tools.storage.to_host(tools.elementwise.exp(put(x)))
    assert np.abs(got / np.exp(x.astype(np.float64)) - 1).max() < 4e-7


def test_erf_keeps_its_relative_accuracy_near_0(tools: Toolset[mx.array], put: Put) -> None:
    x = np.concatenate([np.logspace(-30, 1, 500), -np.logspace(-30, 1, 500)]).astype(np.float32)
    want = np.array([math.erf(v) for v in x])
    assert np.abs(tools.storage.to_host(tools.elementwise.erf(put(x))) / want - 1).max() < 5e-7


def test_gelu_is_within_the_rounding_of_its_gate_and_small_in_the_left_tail(tools: Toolset[mx.array], put: Put) -> None:
    x = np.linspace(-5, 5, 1001).astype(np.float32)
    want = np.array([float(v) * math.erfc(-v / math.sqrt(2)) / 2 for v in x])
    got = tools.storage.to_host(tools.activation.gelu(put(x), form="erf"))
    assert (np.abs(got - want) <= np.minimum(1.5e-7 * np.abs(x), 5e-2 * np.abs(want)) + 1e-30).all()


def test_halves_are_reduced_in_float32(tools: Toolset[mx.array]) -> None:
    large = tools.storage.full((64,), 60000.0, dtype="float16")
    assert tools.storage.to_host(tools.reduction.mean(large, axis=0)) == 60000
    third = tools.storage.full((4096,), 1 / 3, dtype="bfloat16")
    assert abs(float(tools.storage.to_host(tools.reduction.sum(third, axis=0))) / 4096 * 3 - 1) < 1e-2


def test_writing_rows_leaves_every_other_holder_of_the_array_alone(tools: Toolset[mx.array], put: Put) -> None:
    base, ids, rows = put(np.zeros((3, 2), np.float32)), put(np.array([2, 2], np.int32)), put(np.ones((2, 2)))
    held = base
    assert tools.storage.to_host(tools.indexing.set_rows(base, ids, rows, donate=True))[2, 0] == 1
    assert tools.storage.to_host(tools.indexing.scatter_add_rows(base, ids, rows, donate=True))[2, 0] == 2
    assert not tools.storage.to_host(held).any()


def test_of_several_rows_of_one_index_one_wins_whole(tools: Toolset[mx.array], put: Put) -> None:
    rows = np.arange(40, dtype=np.float32).reshape(10, 4)
    ids = np.array([1, 1, 0, 1, 0, 2, 2, 1, 1, 0], np.int32)
    got = tools.storage.to_host(tools.indexing.set_rows(put(np.zeros((3, 4))), put(ids), put(rows)))
    for i, row in enumerate(got):
        assert any((row == rows[j]).all() for j in np.flatnonzero(ids == i))


def test_folding_nothing_neither_hangs_nor_reads_foreign_memory(tools: Toolset[mx.array]) -> None:
    for shape, axis in (((3, 0), 1), ((0, 4), 0), ((0,), 0), ((2, 0, 3), (0, 1)), ((0, 5), 1)):
        empty = tools.storage.full(shape, 1.0, dtype="float32")
        for method in (tools.reduction.sum, tools.reduction.mean):
            for keepdims in (False, True):
                got = tools.storage.to_host(method(empty, axis=axis, keepdims=keepdims))
                want = np.zeros(shape).sum(axis=axis, keepdims=keepdims)
                assert got.shape == want.shape
                assert not np.nan_to_num(got).any()


def test_bfloat16_arrives_widened(tools: Toolset[mx.array]) -> None:
    x = tools.storage.from_host(np.array([1.0, 1 + 2**-9, 3e38], np.float32), dtype="bfloat16")
    host = tools.storage.to_host(x)
    assert host.dtype == np.float32
    assert host[:2].tolist() == [1, 1]


@pytest.mark.parametrize("donate", [False, True])
def test_an_update_that_overflows_changes_nothing(tools: Toolset[mx.array], put: Put, donate: bool) -> None:
    p, g, zero = [put(np.ones(5))], [put(np.full(5, 1e25))], [put(np.zeros(5))]
    rates: dict[str, Any] = {"lr": put(0.1), "correction1": put(0.1), "correction2": put(0.1)}
    done = tools.adam.update(
        p, g, zero, zero, **rates, betas=(0.9, 0.9), eps=1e-8, decay=[0.0], max_norm=math.inf, donate=donate
    )  # fmt: skip
    assert not tools.storage.to_host(done.finite)
    assert tools.storage.to_host(done.params[0]).tolist() == [1] * 5
