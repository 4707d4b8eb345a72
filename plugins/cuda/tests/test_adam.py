"""The update of many tensors at once: chunks, tables, places in memory, and refusal of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.spi import Toolset
from turret_cuda.adam import CHUNK, MOST_ROWS

BETAS, EPS, RATE = (0.9, 0.999), 1e-8, 0.01
Tensors = list[np.ndarray[Any, Any]]


def formula(p: Any, g: Any, m: Any, v: Any, clip: float, step: int, decay: float) -> tuple[Any, Any, Any]:
    """Algorithm 2 of Loshchilov and Hutter in float64."""
    g = g.astype(np.float64) * clip
    m = BETAS[0] * m + (1 - BETAS[0]) * g
    v = BETAS[1] * v + (1 - BETAS[1]) * g**2
    move = m / (1 - BETAS[0] ** step) / (np.sqrt(v / (1 - BETAS[1] ** step)) + EPS) + decay * p
    return p - RATE * move, m, v


def drawn(sizes: list[int], seed: int = 0) -> tuple[Tensors, Tensors, Tensors, Tensors]:
    rng = np.random.default_rng(seed)

    def group() -> Tensors:
        return [rng.normal(size=size).astype(np.float32) for size in sizes]

    return group(), group(), group(), [np.abs(v) for v in group()]


def updated(tools: Toolset[Any], p: Any, g: Any, m: Any, v: Any, **options: Any) -> Any:
    put = tools.storage.from_host
    step = options.pop("step", 3)
    chosen: dict[str, Any] = {"decay": [0.1] * len(p), "max_norm": float("inf"), "donate": False, **options}
    rates = [put(np.array(x, np.float32)) for x in (RATE, 1 - BETAS[0] ** step, 1 - BETAS[1] ** step)]
    return tools.adam.update(
        p, g, m, v, lr=rates[0], correction1=rates[1], correction2=rates[2], betas=BETAS, eps=EPS, **chosen
    )


def placed(tools: Toolset[Any], *groups: Tensors) -> list[list[Any]]:
    return [[tools.storage.from_host(x) for x in group] for group in groups]


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("sizes", [[1], [CHUNK - 1, CHUNK, CHUNK + 1], [3] * (MOST_ROWS + 2), [0, 7, 0, 2 * CHUNK + 5]])
def test_every_element_of_every_tensor_moves_once(tools: Toolset[Any], sizes: list[int], donate: bool) -> None:
    host = drawn(sizes)
    made = updated(tools, *placed(tools, *host), max_norm=1.0, donate=donate)
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in host[1]))
    assert float(tools.storage.to_host(made.norm)) == pytest.approx(norm, rel=1e-6)
    assert bool(tools.storage.to_host(made.finite))
    for i, parts in enumerate(zip(*host, strict=True)):
        want = formula(*parts, min(1, 1 / norm), 3, 0.1)
        for group, truth in zip((made.params, made.first, made.second), want, strict=True):
            np.testing.assert_allclose(tools.storage.to_host(group[i]), truth, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("where", ["first", "last"])
def test_one_bad_gradient_anywhere_leaves_every_tensor_bit_for_bit(
    tools: Toolset[Any], where: str, donate: bool
) -> None:
    host = drawn([2 * CHUNK, *[5] * MOST_ROWS])
    host[1][0 if where == "first" else -1][-1] = np.nan
    made = updated(tools, *placed(tools, *host), donate=donate)
    assert not bool(tools.storage.to_host(made.finite))
    for group, old in zip((made.params, made.first, made.second), (host[0], host[2], host[3]), strict=True):
        for got, want in zip(group, old, strict=True):
            assert tools.storage.to_host(got).tobytes() == want.tobytes()


def test_a_second_moment_that_overflows_in_the_last_launch_refuses_the_first_ones(tools: Toolset[Any]) -> None:
    host = drawn([4] * (MOST_ROWS + 1))
    host[3][-1][:] = 3e38
    host[1][-1][:] = 1e22  # 0.001 g^2 is beyond float32; the norm is not
    made = updated(tools, *placed(tools, *host), donate=True)
    assert np.isfinite(tools.storage.to_host(made.norm))
    assert not bool(tools.storage.to_host(made.finite))
    assert tools.storage.to_host(made.params[0]).tobytes() == host[0][0].tobytes()


def test_donated_arrays_are_written_where_they_lie(tools: Toolset[Any]) -> None:
    p, g, m, v = placed(tools, *drawn([10, 20]))
    made = updated(tools, p, g, m, v, donate=True)
    for new, old in ((made.params, p), (made.first, m), (made.second, v)):
        assert [x.data.ptr for x in new] == [x.data.ptr for x in old]


@pytest.mark.parametrize("how", ["twice", "overlapping", "strided", "repeated", "gradient"])
def test_donated_arrays_that_do_not_lie_apart_are_not_written(tools: Toolset[Any], how: str) -> None:
    host = drawn([8, 8])
    p, g, m, v = placed(tools, *host)
    if how == "twice":
        p[1] = p[0]
    elif how == "overlapping":
        whole = tools.storage.from_host(np.arange(12, dtype=np.float32))
        p = [whole[:8], whole[4:]]
    elif how == "strided":
        p[0] = tools.storage.from_host(np.arange(16, dtype=np.float32))[::2]
    elif how == "repeated":
        m[0] = tools.layout.broadcast_to(tools.storage.full((1,), 0.5, dtype="float32"), (8,))
    else:
        g[0] = p[0]
    before = [[tools.storage.to_host(x) for x in group] for group in (p, g, m, v)]
    made = updated(tools, p, g, m, v, donate=True)
    for group, old in zip((p, g, m, v), before, strict=True):
        for x, y in zip(group, old, strict=True):
            assert tools.storage.to_host(x).tobytes() == y.tobytes()
    want = formula(before[0][0], before[1][0], before[2][0], before[3][0], 1.0, 3, 0.1)
    np.testing.assert_allclose(tools.storage.to_host(made.params[0]), want[0], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_parameters_of_several_dtypes_share_one_update(tools: Toolset[Any], dtype: Any) -> None:
    host = drawn([9, 9])
    p, g, m, v = placed(tools, *host)
    p[1], g[1] = (tools.storage.cast(x, dtype) for x in (p[1], g[1]))
    rounded = [tools.storage.to_host(x[1]).astype(np.float64) for x in (p, g)]
    made = updated(tools, p, g, m, v)
    assert tools.storage.dtype_of(made.params[1]) == dtype
    assert tools.storage.dtype_of(made.first[1]) == "float32"
    want = formula(*rounded, host[2][1], host[3][1], 1.0, 3, 0.1)
    unit = {"float16": 2**-11, "bfloat16": 2**-8, "float64": 2e-7}[dtype]
    np.testing.assert_allclose(tools.storage.to_host(made.params[1]), want[0], rtol=1.01 * unit, atol=1e-6)


@pytest.mark.parametrize(("gradient", "norm"), [(1e30, 2e30), (1e-30, 2e-30), (0.0, 0.0)])
def test_the_norm_neither_overflows_nor_vanishes(tools: Toolset[Any], gradient: float, norm: float) -> None:
    p, _, m, v = placed(tools, *drawn([4]))
    made = updated(tools, p, placed(tools, [np.full(4, gradient, np.float32)])[0], m, v, max_norm=1.0)
    assert float(tools.storage.to_host(made.norm)) == pytest.approx(norm, rel=1e-6)
    assert bool(tools.storage.to_host(made.finite))


def test_a_norm_beyond_float32_is_refused(tools: Toolset[Any]) -> None:
    p, _, m, v = placed(tools, *drawn([4]))
    made = updated(tools, p, placed(tools, [np.full(4, 3e38, np.float32)])[0], m, v, max_norm=1.0)
    assert np.isinf(tools.storage.to_host(made.norm))
    assert not bool(tools.storage.to_host(made.finite))
