"""What the backend does to the process it lives in: threads, forks, environment, BLAS, disk."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl

import turret_cpu
from turret_cpu.backend import CpuBackend
from turret_cpu.threads import POOL, Pool

RunCode = Callable[..., subprocess.CompletedProcess[str]]

LARGE = np.random.default_rng(0).standard_normal((512, 256)).astype(np.float32)


def product(backend: CpuBackend) -> bytes:
    slot = backend.capabilities().linear
    assert slot is not None
    return slot.linear(LARGE, LARGE[:256], None).tobytes()


def test_several_python_threads_at_once_get_the_bits_of_one(backend: CpuBackend) -> None:
    want = product(backend)
    got: list[bytes] = []

    def work() -> None:
        got.extend(product(backend) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 80
    assert set(got) == {want}


def test_a_forked_child_computes_the_same_bits_with_workers_of_its_own(run_code: RunCode) -> None:
    done = run_code(
        """
        import os
        import numpy as np
        from turret_cpu.backend import CpuBackend
        x = np.random.default_rng(0).standard_normal((512, 256)).astype(np.float32)
        slot = CpuBackend().capabilities().linear
        want = slot.linear(x, x[:256], None).tobytes()
        child = os.fork()
        if child == 0:
            os._exit(0 if slot.linear(x, x[:256], None).tobytes() == want else 1)
        print(os.waitpid(child, 0)[1], slot.linear(x, x[:256], None).tobytes() == want)
        """
    )
    assert done.stdout.split() == ["0", "True"], done.stderr


def test_interrupts_wait_until_no_worker_uses_the_operands(run_code: RunCode) -> None:
    done = run_code(
        """
        import os, signal, threading, time
        from turret_cpu.kernels.workers import CLAIMED, IDLE
        from turret_cpu.threads import Pool
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background may inherit "ignore"
        pool = Pool(2)
        pool._settle()
        pool._boxes[0, 0] = CLAIMED
        def worker():
            for _ in range(3):
                time.sleep(0.1)
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            print("let go")
            pool._boxes[0, 0] = IDLE
        threading.Thread(target=worker).start()
        try:
            pool._settle()
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert done.stdout.split("\n") == ["let go", "interrupted", ""], done.stderr


def test_results_do_not_depend_on_the_number_of_threads(backend: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    want = product(backend)
    monkeypatch.setattr(POOL, "parts", 1)
    assert product(backend) == want


def test_a_pool_of_many_threads_on_few_cores_finishes() -> None:
    from turret_cpu.kernels import pointwise

    pool, x = Pool(6), np.ones(100_000, np.float32)
    for _ in range(50):
        out = np.zeros_like(x)
        pool.run(pointwise.add, 1e9, x, x, out, x.size)
        assert (out == 2).all()


def test_environment_error_state_and_blas_threads_are_left_alone(backend: CpuBackend) -> None:
    before = dict(os.environ), np.geterr(), threadpoolctl.threadpool_info()
    product(backend)
    slot = backend.capabilities().linear
    assert slot is not None
    with pytest.raises((ValueError, TypeError)):
        slot.linear(LARGE, LARGE[0], None)
    assert before == (dict(os.environ), np.geterr(), threadpoolctl.threadpool_info())


def test_describing_the_plugin_loads_no_numba(run_code: RunCode) -> None:
    done = run_code(
        "import sys, turret_cpu.plugin as p, turret_cpu.probe; p.turret_backends(); print('numba' in sys.modules)"
    )
    assert done.stdout.strip() == "False", done.stderr


def test_a_disk_that_takes_no_cache_only_costs_the_compile_time(tmp_path: Path, run_code: RunCode) -> None:
    # A file where a folder is wanted stands for "not writable": it also stops a user who may write everywhere.
    target = tmp_path / "turret_cpu"
    source = Path(turret_cpu.__file__).parent
    for path in source.rglob("*.py"):
        to = target / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())
    for folder in (target, target / "kernels"):
        (folder / "__pycache__").write_text("")
    (tmp_path / "home").write_text("")
    done = run_code(
        """
        import numpy as np
        from turret_cpu.backend import CpuBackend
        import turret_cpu
        x = np.ones((64, 64), np.float32)
        e = CpuBackend().capabilities()
        print(turret_cpu.__file__, e.activation.silu(x).shape)
        e.softmax.softmax(x)
        """,
        PYTHONPATH=str(tmp_path), HOME=str(tmp_path / "home"), XDG_CACHE_HOME=str(tmp_path / "home"),
        PYTHONDONTWRITEBYTECODE="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    assert done.stderr.count("compiling kernels") == 1


def test_the_second_start_compiles_nothing_and_says_nothing(run_code: RunCode) -> None:
    code = """
        import numpy as np
        from turret_cpu.backend import CpuBackend
        CpuBackend().capabilities().activation.silu(np.ones(9, np.float32))
        """
    run_code(code)
    done = run_code(code)
    assert done.returncode == 0
    assert done.stderr == ""
