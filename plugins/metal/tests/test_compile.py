"""Compiled functions: when they are traced, what they refuse, and what they leave behind."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from turret.spi import CaptureError, DType, OutOfMemory, Toolset

Put = Callable[[Any], mx.array]


def test_a_function_runs_once_for_every_shape_and_dtype(tools: Toolset[mx.array], put: Put) -> None:
    runs: list[tuple[int, ...]] = []

    def fn(x: mx.array, rate: mx.array) -> tuple[mx.array, ...]:
        runs.append(tuple(x.shape))
        return (tools.elementwise.multiply(x, rate),)

    program = tools.compile.compile(fn)
    for value in (1.0, 2.0, 3.0):
        assert tools.storage.to_host(program(put(np.ones(3)), put(value))[0]).tolist() == [value] * 3
    program(put(np.ones((3, 1))), put(1.0))
    program(put(np.ones(3, np.float16)), put(np.float16(1)))
    program(put(np.ones(3)), put(5.0))
    assert runs == [(3,), (3, 1), (3,)]


def reads(tools: Toolset[mx.array], how: str, x: mx.array) -> None:
    if how == "to_host":
        tools.storage.to_host(x)
    elif how == "synchronize":
        tools.storage.synchronize(x)
    elif how == "from_host":
        tools.storage.from_host(np.ones(2, np.float32))
    elif how == "item":
        x.item()
    elif how == "bool":
        bool(x)
    elif how == "numpy":
        np.array(x)
    else:
        mx.async_eval(x)  # type: ignore[no-untyped-call]  # so the stubs of MLX have it


@pytest.mark.parametrize("how", ["to_host", "synchronize", "from_host", "item", "bool", "numpy", "async_eval"])
def test_reading_a_value_while_compiling_names_the_line(tools: Toolset[mx.array], put: Put, how: str) -> None:
    asks = [True]

    def fn(x: mx.array) -> tuple[mx.array, ...]:
        if asks[0]:
            reads(tools, how, x)  # the line
        return (tools.elementwise.add(x, 1.0),)

    program = tools.compile.compile(fn)
    with pytest.raises(CaptureError, match="compiling") as caught:
        program(put(1.0))
    assert "# the line" in "".join(traceback.format_exception(caught.value))
    asks[0] = False
    assert tools.storage.to_host(program(put(1.0))[0]) == 2
    assert tools.storage.to_host(tools.elementwise.add(put(1.0), 1.0)) == 2


def test_what_the_function_raises_arrives_as_it_is(tools: Toolset[mx.array], put: Put) -> None:
    def fn(x: mx.array) -> tuple[mx.array, ...]:
        raise ValueError("mine")

    program = tools.compile.compile(fn)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^mine$"):
            program(put(1.0))


def test_a_program_too_large_for_the_machine_is_refused(tools: Toolset[mx.array], put: Put) -> None:
    program = tools.compile.compile(lambda x: (tools.matmul.matmul(x, x, transpose_b=True),))
    with pytest.raises(OutOfMemory):
        program(tools.layout.broadcast_to(put(np.ones((1, 1))), (2**22, 1)))


def test_a_program_called_by_another_program_is_part_of_it(tools: Toolset[mx.array], put: Put) -> None:
    inner = tools.compile.compile(lambda x: (tools.elementwise.add(x, 1.0),))
    outer = tools.compile.compile(lambda x: (tools.elementwise.multiply(inner(x)[0], 2.0),))
    for value in (1.0, 5.0):
        assert tools.storage.to_host(outer(put(value))[0]) == 2 * (value + 1)


def test_a_program_works_in_every_thread(tools: Toolset[mx.array], put: Put) -> None:
    program = tools.compile.compile(lambda x: (tools.elementwise.add(x, 1.0),))
    got = [tools.storage.to_host(program(put(1.0))[0])]
    threads = [threading.Thread(target=lambda: got.append(tools.storage.to_host(program(put(1.0))[0]))) for _ in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [float(x) for x in got] == [2] * 4


def test_results_outlive_the_donated_arrays_they_came_from(tools: Toolset[mx.array], put: Put) -> None:
    program = tools.compile.compile(lambda x: (tools.elementwise.add(x, 1.0), x), donate=(0,))
    x = put(np.zeros(5))
    more, same = program(x)
    del x
    again, _ = program(more)
    assert tools.storage.to_host(same).tolist() == [0] * 5
    assert tools.storage.to_host(again).tolist() == [2] * 5
    assert tools.storage.to_host(more).tolist() == [1] * 5


def test_equal_slices_in_one_program_do_not_break_it(tools: Toolset[mx.array], put: Put) -> None:
    """MLX merges equal operations, and fails where it merges splits of a result."""

    def fn(x: mx.array) -> tuple[mx.array, ...]:
        made = []
        for factor in (1.0, 2.0):
            moved = tools.elementwise.add(tools.elementwise.multiply(x, 3.0), 1.0)
            parts = [tools.layout.slice(moved, (low,), (low + 2,)) for low in (0, 2, 4, 6)]
            made += [tools.elementwise.multiply(part, factor) for part in parts]
        return tuple(made)

    got = [tools.storage.to_host(part).tolist() for part in tools.compile.compile(fn)(put(np.arange(8)))]
    assert got == [[m * (3 * i + 1) for i in (low, low + 1)] for m in (1, 2) for low in (0, 2, 4, 6)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "int64", "uint8", "bool"])
def test_slices_in_a_program_are_those_outside(tools: Toolset[mx.array], dtype: DType) -> None:
    x = tools.storage.cast(tools.storage.arange(24), dtype)

    def fn(x: mx.array) -> tuple[mx.array, ...]:
        turned = tools.layout.transpose(tools.layout.reshape(x, (2, 3, 4)), (2, 0, 1))
        bounds: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
            ((1, 0, 0), (3, 2, 3)), ((0, 1, 1), (4, 2, 2)), ((2, 0, 0), (2, 2, 3)), ((0, 0, 0), (4, 2, 3)),
        ]  # fmt: skip
        return tuple(tools.layout.slice(turned, start, stop) for start, stop in bounds)

    for got, want in zip(tools.compile.compile(fn)(x), fn(x), strict=True):
        assert tools.storage.dtype_of(got) == dtype
        assert tools.storage.to_host(got).tolist() == tools.storage.to_host(want).tolist()
