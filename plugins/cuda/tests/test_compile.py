"""Captured functions: where their arguments lie, whose their results are, and what they refuse."""

from __future__ import annotations

import threading
from typing import Any

import cupy
import numpy as np
import pytest

from turret.spi import CaptureError, OutOfMemory, Toolset
from turret_cuda.graph import SMALL

LARGE = SMALL // 4 + 256  # elements of float32 that are not copied at every call


@pytest.fixture
def put(tools: Toolset[Any]) -> Any:
    return lambda x: tools.storage.from_host(np.asarray(x, np.float32))


def host(tools: Toolset[Any], x: Any) -> Any:
    return tools.storage.to_host(x)


def test_a_function_runs_once_for_every_shape_and_dtype(tools: Toolset[Any], put: Any) -> None:
    runs: list[tuple[int, ...]] = []

    def fn(x: Any, rate: Any) -> tuple[Any, ...]:
        runs.append(x.shape)
        return (tools.elementwise.multiply(x, rate),)

    program = tools.compile.compile(fn)
    for value in (1.0, 2.0, 3.0):
        assert host(tools, program(put(np.ones(3)), put(value))[0]).tolist() == [value] * 3
    program(put(np.ones((3, 1))), put(1.0))
    program(put(np.ones(3)), put(5.0))
    assert runs == [(3,), (3, 1)]


def test_a_replay_launches_no_kernel_of_the_function_by_itself(tools: Toolset[Any], put: Any) -> None:
    def fn(x: Any) -> tuple[Any, ...]:
        for _ in range(20):
            x = tools.elementwise.add(x, 1.0)
        return (x,)

    program = tools.compile.compile(fn)
    program(put([0.0]))
    queued: list[str] = []
    place: Any = tools.elementwise._place  # type: ignore[attr-defined]
    launch = place.launch
    place.launch = lambda file, name, *rest: (queued.append(name), launch(file, name, *rest))
    try:
        assert host(tools, program(put([5.0]))[0]).tolist() == [25.0]
    finally:
        del place.launch
    assert queued == ["copy_many", "copy_many"], "its argument in, its result out"


def test_a_large_argument_is_read_where_it_lies(tools: Toolset[Any], put: Any) -> None:
    runs: list[int] = []

    def fn(weight: Any, x: Any) -> tuple[Any, ...]:
        runs.append(1)
        return (tools.elementwise.multiply(weight, x),)

    program, weight = tools.compile.compile(fn), put(np.arange(LARGE))
    for value in (1.0, 2.0):
        assert host(tools, program(weight, put(value))[0])[-1] == value * (LARGE - 1)
    assert len(runs) == 1


def test_a_large_argument_from_elsewhere_is_captured_anew_and_from_then_on_copied(
    tools: Toolset[Any], put: Any
) -> None:
    runs: list[int] = []

    def fn(weight: Any) -> tuple[Any, ...]:
        runs.append(1)
        return (tools.elementwise.add(weight, 1.0),)

    program, kept = tools.compile.compile(fn), []
    for value in range(5):
        kept.append(put(np.full(LARGE, value)))
        assert host(tools, program(kept[-1])[0])[0] == value + 1
    assert len(runs) == 2
    assert [host(tools, x)[0] for x in kept] == [0, 1, 2, 3, 4]


def adam_program(tools: Toolset[Any], runs: list[int]) -> Any:
    def fn(p: Any, m: Any, v: Any, g: Any, lr: Any, c: Any) -> tuple[Any, ...]:
        runs.append(1)
        made = tools.adam.update(
            (p,), (g,), (m,), (v,), lr=lr, correction1=c, correction2=c, betas=(0.9, 0.99), eps=1e-8, decay=(0.0,),
            max_norm=1.0, donate=True,
        )  # fmt: skip
        return made.params[0], made.first[0], made.second[0], made.norm

    return tools.compile.compile(fn, donate=(0, 1, 2))


def test_state_that_is_updated_stays_where_it_is_and_is_copied_nowhere(tools: Toolset[Any], put: Any) -> None:
    runs: list[int] = []
    program = adam_program(tools, runs)
    state = [put(np.ones(LARGE)), put(np.zeros(LARGE)), put(np.zeros(LARGE))]
    places = [x.data.ptr for x in state]
    for _ in range(3):
        *state, _ = program(*state, put(np.ones(LARGE)), put(0.1), put(0.5))
        assert [x.data.ptr for x in state] == places
    assert len(runs) == 2, "the gradient came from elsewhere once"
    assert host(tools, state[0])[0] < 1.0


