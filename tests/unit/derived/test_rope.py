from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def turned(x: Any, angle: Any, interleaved: bool) -> Any:
    """Su et al. 2021, eq. 15, as a product of complex numbers; angle: (T, d/2) or (B, T, d/2)."""
    d = x.shape[-1]
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., : d // 2], x[..., d // 2 :])
    z = (a + 1j * b) * np.exp(1j * (angle[None] if angle.ndim == 2 else angle))[:, :, None, :]
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape) if interleaved else np.concatenate([z.real, z.imag], -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("per_request", [False, True])
def test_each_pair_turns_by_its_angle_and_gradients_turn_back(
    bench: Any, differences: Any, normal: Any, rng: Any, interleaved: bool, per_request: bool
) -> None:
    x, dy = normal(2, 3, 2, 4), normal(2, 3, 2, 4)
    angle = rng.uniform(-3, 3, (2, 3, 2) if per_request else (3, 2))
    cos, sin = (bench.put(f(angle).astype(np.float32)) for f in (np.cos, np.sin))
    bench.close(bench.tools.rope.rope(bench.put(x), cos, sin, interleaved=interleaved), turned(x, angle, interleaved))
    got = bench.tools.rope.rope_vjp(bench.put(dy), cos, sin, interleaved=interleaved)
    bench.close(got, differences(lambda z: turned(z, angle, interleaved), [x], dy)[0])


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 0, 1, 4), (1, 5, 3, 6)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_position_zero_and_any_shape_pass(eager_bench: Any, normal: Any, shape: Any, interleaved: bool) -> None:
    x, angles = normal(*shape), (shape[1], shape[3] // 2)
    cos, sin = eager_bench.put(np.ones(angles, np.float32)), eager_bench.put(np.zeros(angles, np.float32))
    out = eager_bench.tools.rope.rope(eager_bench.put(x), cos, sin, interleaved=interleaved)
    assert np.array_equal(eager_bench.get(out), x)


def test_halves_are_turned_in_float32(bench: Any, normal: Any, rounded: Any) -> None:
    for dtype in bench.halves:
        x = bench.put(normal(1, 3, 2, 4), dtype)
        angle = np.arange(6).reshape(3, 2) / 3
        cos, sin = (bench.put(f(angle).astype(np.float32)) for f in (np.cos, np.sin))
        out = bench.tools.rope.rope(x, cos, sin, interleaved=False)
        value, unit = rounded(dtype, turned(bench.get(x).astype(np.float64), angle, False))
        assert bench.tools.storage.dtype_of(out) == dtype
        assert (np.abs(bench.get(out) - value) <= unit).all()
