"""Attention of many queries leaves out the scores nobody sees, and only those."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from turret.derived import fill
from turret_tpu.backend import TpuBackend
from turret_tpu.causal_attention import HALVED

SCALE = 0.3


@pytest.fixture(scope="module")
def slot() -> Any:
    return fill(TpuBackend("cpu").capabilities()).causal_attention


def drawn(count: int, *shape: int) -> list[Any]:
    random = np.random.default_rng(5)
    return [random.standard_normal(shape).astype(np.float32) for _ in range(count)]


def truth(q: Any, k: Any, v: Any, dy: Any, offset: int) -> list[Any]:
    """Vaswani et al. 2017, eq. 1, and its gradients by the product rule, in float64; as many key heads as heads."""
    q, k, v, dy = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v, dy))
    scores = SCALE * q @ k.swapaxes(2, 3)
    seen = np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] + offset
    weights = np.exp(np.where(seen, scores - scores.max(-1, keepdims=True), -np.inf))
    p = weights / weights.sum(-1, keepdims=True)
    dp = dy @ v.swapaxes(2, 3)
    ds = SCALE * p * (dp - (dp * p).sum(-1, keepdims=True))
    return [x.transpose(0, 2, 1, 3) for x in (p @ v, ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dy)]


@pytest.mark.parametrize("count", [HALVED, HALVED + 1, 2 * HALVED])
@pytest.mark.parametrize("offset", [0, 1, 40])
def test_a_square_of_scores_is_right_at_every_offset(slot: Any, count: int, offset: int) -> None:
    q, k, v, dy = drawn(4, 1, count, 2, 4)
    arrays = [jax.numpy.asarray(x) for x in (q, k, v, dy)]
    out, p = slot.attend(*arrays[:3], scale=SCALE, offset=offset)
    got = [out, *slot.attend_vjp(arrays[3], *arrays[:3], p, scale=SCALE)]
    for mine, want in zip(got, truth(q, k, v, dy, offset), strict=True):
        np.testing.assert_allclose(np.asarray(mine), want, rtol=1e-4, atol=1e-5)


def test_in_one_program_nothing_is_asked_and_a_quarter_is_left_out(slot: Any) -> None:
    def both(q: Any, k: Any, v: Any, dy: Any) -> Any:
        out, p = slot.attend(q, k, v, scale=SCALE, offset=0)
        return out, slot.attend_vjp(dy, q, k, v, p, scale=SCALE)

    arrays = [jax.numpy.asarray(x) for x in drawn(4, 1, 2 * HALVED, 2, 4)]
    text = jax.jit(both).lower(*arrays).compile().as_text()
    assert "conditional(" not in text
    assert f"f32[1,2,{HALVED},{HALVED}]" in text
