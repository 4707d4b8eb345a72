"""The Pallas kernels as a TPU gets them: lowered without one, and compiled where JAX's TPU library is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from typing import Any

import jax.export
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from turret_tpu import flash_kernels
from turret_tpu.library import jax, lax

Run = Callable[..., subprocess.CompletedProcess[str]]

SIZES = {  # (B, T, S, H, K, d, offset)
    "square": (2, 512, 512, 4, 2, 64, 0),
    "tails": (1, 300, 600, 6, 2, 80, 300),
    "small": (1, 7, 9, 4, 2, 5, 2),
    "decode": (1, 1, 4096, 4, 4, 128, 4095),
    "widest": (1, 600, 600, 1, 1, flash_kernels.WIDEST, 0),
}
DTYPES = ("float32", "bfloat16", "float16")


def operands(size: tuple[int, ...], dtype: str) -> tuple[list[Any], list[Any]]:
    """What attend takes, and what attend_vjp takes."""
    b, t, s, h, k, d, _ = size
    shaped: Any = jax.ShapeDtypeStruct
    q, keys, row = shaped((b, t, h, d), dtype), shaped((b, s, k, d), dtype), shaped((b, h, t), "float32")
    return [q, keys, keys], [q, q, keys, keys, q, row, row]


def functions(offset: int) -> tuple[Any, Any]:
    options: dict[str, Any] = {"scale": 0.1, "offset": offset, "interpret": False}
    return (
        lambda *x: flash_kernels.attend(*x, **options),
        lambda *x: flash_kernels.attend_vjp(*x, **options),
    )


def lowered(size: tuple[int, ...], dtype: str) -> list[str]:
    """Both programs for a TPU. Raises what Pallas refuses."""
    return [
        jax.export.export(jax.jit(function), platforms=("tpu",))(*given).mlir_module()
        for function, given in zip(functions(size[-1]), operands(size, dtype), strict=True)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SIZES)
def test_the_kernels_lower_for_a_tpu(name: str, dtype: str) -> None:
    assert [text.count("@tpu_custom_call") for text in lowered(SIZES[name], dtype)] == [1, 2]


def test_the_kernels_lower_where_jax_has_64_bit_numbers_switched_on() -> None:
    with jax.enable_x64(True):
        assert [text.count("@tpu_custom_call") for text in lowered(SIZES["tails"], "float32")] == [1, 2]


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_have_the_precision_that_mosaic_takes(dtype: str) -> None:
    """float32 in full; bfloat16, whose products are exact, as they are: Mosaic refuses more of those."""
    products = [
        equation
        for function, given in zip(functions(0), operands(SIZES["small"], dtype), strict=True)
        for equation in equations(jax.make_jaxpr(function)(*given).jaxpr)
        if equation.primitive is lax.dot_general_p
    ]
    assert len(products) == 2 + 3 + 4
    for product in products:
        kinds = {x.aval.dtype.name for x in product.invars}
        assert kinds in ({"float32"}, {"bfloat16"})
        wanted = lax.Precision.HIGHEST if kinds == {"float32"} else lax.Precision.DEFAULT
        assert product.params["precision"] in (wanted, (wanted, wanted))
        assert product.outvars[0].aval.dtype == np.float32


def equations(jaxpr: Any) -> Any:
    """Of a program and all the programs within it."""
    programs = ClosedJaxpr, Jaxpr
    for equation in jaxpr.eqns:
        yield equation
        for each in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: isinstance(x, programs)):
            if isinstance(each, programs):
                yield from equations(each.jaxpr if isinstance(each, ClosedJaxpr) else each)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, which compiles without a TPU too")
@pytest.mark.parametrize("chip", ["v5e:2x2", "v6e:2x2"])
def test_mosaic_compiles_the_kernels(run_code: Run, chip: str) -> None:
    done = run_code(
        f"""
        import json, sys
        import jax
        from jax.experimental import topologies
        from turret_tpu import flash_kernels
        chip = topologies.get_topology_desc(platform="tpu", topology_name={chip!r})
        here = jax.sharding.SingleDeviceSharding(chip.devices[0])
        for dtype in {DTYPES!r}:
            for b, t, s, h, k, d, offset in json.loads({json.dumps([SIZES["tails"], SIZES["small"]])!r}):
                q, keys = (jax.ShapeDtypeStruct(x, dtype, sharding=here) for x in ((b, t, h, d), (b, s, k, d)))
                row = jax.ShapeDtypeStruct((b, h, t), "float32", sharding=here)
                for function, given in (
                    (flash_kernels.attend, (q, keys, keys)), (flash_kernels.attend_vjp, (q, q, keys, keys, q, row, row))
                ):
                    run = lambda *x: function(*x, scale=0.1, offset=offset, interpret=False)
                    jax.jit(run).lower(*given).compile()
        """,
        TPU_SKIP_MDS_QUERY="1",
        TPU_ACCELERATOR_TYPE="v5litepod-4",
        TPU_WORKER_HOSTNAMES="localhost",
        TPU_WORKER_ID="0",
    )
    assert done.returncode == 0, done.stderr
