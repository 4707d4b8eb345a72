"""What the backend does to its process: nothing to NumPy's random numbers or JAX's settings, no hang after a fork."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_random_state_and_settings_of_jax_stay(run_code: Run) -> None:
    done = run_code(
        """
        import random
        import numpy as np
        np.random.seed(3); random.seed(3)
        before = [np.random.get_state()[1].tobytes(), np.random.get_state()[2], random.getstate()]
        from turret_tpu.backend import TpuBackend
        tools = TpuBackend("cpu").capabilities().required
        tools.elementwise.add(tools.storage.full((2,), 1.0, dtype="float32"), 1.0)
        assert before == [np.random.get_state()[1].tobytes(), np.random.get_state()[2], random.getstate()]
        import jax
        assert not jax.config.jax_enable_x64
        assert jax.config.jax_default_device is None
        assert jax.config.jax_default_matmul_precision is None
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_users_own_64_bit_mode_neither_changes_nor_widens_results(run_code: Run) -> None:
    done = run_code(
        """
        import jax, numpy as np
        jax.config.update("jax_enable_x64", True)
        from turret.registry import open_backend
        tools = open_backend("tpu:cpu").tools
        s, x = tools.storage, tools.storage.full((3, 4), 1.5, dtype="float32")
        assert s.dtype_of(tools.elementwise.multiply(x, 0.1)) == "float32"
        assert s.dtype_of(tools.reduction.argmax(x, axis=1)) == "int32"
        assert s.dtype_of(s.arange(4)) == "int32"
        assert s.dtype_of(tools.elementwise.add(s.arange(4), 3)) == "int32"
        assert s.dtype_of(tools.reduction.sum(s.arange(4), axis=0)) == "int32"
        assert s.dtype_of(tools.activation.gelu(x, form="erf")) == "float32"
        loss, gradient = tools.loss.cross_entropy_grad(x, s.from_host(np.zeros(3, np.int32)), None, ignore=-1)
        assert (s.dtype_of(loss), s.dtype_of(gradient)) == ("float32", "float32")
        q = s.full((1, 2, 2, 4), 0.5, dtype="float32")
        assert [s.dtype_of(y) for y in tools.causal_attention.attend(q, q, q, scale=0.5, offset=0)] == ["float32"] * 2
        for device in ("tpu:cpu", "tpu:interpret"):
            flash = open_backend(device).tools.flash_attention
            saved = flash.attend(q, q, q, scale=0.5, offset=0)
            got = [*saved, *flash.attend_vjp(q, q, q, q, saved, scale=0.5, offset=0)]
            assert [s.dtype_of(y) for y in got] == ["float32"] * 6
        weight = s.full((3, 64), 0.5, dtype="float32")
        for scales in ("float32", "dynamic"):
            packed = tools.quantized_linear.pack(weight, block=64, scales=scales)
            assert s.dtype_of(packed.codes) == "uint8"
            assert s.dtype_of(tools.quantized_linear.linear(weight, packed, None)) == "float32"
        zero, rate = s.full((3, 4), 0.0, dtype="float32"), s.full((), 0.1, dtype="float32")
        done = tools.adam.update((x,), (x,), (zero,), (zero,), lr=rate, correction1=rate, correction2=rate,
                                 betas=(0.9, 0.99), eps=1e-8, decay=(0.1,), max_norm=1.0, donate=False)
        assert [s.dtype_of(y) for y in (*done.params, *done.first, *done.second, done.norm)] == ["float32"] * 4
        assert s.dtype_of(done.finite) == "bool"
        assert jax.config.jax_enable_x64
        """
    )
    assert done.returncode == 0, done.stderr


FORKED = """
    import os, signal, sys, warnings
    import numpy as np
    from turret.registry import open_backend
    from turret.spi import BackendUnavailable
    tools = open_backend("tpu:cpu").tools
    x = tools.storage.full((300, 300), 1.0, dtype="float32")
    one = tools.storage.full((), 1.0, dtype="float32")
    double = tools.compile.compile(lambda y: (tools.elementwise.add(y, y),))
    def adam():
        return tools.adam.update((x,), (x,), (x,), (x,), lr=one, correction1=one, correction2=one, betas=(0.9, 0.99),
                                 eps=1e-8, decay=(0.0,), max_norm=1.0, donate=False)
    calls = {
        "from_host": lambda: tools.storage.from_host(np.ones(3, np.float32)),
        "to_host": lambda: tools.storage.to_host(x),
        "full": lambda: tools.storage.full((2,), 0.0, dtype="float32"),
        "copy": lambda: tools.storage.copy(x),
        "synchronize": lambda: tools.storage.synchronize(x),
        "matmul": lambda: tools.matmul.matmul(x, x),
        "add": lambda: tools.elementwise.add(x, x),
        "linear": lambda: tools.linear.linear(x, x, None),
        "adam": adam,
        "compiled": lambda: double(x),
    }
    for call in calls.values():
        call()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of every fork
        child = os.fork()
    if not child:
        signal.alarm(30)
        wrong = []
        for name, call in calls.items():
            try:
                call()
            except BackendUnavailable as error:
                if "spawn" not in str(error):
                    wrong.append(name)
            else:
                wrong.append(name)
        sys.stderr.write(" ".join(wrong))
        os._exit(len(wrong))
    assert os.waitpid(child, 0)[1] == 0
    assert float(tools.storage.to_host(double(x)[0])[0, 0]) == 2.0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this platform has no fork")
def test_a_forked_child_is_told_and_its_parent_goes_on(run_code: Run) -> None:
    done = run_code(FORKED)
    assert (done.returncode, done.stderr) == (0, "")