def test_state_from_elsewhere_is_brought_to_the_buffers_and_the_old_results_stay(tools: Toolset[Any], put: Any) -> None:
    runs: list[int] = []
    program = adam_program(tools, runs)
    rates = put(0.1), put(0.5)
    g = put(np.ones(LARGE))
    first = program(put(np.ones(LARGE)), put(np.zeros(LARGE)), put(np.zeros(LARGE)), g, *rates)
    kept = [host(tools, x) for x in first]
    second = program(put(np.full(LARGE, 5.0)), put(np.zeros(LARGE)), put(np.zeros(LARGE)), g, *rates)
    for x, old in zip(first, kept, strict=True):
        assert host(tools, x).tobytes() == old.tobytes(), "still held, so not overwritten"
    assert host(tools, second[0])[0] == pytest.approx(host(tools, first[0])[0] + 4.0, rel=1e-6)
    del first, second, x
    before = len(runs)
    third = program(put(np.full(LARGE, 9.0)), put(np.zeros(LARGE)), put(np.zeros(LARGE)), g, *rates)
    assert len(runs) == before, "nobody holds the buffers: the new state moves in"
    assert host(tools, third[0])[0] == pytest.approx(kept[0][0] + 8.0, rel=1e-6)


def test_a_view_of_a_result_keeps_its_buffer(tools: Toolset[Any], put: Any) -> None:
    program = tools.compile.compile(lambda x: (x,), donate=(0,))
    (out,) = program(put([1.0, 2.0, 3.0]))
    view = out[1:]
    del out
    program(put([7.0, 8.0, 9.0]))
    assert host(tools, view).tolist() == [2.0, 3.0]


def test_an_array_that_only_the_function_knows_lives_as_long_as_the_program(tools: Toolset[Any], put: Any) -> None:
    box = [put(np.full(5, 2.0))]
    program = tools.compile.compile(lambda x: (tools.elementwise.multiply(x, box[0]),))
    program(put(np.ones(5)))
    box[0] = put(np.full(5, 3.0))
    taken = [put(np.full(5, 9.0)) for _ in range(4)]  # would take the memory of the first one
    assert host(tools, program(put(np.ones(5)))[0]).tolist() == [2.0] * 5
    assert len(taken) == 4


def test_what_a_function_gives_away_but_was_not_given_is_not_written(tools: Toolset[Any], put: Any) -> None:
    ids = tools.storage.from_host(np.array([0], np.int32))
    base = put(np.zeros((2, LARGE)))

    def fn(x: Any, row: Any) -> tuple[Any, ...]:
        return (tools.indexing.set_rows(x, ids, row, donate=True),)

    for _ in range(2):
        (made,) = tools.compile.compile(fn)(base, put(np.ones((1, LARGE))))
        assert host(tools, made)[0, 0] == 1.0
        assert not host(tools, base).any()


@pytest.mark.parametrize("how", ["to_host", "synchronize", "from_host"])
def test_reading_a_value_is_refused_and_the_program_still_works(tools: Toolset[Any], put: Any, how: str) -> None:
    asks = [True]

    def fn(x: Any) -> tuple[Any, ...]:
        if asks[0] and how == "to_host":
            tools.storage.to_host(x)
        elif asks[0] and how == "synchronize":
            tools.storage.synchronize(x)
        elif asks[0]:
            tools.storage.from_host(np.ones(2, np.float32))
        return (tools.elementwise.add(x, 1.0),)

    program = tools.compile.compile(fn)
    with pytest.raises(CaptureError, match="cuda:emulated captures a function"):
        program(put([1.0]))
    asks[0] = False
    assert host(tools, program(put([1.0]))[0]).tolist() == [2.0]


def test_reading_a_value_by_cupys_own_means_is_refused_too(tools: Toolset[Any], put: Any) -> None:
    host, asks = np.zeros(1, np.float32), [True]
    before = cupy.cuda.get_current_stream()

    def fn(x: Any) -> tuple[Any, ...]:
        if asks[0]:
            x.data.copy_to_host_async(host.ctypes.data, x.nbytes)  # as float(x) does, on the current stream
        return (tools.elementwise.add(x, 1.0),)

    program = tools.compile.compile(fn)
    with pytest.raises(CaptureError, match=r"reads a value.*stream is capturing.*; return the array"):
        program(put([1.0]))
    assert cupy.cuda.get_current_stream() == before
    asks[0] = False
    assert host[0] == 0.0
    assert tools.storage.to_host(program(put([1.0]))[0]).tolist() == [2.0]


def test_what_the_function_raises_comes_through_and_nothing_was_given_away(tools: Toolset[Any], put: Any) -> None:
    x = put([1.0, 2.0])

    def fn(x: Any) -> tuple[Any, ...]:
        tools.elementwise.add(x, 1.0)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        tools.compile.compile(fn, donate=(0,))(x)
    assert host(tools, x).tolist() == [1.0, 2.0]
    assert host(tools, tools.elementwise.add(x, x)).tolist() == [2.0, 4.0]


