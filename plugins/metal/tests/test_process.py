"""What the backend does to the process it lives in: defaults, threads, forks, and how much may wait unevaluated."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from turret.spi import BackendUnavailable, Toolset
from turret_metal.backend import MetalBackend
from turret_metal.stream import MOST_BYTES, MOST_RESULTS, stream_of

RunCode = Callable[..., subprocess.CompletedProcess[str]]
Put = Callable[[Any], mx.array]


def nodes(x: mx.array, folder: Any) -> int:
    """How many operations wait to be done for `x`."""
    path = folder / "graph.dot"
    mx.export_to_dot(str(path), x)
    return len(path.read_text().split("rectangle")) - 1


def test_defaults_of_the_process_stay(tools: Toolset[mx.array], put: Put) -> None:
    before = mx.default_device(), mx.default_stream(mx.default_device())
    MetalBackend("cpu")
    ids, rows = put(np.array([0], np.int32)), put(np.ones((1, 2)))
    tools.storage.synchronize(tools.indexing.scatter_add_rows(put(np.ones((2, 2))), ids, rows))
    tools.storage.synchronize(*tools.compile.compile(lambda x: (tools.elementwise.exp(x),))(rows))
    assert before == (mx.default_device(), mx.default_stream(mx.default_device()))


def test_what_one_thread_made_another_reads(tools: Toolset[mx.array], put: Put) -> None:
    waiting = tools.elementwise.add(put(np.arange(6.0)), 1.0)
    got: list[Any] = []

    def work() -> None:
        got.append(tools.elementwise.multiply(waiting, 2.0))
        got.append(tools.storage.to_host(waiting))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert tools.storage.to_host(got[0]).tolist() == [2, 4, 6, 8, 10, 12]
    assert got[1].tolist() == [1, 2, 3, 4, 5, 6]


def test_threads_that_share_their_inputs_get_the_same_values(tools: Toolset[mx.array], put: Put, draw: Any) -> None:
    x = put(draw.standard_normal((33, 33)))
    y = tools.softmax.softmax(tools.matmul.matmul(x, x))
    want, got = tools.storage.to_host(tools.matmul.matmul(y, x)), []

    def work() -> None:
        for _ in range(30):
            got.append(tools.storage.to_host(tools.matmul.matmul(y, x)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 120
    assert all(np.array_equal(want, each) for each in got)


def test_a_chain_of_operations_that_nobody_reads_stays_short(tools: Toolset[mx.array], put: Put, tmp_path: Any) -> None:
    x = put(np.zeros(4))
    for _ in range(10_000):
        x = tools.elementwise.add(x, 1.0)
    assert nodes(x, tmp_path) <= 2 * MOST_RESULTS
    assert tools.storage.to_host(x).tolist() == [10_000] * 4


def test_chains_beside_each_other_stay_short_too(tools: Toolset[mx.array], put: Put, tmp_path: Any) -> None:
    chains = [put(np.zeros(4)) for _ in range(MOST_RESULTS // 2)]
    for _ in range(40):
        chains = [tools.elementwise.add(x, 1.0) for x in chains]
    assert max(nodes(x, tmp_path) for x in chains) <= 6


def test_updates_and_appended_rows_that_nobody_reads_keep_memory_bounded(
    tools: Toolset[mx.array], put: Put, tmp_path: Any
) -> None:
    rates: dict[str, Any] = {"lr": put(0.1), "correction1": put(0.1), "correction2": put(0.1)}
    settings: dict[str, Any] = {"betas": (0.9, 0.99), "eps": 1e-8, "decay": [0.1], "max_norm": 1.0, "donate": True}
    p = m = v = put(np.ones((64, 64)))
    pool, row = put(np.zeros((512, 64))), put(np.ones((1, 64)))
    tools.storage.synchronize(p, pool)
    before = mx.get_active_memory()
    for i in range(300):
        done = tools.adam.update([p], [p], [m], [v], **rates, **settings)
        p, m, v = done.params[0], done.first[0], done.second[0]
        pool = tools.indexing.set_rows(pool, put(np.array([i], np.int32)), row, donate=True)
    assert nodes(p, tmp_path) == 0
    assert nodes(pool, tmp_path) <= 2 * MOST_RESULTS
    tools.storage.synchronize(p, pool)
    assert mx.get_active_memory() - before < 2 * MOST_BYTES
    assert tools.storage.to_host(pool)[:301, 0].sum() == 300


def test_a_forked_child_is_told_and_does_not_hang(run_code: RunCode) -> None:
    done = run_code(
        """
        import os, signal
        import numpy as np
        from turret.derived import fill
        from turret.spi import BackendUnavailable
        from turret_metal.backend import MetalBackend
        tools = fill(MetalBackend("cpu").capabilities())
        x = tools.storage.full((2, 2), 1.0, dtype="float32")
        program = tools.compile.compile(lambda x: (tools.elementwise.add(x, 1.0),))
        tools.storage.synchronize(*program(x))
        waiting = tools.elementwise.add(x, 1.0)

        def chain():
            y = x
            for _ in range(1000):
                y = tools.elementwise.add(y, 1.0)

        if (child := os.fork()) == 0:
            signal.alarm(20)
            told = 0
            for call in (lambda: tools.storage.to_host(x), lambda: tools.storage.synchronize(waiting),
                         lambda: tools.storage.from_host(np.ones(2, np.float32)), lambda: program(x), chain,
                         lambda: MetalBackend("cpu")):
                try:
                    call()
                except BackendUnavailable as error:
                    told += "fork" in str(error)
            os._exit(told)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), tools.storage.to_host(waiting).tolist())
        """
    )
    assert done.stdout.strip() == "6 [[2.0, 2.0], [2.0, 2.0]]", done.stderr


def test_openings_of_one_device_share_its_stream() -> None:
    assert stream_of("cpu") is stream_of("cpu")
    with pytest.raises(BackendUnavailable):
        MetalBackend("cpu0")
