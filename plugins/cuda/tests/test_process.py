"""What the backend does to its process: forks, threads, current device and stream; no room; a device that broke."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import pytest

from turret.spi import BackendUnavailable, OutOfMemory, Toolset
from turret_cuda.backend import CudaBackend
from turret_cuda.place import Place, place_of

Run = Callable[..., subprocess.CompletedProcess[str]]
WORDS = r"cuda:emulated: .*; make the batch smaller, .* or save memory by checkpointing"


FORKED = """
    import os, signal, sys
    import numpy as np
    from turret.registry import open_backend
    from turret.spi import BackendUnavailable
    from turret_cuda.backend import CudaBackend
    tools = open_backend("cuda:emulated").tools
    s, x = tools.storage, tools.storage.full((3, 3), 1.0, dtype="float32")
    one, empty = s.full((), 1.0, dtype="float32"), s.full((0, 3), 1.0, dtype="float32")
    double = tools.compile.compile(lambda y: (tools.elementwise.add(y, y),), donate=(0,))
    ids = s.arange(3)
    calls = {
        "from_host": lambda: s.from_host(np.ones(3, np.float32)),
        "from_host of nothing": lambda: s.from_host(np.ones(0, np.float32)),
        "to_host": lambda: s.to_host(x),
        "to_host of nothing": lambda: s.to_host(empty),
        "full": lambda: s.full((2,), 0.0, dtype="float32"),
        "full of nothing": lambda: s.full((0,), 0.0, dtype="float32"),
        "arange": lambda: s.arange(3),
        "copy": lambda: s.copy(x),
        "cast": lambda: s.cast(x, "float16"),
        "synchronize": lambda: s.synchronize(x),
        "memory": lambda: s.memory(),
        "matmul": lambda: tools.matmul.matmul(x, x),
        "add": lambda: tools.elementwise.add(x, x),
        "sum": lambda: tools.reduction.sum(x, axis=0),
        "concatenate": lambda: tools.layout.concatenate([x, x], axis=0),
        "gather_rows": lambda: tools.indexing.gather_rows(x, ids),
        "scatter_add_rows": lambda: tools.indexing.scatter_add_rows(x, ids, x),
        "linear": lambda: tools.linear.linear(x, x, None),
        "adam": lambda: tools.adam.update((x,), (x,), (x,), (x,), lr=one, correction1=one, correction2=one,
                                          betas=(0.9, 0.99), eps=1e-8, decay=(0.0,), max_norm=1.0, donate=False),
        "a program": lambda: double(s.copy(x)),
        "a new program": lambda: tools.compile.compile(lambda y: (tools.elementwise.add(y, y),))(x),
        "another opening": lambda: CudaBackend("emulated"),
    }
    for call in calls.values():
        call()
    waiting = tools.elementwise.add(x, 41.0)
    if not (child := os.fork()):
        signal.alarm(60)
        wrong = []
        for name, call in calls.items():
            try:
                call()
            except BackendUnavailable as error:
                if "get_context('spawn')" not in str(error):
                    wrong.append(f"{name}: {error}")
            except BaseException as error:
                wrong.append(f"{name}: {error!r}")
            else:
                wrong.append(f"{name}: nothing was raised")
        sys.stderr.write("\\n".join(wrong))
        sys.stderr.flush()
        os._exit(min(len(wrong), 99))
    assert os.waitpid(child, 0)[1] == 0
    print(float(s.to_host(waiting)[2, 2]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this platform has no fork")
def test_a_forked_child_is_told_at_every_call_and_its_parent_goes_on(run_python: Run) -> None:
    done = run_python("-W", "ignore::DeprecationWarning:__main__", "-c", FORKED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42.0\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="this platform has no fork")
def test_a_child_that_was_forked_before_opens_it_for_itself(run_python: Run) -> None:
    done = run_python(
        "-c",
        """
        import os
        from turret.registry import installed, open_backend
        installed()
        if not (child := os.fork()):
            tools = open_backend("cuda:emulated").tools
            os._exit(int(tools.storage.to_host(tools.storage.full((), 7.0, dtype="float32"))))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
    )
    assert (done.stdout, done.stderr) == ("7\n", "")


def test_children_that_are_spawned_compute_beside_their_parent(run_python: Run, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import multiprocessing
from turret.registry import open_backend


def ten(x):
    tools = open_backend("cuda:emulated").tools
    return tools.storage.to_host(tools.elementwise.multiply(tools.storage.full((), x, dtype="float32"), 10.0)).item()


if __name__ == "__main__":
    print(ten(1.0))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(ten, [2.0, 3.0]))
    print(ten(4.0))
"""
    )
    done = run_python(str(program))
    assert (done.stdout, done.stderr) == ("10.0\n[20.0, 30.0]\n40.0\n", "")


def test_threads_that_share_their_inputs_get_the_values_of_one(tools: Toolset[Any]) -> None:
    x = tools.storage.from_host(np.random.default_rng(7).standard_normal((33, 33)).astype(np.float32))
    program = tools.compile.compile(lambda y: (tools.softmax.softmax(tools.matmul.matmul(y, x)),))

    def once() -> bytes:
        y = tools.elementwise.add(tools.matmul.matmul(x, x), 1.0)
        view = tools.layout.transpose(tools.softmax.softmax(y), (1, 0))
        total = tools.reduction.sum(tools.elementwise.multiply(view, *program(x)), axis=0)
        return bytes(tools.storage.to_host(total).tobytes())

    want = once()
    got: list[bytes] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            got.extend(once() for _ in range(15))
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(got) == 60
    assert set(got) == {want}


def test_what_one_thread_queued_another_reads(tools: Toolset[Any]) -> None:
    got: list[Any] = []
    waiting = tools.elementwise.add(tools.storage.arange(4), 1)
    thread = threading.Thread(target=lambda: got.append(tools.storage.to_host(waiting).tolist()))
    thread.start()
    thread.join()
    assert got == [[1, 2, 3, 4]]


def test_two_threads_may_open_it_at_once(run_python: Run) -> None:
    done = run_python(
        "-c",
        """
        import threading
        from turret.registry import open_backend
        found, gate = [], threading.Barrier(4)
        def work():
            gate.wait()
            found.append(open_backend("cuda:emulated"))
        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads: each.start()
        for each in threads: each.join()
        print(len(found), len({id(each) for each in found}))
        """,
    )
    assert (done.stdout, done.stderr) == ("4 1\n", "")


def test_openings_of_one_device_share_its_queue_and_memory() -> None:
    assert place_of("emulated") is place_of("emulated")
    first, second = (CudaBackend("emulated").capabilities().required for _ in range(2))
    x = first.storage.full((2,), 3.0, dtype="float32")
    assert second.storage.to_host(second.elementwise.add(x, 1.0)).tolist() == [4, 4]


def test_current_device_and_stream_of_the_caller_stay(tools: Toolset[Any]) -> None:
    def state() -> tuple[int, int]:
        return cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr

    def work() -> None:
        opened = CudaBackend("emulated")
        x = tools.storage.full((3, 3), 1.0, dtype="float32")
        tools.storage.to_host(tools.matmul.matmul(x, x))
        tools.compile.compile(lambda y: (tools.elementwise.add(y, 1.0),))(x)
        with pytest.raises(KeyError):
            tools.compile.compile(lambda y: {"a": (y,)}["b"])(x)
        opened.close()

    before = state()
    work()
    assert state() == before
    with cupy.cuda.Stream(non_blocking=True) as mine:
        work()
        assert state() == (before[0], mine.ptr)
    assert state() == before


def test_closing_one_opening_leaves_arrays_and_others_alone(tools: Toolset[Any]) -> None:
    x = tools.elementwise.add(tools.storage.arange(3), 1)
    backend = CudaBackend("emulated")
    backend.close()
    backend.close()
    assert tools.storage.to_host(tools.elementwise.add(x, x)).tolist() == [2, 4, 6]


@pytest.fixture
def room(place: Place) -> Iterator[Callable[[int], None]]:
    """Leaves so many bytes of the device free; all of it afterwards."""
    total = cupy.cuda.runtime.memGetInfo()[1]

    def leave(nbytes: int) -> None:
        gc.collect()
        place.release()
        free, whole = cupy.cuda.runtime.memGetInfo()
        cupy.emulated.set_total_memory(whole - free + nbytes)

    yield leave
    cupy.emulated.set_total_memory(total)


MIB = 1 << 20


def test_no_room_says_what_to_do_and_freeing_makes_room(tools: Toolset[Any], room: Callable[[int], None]) -> None:
    storage, host = tools.storage, np.ones((3 * MIB,), np.uint8)
    room(8 * MIB)
    x, y = storage.from_host(host), storage.from_host(host)
    calls: dict[str, Callable[[], Any]] = {
        "from_host": lambda: storage.from_host(host),
        "full": lambda: storage.full((3 * MIB,), 1.0, dtype="uint8"),
        "copy": lambda: storage.copy(x),
        "add": lambda: tools.elementwise.add(x, 1),
        "cast": lambda: storage.cast(x, "float64"),
        "pad": lambda: tools.layout.pad(x, [(1, 1)]),
        "more than there ever is": lambda: storage.full((1 << 50,), 1.0, dtype="float64"),
    }
    for name, call in calls.items():
        with pytest.raises(OutOfMemory, match=WORDS):
            print(name, call())
    assert storage.to_host(x).all(), "what was there is there"
    del y  # and its room
    z = tools.elementwise.add(x, 1)
    assert (storage.to_host(z) == 2).all()


def test_an_update_without_room_changes_nothing(tools: Toolset[Any], room: Callable[[int], None]) -> None:
    storage = tools.storage
    groups = [[storage.full((MIB // 4,), value, dtype="float32")] for value in (1.0, 0.5, 0.1, 0.2)]
    rate = storage.full((), 0.5, dtype="float32")
    room(2 * MIB)
    before = [storage.to_host(group[0]).tobytes() for group in groups]

    def update(donate: bool) -> Any:
        return tools.adam.update(
            *groups, lr=rate, correction1=rate, correction2=rate, betas=(0.9, 0.9), eps=1e-8, decay=(0.0,),
            max_norm=1.0, donate=donate,
        )  # fmt: skip

    with pytest.raises(OutOfMemory, match=WORDS):
        update(donate=False)  # wants three arrays of a MiB
    assert [storage.to_host(group[0]).tobytes() for group in groups] == before
    done = update(donate=True)
    assert storage.to_host(done.finite)
    assert storage.to_host(done.params[0]).tobytes() != before[0]


@pytest.fixture
def broken() -> Iterator[Callable[[], None]]:
    """Breaks the device by a kernel that writes where no memory is; it is mended afterwards."""
    yield lambda: place_of("emulated").launch("copy", "arange", 1, 32, None, 5)
    cupy.emulated.reset()


def test_a_broken_device_says_to_start_again_at_this_call_and_at_every_later_one(
    tools: Toolset[Any], broken: Callable[[], None]
) -> None:
    storage, x = tools.storage, tools.storage.full((2, 2), 1.0, dtype="float32")
    program = tools.compile.compile(lambda y: (tools.elementwise.add(y, y),))
    program(x)
    host = np.ones(3, np.float32)
    calls: dict[str, Callable[[], Any]] = {
        "to_host": lambda: storage.to_host(x),
        "to_host again": lambda: storage.to_host(x),
        "from_host": lambda: storage.from_host(host),
        "full": lambda: storage.full((2,), 1.0, dtype="float32"),
        "add": lambda: tools.elementwise.add(x, x),
        "matmul": lambda: tools.matmul.matmul(x, x),
        "synchronize": lambda: storage.synchronize(x),
        "memory": storage.memory,
        "a program": lambda: program(x),
        "a new program": lambda: tools.compile.compile(lambda y: (tools.elementwise.add(y, y),))(x),
        "another opening": lambda: CudaBackend("emulated"),
    }
    broken()
    for name, call in calls.items():
        with pytest.raises(BackendUnavailable, match=r"illegal memory access.* start it again") as caught:
            print(name, call())
        assert "\n" not in str(caught.value), name
    cupy.emulated.reset()
    assert storage.to_host(tools.elementwise.add(storage.arange(3), 1)).tolist() == [1, 2, 3]
