from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from turret_cuda.place import Place
from turret_cuda.rope import CudaRope
from turret_cuda.storage import CudaStorage

UNIT = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
NATIVE = {"bfloat16": np.dtype(ml_dtypes.bfloat16)} | {n: np.dtype(n) for n in ("float32", "float64", "float16")}


@pytest.fixture
def rope(place: Place) -> CudaRope:
    return CudaRope(place)


@pytest.fixture
def storage(place: Place) -> CudaStorage:
    return CudaStorage(place)


def turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """Su et al. 2021, eq. 15, as products of complex numbers in float64."""
    half = x.shape[-1] // 2
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    angle = (cos.astype(np.float64) + 1j * sin.astype(np.float64))[..., None, :]
    z = (first + 1j * second) * angle
    out = np.empty(x.shape)
    if interleaved:
        out[..., 0::2], out[..., 1::2] = z.real, z.imag
    else:
        out[..., :half], out[..., half:] = z.real, z.imag
    return out


def angles(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    angle = np.random.default_rng(2).uniform(-4, 4, shape)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def drawn(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(NATIVE[dtype]).astype(np.float64)


@pytest.mark.parametrize("dtype", list(UNIT))
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("shape", [(2, 5, 3, 8), (1, 1, 1, 2), (3, 7, 1, 6), (2, 4, 2, 64)])
def test_pairs_turn_by_their_angles(
    rope: CudaRope, storage: CudaStorage, shape: tuple[int, ...], per_row: bool, interleaved: bool, dtype: Any
) -> None:
    b, t, _, d = shape
    x, (cos, sin) = drawn(shape, dtype), angles(*((b,) if per_row else ()), t, d // 2)
    put = storage.from_host(x, dtype=dtype), storage.from_host(cos), storage.from_host(sin)
    for method, sign in ((rope.rope, 1), (rope.rope_vjp, -1)):
        got = method(*put, interleaved=interleaved)
        assert storage.dtype_of(got) == dtype
        error = np.abs(storage.to_host(got) - turned(x, cos, sign * sin, interleaved))
        assert (error <= 4 * UNIT[dtype] * np.abs(x).max()).all()


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_gradient_is_that_of_the_turn(rope: CudaRope, storage: CudaStorage, interleaved: bool) -> None:
    x, dy, (cos, sin) = drawn((2, 3, 2, 6), "float64"), drawn((2, 3, 2, 6), "float64")[::-1], angles(3, 3)
    put = [storage.from_host(each) for each in (x, dy, cos, sin)]
    forward = storage.to_host(rope.rope(put[0], *put[2:], interleaved=interleaved))
    back = storage.to_host(rope.rope_vjp(put[1], *put[2:], interleaved=interleaved))
    assert np.vdot(forward, dy) == pytest.approx(np.vdot(x, back), rel=1e-12)


@pytest.mark.parametrize("interleaved", [False, True])
def test_views_are_read_where_they_lie(rope: CudaRope, storage: CudaStorage, interleaved: bool) -> None:
    import cupy

    host, (cos, sin) = drawn((2, 5, 4, 24), "float32"), angles(4, 10)
    x = storage.from_host(host, dtype="float32")
    put_cos, put_sin = (storage.from_host(each)[:, ::2] for each in (cos, sin))
    for view, truth in (
        (x[:, 1:, :, 4:14], host[:, 1:, :, 4:14]),
        (x[:, :4, :, ::2][..., :10], host[:, :4, :, ::2][..., :10]),
        (x[..., :10].transpose(0, 2, 1, 3), host[..., :10].transpose(0, 2, 1, 3)),
        (cupy.broadcast_to(x[:1, :4, :1, :10], (3, 4, 2, 10)), np.broadcast_to(host[:1, :4, :1, :10], (3, 4, 2, 10))),
    ):
        got = storage.to_host(rope.rope(view, put_cos, put_sin, interleaved=interleaved))
        np.testing.assert_allclose(got, turned(truth, cos[:, ::2], sin[:, ::2], interleaved), 1e-5, 1e-6)


@pytest.mark.parametrize("shape", [(0, 3, 2, 4), (2, 0, 2, 4), (2, 3, 0, 4), (2, 3, 2, 0)])
def test_nothing_turns(rope: CudaRope, storage: CudaStorage, shape: tuple[int, ...]) -> None:
    put = [storage.from_host(each) for each in (np.zeros(shape, np.float32), *angles(shape[1], shape[3] // 2))]
    assert storage.to_host(rope.rope(*put, interleaved=False)).shape == shape