def test_a_program_within_a_program_becomes_part_of_it(tools: Toolset[Any], put: Any) -> None:
    inner = tools.compile.compile(lambda x: (tools.elementwise.multiply(x, 3.0),))
    outer = tools.compile.compile(lambda x: (tools.elementwise.add(inner(x)[0], 1.0),))
    for value in (1.0, 2.0):
        assert host(tools, outer(put([value]))[0]).tolist() == [3 * value + 1]


def test_other_threads_go_on_while_one_captures(tools: Toolset[Any], put: Any) -> None:
    inside, done = threading.Event(), threading.Event()
    found: list[Any] = []

    def other() -> None:
        inside.wait(30)
        found.append(host(tools, tools.elementwise.add(put([1.0]), 1.0)).tolist())
        done.set()

    def fn(x: Any) -> tuple[Any, ...]:
        y = tools.elementwise.add(x, 1.0)
        inside.set()
        assert done.wait(30)
        return (tools.elementwise.multiply(y, 2.0),)

    thread = threading.Thread(target=other)
    thread.start()
    (out,) = tools.compile.compile(fn)(put([1.0]))
    thread.join()
    assert found == [[2.0]]
    assert host(tools, out).tolist() == [4.0]


def test_no_room_for_results_is_said_before_anything_happens(tools: Toolset[Any], put: Any) -> None:
    program = tools.compile.compile(
        lambda x, y: (tools.elementwise.add(x, y), tools.layout.broadcast_to(y, (2**20,))), donate=(0,)
    )
    state, _ = program(put([1.0]), put([1.0]))
    total = cupy.emulated.set_total_memory(2**20)
    try:
        with pytest.raises(OutOfMemory, match="make the batch smaller"):
            program(state, put([1.0]))
    finally:
        cupy.emulated.set_total_memory(total or 2**32)
    assert host(tools, state).tolist() == [2.0]


def test_a_donated_argument_that_is_also_another_argument_is_right(tools: Toolset[Any], put: Any) -> None:
    program = tools.compile.compile(
        lambda x, y: (tools.elementwise.add(x, y), tools.elementwise.multiply(x, y)), donate=(0,)
    )
    for value in (2.0, 3.0):
        x = put([value])
        total, product = program(x, x)
        assert host(tools, total).tolist() == [2 * value]
        assert host(tools, product).tolist() == [value * value]


def test_views_are_taken_for_what_they_are(tools: Toolset[Any], put: Any) -> None:
    program = tools.compile.compile(lambda x: (tools.elementwise.add(x, 0.0),), donate=(0,))
    square = np.arange(9.0).reshape(3, 3)
    for x, want in ((put(square), square), (put(square).transpose(1, 0), square.T)):
        assert host(tools, program(x)[0]).tolist() == want.tolist()


def test_a_graph_keeps_memory_that_its_function_was_done_with(tools: Toolset[Any], put: Any) -> None:
    """Short of memory, a pool gives free blocks back and tries again; what was recorded still needs them."""

    def fn(x: Any) -> tuple[Any, ...]:
        for size in (2**18, 2**19, 2**20):  # blocks of 1, 2 and 4 MiB, each done with before the next is made
            large = tools.layout.broadcast_to(x, (size,))
            x = tools.reduction.max(tools.elementwise.add(large, 1.0), axis=0, keepdims=True)
        return (x,)

    x, free = put([0.0]), put(np.zeros(2**21))
    used = tools.storage.memory()
    assert used is not None
    del free
    cupy.emulated.set_total_memory(used.used_bytes + 2**20)
    try:
        program = tools.compile.compile(fn)
        for _ in range(3):
            assert host(tools, program(x)[0]).tolist() == [3.0]
        with pytest.raises(OutOfMemory):
            tools.compile.compile(fn)(put([1.0]))
    finally:
        cupy.emulated.set_total_memory(2**32)
    assert host(tools, program(x)[0]).tolist() == [3.0]


@pytest.mark.parametrize("kept", [0, 1])
def test_two_results_in_one_buffer_are_both_safe(tools: Toolset[Any], put: Any, kept: int) -> None:
    cut = tools.layout.slice
    program = tools.compile.compile(lambda x: (cut(x, (0,), (2,)), cut(x, (2,), (4,))), donate=(0,))
    held = program(put([1.0, 2.0, 3.0, 4.0]))[kept]
    program(put([5.0, 6.0, 7.0, 8.0]))
    assert host(tools, held).tolist() == [[1.0, 2.0], [3.0, 4.0]][kept]
