"""Memory for results: handed out while nobody uses it, back when the last user is gone, never shared with a child."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret_cpu.backend import CpuBackend
from turret_cpu.memory import BLOCKS, LARGE, LEAST, MOST_KEPT, PIECE, Blocks, empty, like

X = npt.NDArray[Any]
RunCode = Callable[..., subprocess.CompletedProcess[str]]
COUNT = 10_000  # elements of an ordinary block
KEEPERS: dict[str, Callable[[X], object]] = {
    "a slice": lambda x: x[7:9],
    "a slice of a slice": lambda x: x[7:][3:],
    "another shape": lambda x: x.reshape(100, 100),
    "a transpose": lambda x: x.reshape(10, 1000).T,
    "a broadcast": lambda x: np.broadcast_to(x[:, None], (COUNT, 3)),
    "another dtype": lambda x: x.view(np.int32),
    "a memoryview": lambda x: x.data[5:],
    "a read-only view": lambda x: np.frombuffer(x.data.toreadonly(), np.float32),
    "an iterator": lambda x: x.flat,
}


@pytest.fixture
def blocks() -> Blocks:
    return Blocks(MOST_KEPT)


def place(x: X) -> int:
    return x.__array_interface__["data"][0]  # type: ignore[no-any-return]


def take(blocks: Blocks, count: int = COUNT) -> X:
    return blocks.take((count,), count)


def test_a_block_is_used_again_once_its_array_is_gone(blocks: Blocks) -> None:
    first = take(blocks)
    was = place(first)
    assert blocks.kept_bytes == 0
    del first
    assert blocks.kept_bytes >= 4 * COUNT
    assert place(take(blocks)) == was


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=list(KEEPERS))
def test_whatever_still_looks_at_an_array_keeps_its_block(blocks: Blocks, keep: Callable[[X], object]) -> None:
    array = take(blocks)
    was, view = place(array), [keep(array)]
    del array
    assert blocks.kept_bytes == 0
    assert place(take(blocks)) != was
    view.clear()
    assert was in {place(x) for x in (take(blocks), take(blocks))}


def test_arrays_in_use_never_overlap(blocks: Blocks) -> None:
    draw = random.Random(3)
    used: dict[int, X] = {}
    for i in range(400):
        used[i] = take(blocks, draw.choice([9_000, 9_001, 20_000, 300_000, LARGE // 4]))
        used[i][[0, -1]] = i
        if len(used) > 12:
            del used[draw.choice(list(used))]
        spans = sorted((place(x), place(x) + x.nbytes) for x in used.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all((x[[0, -1]] == i).all() for i, x in used.items())


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=3))
def test_arrays_are_what_kernels_need(shape: list[int]) -> None:
    shape[0] = min(shape[0], 2**21 // (shape[-1] * 64) + 1)
    shape[1:-1] = [min(size, 64) for size in shape[1:-1]]
    array = empty(tuple(shape))
    assert array.shape == tuple(shape)
    assert array.dtype == np.float32
    assert array.flags.carray
    array.fill(1)


@pytest.mark.parametrize("size", [LEAST, LEAST + 4, LARGE - 4, LARGE, PIECE, PIECE + 4])
def test_every_size_has_room_for_its_last_element(blocks: Blocks, size: int) -> None:
    array, neighbour = take(blocks, size // 4), take(blocks, size // 4)
    neighbour.fill(2)
    array.fill(1)
    assert (neighbour == 2).all()
    assert array.nbytes == size


def test_small_arrays_and_other_dtypes_are_left_to_numpy() -> None:
    before = BLOCKS.kept_bytes
    del_me = [empty((10,)), like(np.zeros(1, np.float64), (LEAST,)), empty((0, 5))]
    assert [x.dtype for x in del_me] == [np.float32, np.float64, np.float32]
    assert all(x.flags.owndata for x in del_me)
    del_me.clear()
    assert BLOCKS.kept_bytes == before


def test_nearly_equal_sizes_share_blocks_and_waste_an_eighth_at_most(blocks: Blocks) -> None:
    for count in (8192, 10_000, 12_345, 100_000, 1_000_000):
        was = place(take(blocks, count))
        assert place(take(blocks, count - 5)) == was
        assert blocks.kept_bytes <= 4 * count * 9 / 8 + 4096
        blocks.clear()


def test_shapes_that_differ_from_step_to_step_do_not_add_up(blocks: Blocks) -> None:
    draw = random.Random(7)
    for _ in range(200):
        size = draw.randrange(2**18, 2**19)  # elements: 1 to 2 MiB, eight sizes of blocks
        held = [blocks.take((size,), size) for _ in range(4)]
        del held
    assert blocks.kept_bytes <= 3 * 4 * 2 * 2**20  # exactly fitting blocks alone would keep 4 of each size, 48 MiB


def test_no_more_is_kept_than_the_bound() -> None:
    blocks = Blocks(3 * 4 * 16_384)
    held = [take(blocks, 16_384) for _ in range(5)]
    while held:
        held.pop()
        assert blocks.kept_bytes <= 3 * 4 * 16_384
    assert blocks.kept_bytes == 3 * 4 * 16_384


def test_clearing_forgets_free_blocks_and_leaves_used_ones_alone(blocks: Blocks) -> None:
    used, free = take(blocks), take(blocks)
    used.fill(5)
    del free
    assert blocks.kept_bytes > 0
    blocks.clear()
    assert blocks.kept_bytes == 0
    take(blocks).fill(6)
    assert (used == 5).all()


def test_more_than_the_machine_has_is_a_memory_error_and_harmless(blocks: Blocks) -> None:
    with pytest.raises(MemoryError, match=r"unable to allocate [0-9]+ bytes"):
        take(blocks, 2**60)
    take(blocks).fill(1)


def test_threads_never_get_memory_that_another_one_uses(blocks: Blocks) -> None:
    wrong: list[str] = []
    passed_on: list[X] = []

    def work(number: int) -> None:
        draw, used = random.Random(number), list[tuple[X, float]]()
        for i in range(300):
            value = number * 1000.0 + i
            array = take(blocks, draw.choice([9_000, 9_500, 30_000]))
            array.fill(value)
            used.append((array[draw.randrange(100) :], value))
            if len(used) > 6:
                view, wanted = used.pop(draw.randrange(6))
                if not (view == wanted).all():
                    wrong.append(f"{wanted} became {view[view != wanted][0]}")
                passed_on.append(view)  # dies in whatever thread empties the list
            if len(passed_on) > 20:
                passed_on.clear()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    passed_on.clear()
    before = blocks.kept_bytes
    assert 0 < before <= 4 * 40 * 32_768 * 4
    assert before == sum(block.nbytes for free in blocks._free.values() for block in free)


def test_a_result_of_a_kernel_keeps_its_value_while_others_are_computed(backend: CpuBackend) -> None:
    slot = backend.capabilities().linear
    assert slot is not None
    x = np.ones((256, 128), np.float32)
    kept = slot.linear(x, np.full((128, 128), 2, np.float32), None)[100:]
    for _ in range(5):
        slot.linear(x, x, None)
    assert (kept == 256).all()


@pytest.fixture
def opened() -> Iterator[CpuBackend]:
    yield CpuBackend()
    BLOCKS.clear()


def test_closing_the_backend_gives_kept_memory_back(opened: CpuBackend) -> None:
    del_me = [empty((COUNT,))]
    del_me.clear()
    assert BLOCKS.kept_bytes > 0
    opened.close()
    assert BLOCKS.kept_bytes == 0


def test_a_forked_child_writes_to_a_copy_and_finds_the_lock_free(run_code: RunCode) -> None:
    done = run_code(
        """
        import os, threading
        from turret_cpu.memory import BLOCKS, empty
        array, held, leave = empty((100_000,)), threading.Event(), threading.Event()
        array.fill(1)
        def hold():
            with BLOCKS._lock:
                held.set()
                leave.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            array.fill(7)
            empty((100_000,)).fill(7)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        leave.set()
        thread.join()
        print(status, array.min(), array.max())
        """
    )
    assert done.stdout.split() == ["0", "1.0", "1.0"], done.stderr
