"""What holds for every slot: any layout, any float, untouched inputs, equal bits at every run, no warnings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret.spi import BackendUnavailable, DataError, DTypeError, ShapeError
from turret_cpu.backend import CpuBackend
from turret_cpu.plugin import turret_backends
from turret_cpu.probe import why_not

X = npt.NDArray[Any]
Call = tuple[Callable[..., Any], list[X]]


def calls(backend: CpuBackend, dtype: Any, batch: int = 2) -> dict[str, Call]:
    """One call of every native slot with its array operands."""
    draw = np.random.default_rng(3)
    c = backend.capabilities()
    activation, loss, rope = c.activation, c.loss, c.rope
    assert activation and c.softmax and c.normalization and c.linear and loss and rope and c.causal_attention

    def x(*shape: int) -> X:
        return draw.standard_normal(shape).astype(dtype)

    def stat() -> X:
        return draw.random((batch, 33, 1)).astype(np.float32)

    norm, att = c.normalization, c.causal_attention
    angle, half = draw.random((33, 4)), (batch, 33, 4, 8)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    p = np.tril(draw.random((batch, 4, 33, 33))).astype(np.float32) / 33
    w = [x(17), x(17)]
    data = x(batch, 33, 17), x(batch, 33, 17)
    return {
        "gelu": (lambda a: activation.gelu(a, form="erf"), [data[0]]),
        "gelu_vjp": (lambda d, a: activation.gelu_vjp(d, a, form="tanh"), [*data]),
        "silu": (activation.silu, [data[0]]),
        "silu_vjp": (activation.silu_vjp, [*data]),
        "gated_silu": (activation.gated_silu, [*data]),
        "gated_silu_vjp": (activation.gated_silu_vjp, [x(batch, 33, 17), *data]),
        "softmax": (c.softmax.softmax, [data[0]]),
        "log_softmax": (c.softmax.log_softmax, [data[0]]),
        "softmax_vjp": (c.softmax.softmax_vjp, [*data]),
        "log_softmax_vjp": (c.softmax.log_softmax_vjp, [*data]),
        "layer_norm": (lambda *a: tuple(norm.layer_norm(*a, eps=1e-5)), [data[0], *w]),
        "layer_norm_vjp": (norm.layer_norm_vjp, [*data, w[0], stat(), stat()]),
        "rms_norm": (lambda *a: norm.rms_norm(*a, eps=1e-5), [data[0], w[0]]),
        "rms_norm_vjp": (norm.rms_norm_vjp, [*data, w[0], stat()]),
        "linear": (c.linear.linear, [data[0], x(9, 17), x(9)]),
        "linear_vjp_input": (c.linear.linear_vjp_input, [x(batch, 33, 9), x(9, 17)]),
        "linear_vjp_weight": (c.linear.linear_vjp_weight, [x(batch, 33, 9), data[0]]),
        "cross_entropy_grad": (
            lambda a, t, v: loss.cross_entropy_grad(a, t, v, ignore=-1),
            [x(batch * 5, 7), np.full(batch * 5, 6, np.int32), np.ones(batch * 5, np.float32)],
        ),
        "rope": (lambda *a: rope.rope(*a, interleaved=False), [x(*half), cos, sin]),
        "rope_vjp": (lambda *a: rope.rope_vjp(*a, interleaved=True), [x(*half), cos, sin]),
        "attend": (lambda *a: att.attend(*a, scale=0.3, offset=0), [x(*half), x(batch, 33, 2, 8), x(batch, 33, 2, 8)]),
        "attend_vjp": (
            lambda *a: att.attend_vjp(*a, scale=0.3),
            [x(*half), x(*half), x(batch, 33, 2, 8), x(batch, 33, 2, 8), p],
        ),
    }  # fmt: skip


NAMES = sorted(calls(CpuBackend(), np.float32))


def results(call: Call, arrays: list[X] | None = None) -> list[X]:
    made = call[0](*(call[1] if arrays is None else arrays))
    return list(made) if isinstance(made, tuple) else [made]


def scattered(x: X) -> X:
    """Equal values, with gaps between the elements of every axis."""
    big = np.zeros(tuple(2 * size for size in x.shape), x.dtype)
    view = big[tuple(slice(None, None, 2) for _ in x.shape)]
    view[...] = x
    return view


@pytest.mark.parametrize("name", NAMES)
def test_inputs_stay_and_results_repeat_bit_for_bit(backend: CpuBackend, name: str) -> None:
    call = calls(backend, np.float32)[name]
    before = [x.copy() for x in call[1]]
    first = results(call)
    for _ in range(3):
        assert all(np.array_equal(a, b) for a, b in zip(first, results(call), strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(before, call[1], strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_views_and_read_only_arrays_give_the_same_bits(backend: CpuBackend, name: str) -> None:
    call = calls(backend, np.float32)[name]
    want = results(call)
    frozen = [x.copy() for x in call[1]]
    for x in frozen:
        x.setflags(write=False)
    for arrays in ([scattered(x) for x in call[1]], frozen):
        assert all(np.array_equal(a, b) for a, b in zip(want, results(call, arrays), strict=True))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_other_floats_agree_with_float32_and_are_counted(name: str, dtype: Any) -> None:
    backend = CpuBackend()
    call, other = calls(backend, np.float32)[name], calls(backend, dtype)[name]
    got = results(other)
    assert sum(backend.derived_calls.values()) == 1
    for a, b in zip(got, results(call), strict=True):
        assert a.dtype in (dtype, np.float32)
        assert np.abs(a.astype(np.float64) - b).max() <= (2e-2 if dtype is np.float16 else 1e-4) * max(
            1.0, np.abs(b).max()
        )


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("cross_entropy_grad",)])
def test_an_empty_batch_is_no_error(backend: CpuBackend, name: str) -> None:
    for made in results(calls(backend, np.float32, batch=0)[name]):
        assert made.size == 0 or not made.any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [np.inf, np.nan, 1e30])
def test_extreme_values_neither_warn_nor_raise(backend: CpuBackend, name: str, value: float) -> None:
    call = calls(backend, np.float32)[name]
    for at, x in enumerate(call[1]):
        if x.dtype == np.float32:
            bad = x.copy()
            bad.reshape(-1)[0] = value
            results(call, [*call[1][:at], bad, *call[1][at + 1 :]])


@pytest.mark.parametrize("name", ["linear", "layer_norm", "softmax", "rms_norm", "attend", "linear_vjp_weight"])
def test_nan_reaches_the_result(backend: CpuBackend, name: str) -> None:
    call = calls(backend, np.float32)[name]
    bad = call[1][0].copy()
    bad.reshape(-1)[0] = np.nan
    assert np.isnan(results(call, [bad, *call[1][1:]])[0]).any()


def test_elementwise_follows_numpy_without_its_warnings(backend: CpuBackend) -> None:
    e = backend.capabilities().required.elementwise
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -1.0, 3e38], np.float32)
    assert np.isnan(e.subtract(x, x)[:3]).all()
    assert np.isinf(e.multiply(x, 10.0)[5])
    assert np.isneginf(e.log(x)[3])
    assert np.isnan(e.sqrt(x)[4])
    assert np.isposinf(e.rsqrt(x)[3])
    assert np.isposinf(e.divide(1.0, x)[3])
    assert np.isnan(e.maximum(x, 0.0)[2])
    assert e.isfinite(x).tolist() == [False, False, False, True, True, True]
    assert isinstance(e.add(np.asarray(1.0, np.float32), 1.0), np.ndarray)
    large = np.full(40_000, np.inf, np.float32)
    assert np.isnan(e.add(large, -large)).all()


def test_reductions_of_rank_zero_are_arrays_and_empty_axes_answer(backend: CpuBackend) -> None:
    r = backend.capabilities().required.reduction
    empty = np.empty((0, 3), np.float32)
    three = np.ones(3, np.float32)
    for made in (r.sum(three, axis=0), r.mean(three, axis=0), r.max(three, axis=0), r.argmax(three, axis=0)):
        assert isinstance(made, np.ndarray)
        assert made.shape == ()
    assert not r.sum(empty, axis=0).any()
    assert np.isnan(r.mean(empty, axis=0)).all()
    with pytest.raises(ShapeError, match="empty axis"):
        r.max(empty, axis=0)
    assert r.mean(np.full(4, 60000, np.float16), axis=0) == 60000


def test_indices_out_of_range_are_refused_before_memory_is_written(backend: CpuBackend) -> None:
    c = backend.capabilities()
    assert c.loss is not None
    base = np.zeros((3, 2), np.float32)
    for ids in ([0, 3], [-1, 0]):
        with pytest.raises(DataError, match="row indices"):
            c.required.indexing.scatter_add_rows(
                base, np.array(ids, np.int32), np.ones((2, 2), np.float32), donate=True
            )
        with pytest.raises(DataError, match="targets"):
            c.loss.cross_entropy(np.ones((2, 3), np.float32), np.array(ids, np.int32), None, ignore=-5)
    assert not base.any()


def test_donation_writes_in_place_and_its_absence_does_not(backend: CpuBackend) -> None:
    indexing = backend.capabilities().required.indexing
    base, ids, rows = np.zeros((3, 2), np.float32), np.array([2, 2], np.int32), np.ones((2, 2), np.float32)
    assert indexing.scatter_add_rows(base, ids, rows)[2, 0] == 2
    assert not base.any()
    assert indexing.scatter_add_rows(base, ids, rows, donate=True) is base
    assert base[2, 0] == 2
    assert indexing.set_rows(base, ids, rows, donate=True)[2, 0] == 1


def test_storage_copies_and_refuses_what_it_lacks(backend: CpuBackend) -> None:
    s = backend.capabilities().required.storage
    host = np.ones(3, np.float64)
    held = s.from_host(host, dtype="float32")
    host[:] = 5
    assert held.tolist() == [1, 1, 1]
    assert s.dtype_of(held) == "float32"
    for wrong in ("bfloat16", "complex64"):
        with pytest.raises(DTypeError, match=f"no {wrong}"):
            s.full((1,), 0.0, dtype=wrong)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="no uint16"):
        s.from_host(np.ones(2, np.uint16))
    assert s.cast(np.array([np.nan, np.inf, 1.7], np.float32), "int32")[2] == 1


def test_any_device_word_is_refused_with_a_reason() -> None:
    assert why_not("") is None
    reason = why_not("7")
    assert reason is not None
    assert "'7'" in reason
    with pytest.raises(BackendUnavailable, match="one device"):
        CpuBackend("7")


def test_the_plugin_describes_what_the_backend_has(backend: CpuBackend) -> None:
    (info,) = turret_backends()
    c = backend.capabilities()
    assert info.provides == {n for n in info.provides if getattr(c, n) is not None}
    assert info.dtypes == c.required.storage.device().dtypes
    assert backend.capabilities() is c
    backend.close()
    backend.close()
