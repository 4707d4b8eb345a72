"""Which devices there are, why one cannot be used, and what an opened one refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

import turret
from turret.registry import open_backend
from turret.spi import BackendMismatch, BackendUnavailable, DTypeError, OutOfMemory, ShapeError, Toolset
from turret.tensor import ops, tensor
from turret_metal.backend import MetalBackend
from turret_metal.plugin import turret_backends
from turret_metal.probe import why_not

RunCode = Callable[..., subprocess.CompletedProcess[str]]
without_metal = pytest.mark.skipif(mx.metal.is_available(), reason="this machine has Metal")


@pytest.mark.parametrize("word", ["0", "1", "gpu", "CPU", "cpu:0"])
def test_a_device_that_does_not_exist_is_refused_with_the_grammar(word: str) -> None:
    reason = why_not(word)
    assert reason is not None
    assert repr(word) in reason
    assert "one GPU" in reason
    assert "`metal:cpu`" in reason
    with pytest.raises(BackendUnavailable, match="one GPU"):
        MetalBackend(word)


@without_metal
def test_a_machine_without_metal_says_so_and_names_the_stand_in() -> None:
    with pytest.raises(BackendUnavailable, match=r"Apple GPU; try `metal:cpu`"):
        open_backend("metal")


def test_a_machine_without_mlx_lists_the_backend_and_says_what_to_install(run_code: RunCode) -> None:
    done = run_code(
        """
        import sys
        sys.modules["mlx"] = sys.modules["mlx.core"] = None
        from turret.registry import installed
        from turret_metal.plugin import turret_backends
        from turret_metal.probe import why_not
        print("metal" in str(installed()), turret_backends()[0].name)
        print(why_not("cpu"))
        """
    )
    listed, reason = done.stdout.splitlines()
    assert listed == "True metal", done.stderr
    assert "mlx does not load" in reason
    assert "pip install 'core[metal]'" in reason


def test_describing_the_plugin_loads_no_mlx(run_code: RunCode) -> None:
    done = run_code(
        "import sys, turret_metal.plugin as p, turret_metal.probe; p.turret_backends(); print('mlx' in sys.modules)"
    )
    assert done.stdout.strip() == "False", done.stderr


def test_the_plugin_describes_what_the_backend_has(backend: MetalBackend) -> None:
    (info,) = turret_backends()
    c = backend.capabilities()
    assert info.provides == {name for name in info.provides if getattr(c, name) is not None}
    assert info.dtypes == c.required.storage.device().dtypes
    assert backend.capabilities() is c
    assert "not run on Apple hardware yet" in info.devices
    backend.close()
    backend.close()


def test_float64_is_refused_wherever_it_could_come_in(tools: Toolset[mx.array]) -> None:
    storage, x = tools.storage, tools.storage.full((2,), 1.0, dtype="float32")
    calls: tuple[Callable[[], object], ...] = (
        lambda: storage.from_host(np.ones(3)),
        lambda: storage.from_host(np.ones(3, np.float32), dtype="float64"),
        lambda: storage.full((2,), 1.0, dtype="float64"),
        lambda: storage.cast(x, "float64"),
    )
    for call in calls:
        with pytest.raises(DTypeError, match="metal has no float64; wanted one of float32"):
            call()
    with pytest.raises(DTypeError, match="no uint16"):
        storage.from_host(np.ones(2, np.uint16))


def test_an_array_of_another_backend_is_refused() -> None:
    with turret.use_backend("metal:cpu"):
        ours = tensor(np.ones(3, np.float32))
    with turret.use_backend("cpu"):
        theirs = tensor(np.ones(3, np.float32))
    with pytest.raises(BackendMismatch):
        ops.add(ours, theirs)


def test_a_result_larger_than_the_machine_is_refused_and_the_next_call_works(tools: Toolset[mx.array]) -> None:
    column = tools.storage.full((2**22, 1), 1.0, dtype="float32")
    row = tools.storage.full((1, 2**22), 1.0, dtype="float32")
    with pytest.raises(OutOfMemory, match=r"70368744177664 bytes.*smaller"):
        tools.matmul.matmul(column, row)
    assert tools.storage.to_host(tools.reduction.sum(row, axis=1)).tolist() == [2**22]


def test_the_greatest_of_nothing_is_an_error(tools: Toolset[mx.array]) -> None:
    empty = tools.storage.full((0, 3), 0.0, dtype="float32")
    with pytest.raises(ShapeError, match="empty axis"):
        tools.reduction.max(empty, axis=0)
