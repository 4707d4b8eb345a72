"""Rearranging: every result is that of NumPy, from views of every kind, empty arrays and rank 0, in every dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from turret.spi import Toolset

DTYPES = ("float32", "int32", "bool", "uint8", "float16", "bfloat16", "float64", "int64")


def numbered(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    native = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return (np.arange(np.prod(shape, dtype=int)) % 127).reshape(shape).astype(native)


def check(tools: Toolset[Any], got: Any, want: Any) -> None:
    assert tuple(got.shape) == want.shape
    assert got.dtype == want.dtype
    assert tools.storage.to_host(got).tolist() == want.tolist()


def viewed(tools: Toolset[Any], host: Any) -> list[tuple[Any, Any]]:
    """The same (rank 3) values behind steps that are dense, turned, strided with an offset, and repeated."""
    layout, x = tools.layout, tools.storage.from_host(host)
    a, b, c = host.shape
    return [
        (x, host),
        (layout.transpose(x, (2, 0, 1)), host.transpose(2, 0, 1)),
        (layout.slice(x, (0, 1, 0), (a, b, c), step=(1, 2, 3)), host[:, 1::2, ::3]),
        (layout.broadcast_to(layout.slice(x, (1, 0, 0), (2, b, c)), (4, b, c)), np.broadcast_to(host[1:2], (4, b, c))),
        (layout.slice(layout.transpose(x, (1, 2, 0)), (1, 0, 0), (b, c, 1)), host.transpose(1, 2, 0)[1:, :, :1]),
        (layout.slice(x, (0, 1, 0), (a, 1, c)), host[:, 1:1]),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operation_takes_views_of_every_kind(tools: Toolset[Any], dtype: Any) -> None:
    layout = tools.layout
    for x, host in viewed(tools, numbered((3, 5, 7), dtype)):
        p, q, r = host.shape
        check(tools, layout.reshape(x, (r, q * p)), host.reshape(r, q * p))
        check(tools, layout.reshape(x, (host.size,)), host.reshape(-1))
        check(tools, layout.transpose(x, (1, 2, 0)), host.transpose(1, 2, 0))
        check(tools, layout.concatenate([x, x, x], axis=1), np.concatenate([host, host, host], 1))
        check(tools, layout.concatenate([x], axis=2), host)
        check(tools, layout.broadcast_to(x, (2, p, q, r)), np.broadcast_to(host, (2, p, q, r)))
        widths = [(1, 0), (0, 0), (2, 3)]
        check(tools, layout.pad(x, widths, value=1.0), np.pad(host, widths, constant_values=1))
        check(tools, layout.pad(x, widths), np.pad(host, widths))
        check(tools, layout.slice(x, (0, 0, 0), host.shape, step=(2, 2, 2)), host[::2, ::2, ::2])


def test_rank_0(tools: Toolset[Any]) -> None:
    layout, x = tools.layout, tools.storage.full((), 3.0, dtype="float32")
    check(tools, layout.reshape(x, ()), np.float32(3))
    check(tools, layout.reshape(x, (1, 1)), np.full((1, 1), 3, np.float32))
    check(tools, layout.transpose(x, ()), np.float32(3))
    check(tools, layout.slice(x, (), ()), np.float32(3))
    check(tools, layout.pad(x, []), np.float32(3))
    check(tools, layout.broadcast_to(x, (2, 3)), np.full((2, 3), 3, np.float32))
    check(tools, layout.reshape(layout.broadcast_to(x, (1, 1)), ()), np.float32(3))


def test_nothing_is_rearranged_to_nothing_and_padded_to_something(tools: Toolset[Any]) -> None:
    layout, host = tools.layout, np.zeros((2, 0, 3), np.float32)
    x = tools.storage.from_host(host)
    check(tools, layout.reshape(x, (0, 7)), host.reshape(0, 7))
    check(tools, layout.transpose(x, (2, 1, 0)), host.transpose(2, 1, 0))
    check(tools, layout.reshape(layout.transpose(x, (2, 1, 0)), (5, 0)), host.reshape(5, 0))
    check(tools, layout.concatenate([x, x], axis=0), np.concatenate([host, host]))
    check(tools, layout.broadcast_to(x, (4, 2, 0, 3)), np.broadcast_to(host, (4, 2, 0, 3)))
    check(tools, layout.pad(x, [(0, 0), (1, 1), (0, 0)], value=2.5), np.full((2, 2, 3), 2.5, np.float32))
    full = tools.storage.full((2, 4, 3), 1.0, dtype="float32")
    check(tools, layout.concatenate([x, full, x], axis=1), np.ones((2, 4, 3), np.float32))
    check(tools, layout.slice(full, (2, 0, 0), (2, 4, 3)), np.zeros((0, 4, 3), np.float32))


@pytest.mark.parametrize(
    ("dtype", "value", "want"),
    [
        ("float32", 1e300, np.inf), ("float32", np.nan, np.nan), ("float32", -0.0, -0.0), ("float64", 1e300, 1e300),
        ("int64", 2**53 + 1, 2**53 + 1), ("int32", -7, -7), ("bool", 1, True), ("uint8", 200, 200),
        ("float16", 1e300, np.inf), ("bfloat16", 1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-7),
    ],
)  # fmt: skip
def test_what_is_added_around_takes_the_arrays_dtype(tools: Toolset[Any], dtype: Any, value: Any, want: Any) -> None:
    x = tools.storage.full((1,), 0, dtype=dtype)
    got = tools.storage.to_host(tools.layout.pad(x, [(1, 0)], value=value))
    wanted = np.asarray(want, got.dtype)
    assert got[:1].tobytes() == wanted.tobytes() or (got[0] != got[0] and want != want)
    assert got[1] == 0


def test_copies_share_nothing_and_views_do(tools: Toolset[Any]) -> None:
    layout, x = tools.layout, tools.storage.full((3, 4), 1.0, dtype="float32")
    joined, padded = layout.concatenate([x], axis=0), layout.pad(x, [(0, 0), (0, 0)])
    assert len({y.data.mem.ptr for y in (x, joined, padded)}) == 3
    for view in (layout.reshape(x, (12,)), layout.transpose(x, (1, 0)), layout.slice(x, (1, 0), (3, 4))):
        assert view.data.mem.ptr == x.data.mem.ptr
    turned = layout.reshape(layout.transpose(x, (1, 0)), (12,))
    assert turned.data.mem.ptr != x.data.mem.ptr


def test_nine_axes_without_two_that_join(tools: Toolset[Any]) -> None:
    host = numbered((2, 3, 2, 1, 2, 3, 2, 2, 2))
    x, order = tools.storage.from_host(host), (8, 1, 6, 3, 4, 5, 2, 7, 0)
    check(tools, tools.storage.copy(tools.layout.transpose(x, order)), host.transpose(order))
    check(
        tools, tools.layout.reshape(tools.layout.transpose(x, order), (host.size,)), host.transpose(order).reshape(-1)
    )


@given(st.data())
def test_a_chain_of_rearrangements_is_that_of_numpy(tools: Toolset[Any], data: st.DataObject) -> None:
    layout = tools.layout
    host = numbered(data.draw(array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)))
    x = tools.storage.from_host(host)
    for _ in range(4):
        rank = host.ndim
        how = data.draw(st.sampled_from(["transpose", "slice", "flat", "pad", "twice", "repeat", "reverse shape"]))
        if how == "transpose":
            axes = tuple(data.draw(st.permutations(range(rank))))
            x, host = layout.transpose(x, axes), host.transpose(axes)
        elif how == "slice":
            cuts = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in host.shape]
            steps = [data.draw(st.integers(1, 3)) for _ in cuts]
            x = layout.slice(x, tuple(a for a, _ in cuts), tuple(b for _, b in cuts), step=tuple(steps))
            host = host[tuple(slice(a, b, s) for (a, b), s in zip(cuts, steps, strict=True))]
        elif how == "flat":
            x, host = layout.reshape(x, (host.size,)), host.reshape(-1)
        elif how == "reverse shape":
            x, host = layout.reshape(x, host.shape[::-1]), host.reshape(host.shape[::-1])
        elif how == "pad" and rank:
            widths = [data.draw(st.tuples(*[st.integers(0, 2)] * 2)) for _ in range(rank)]
            x, host = layout.pad(x, widths, value=9.0), np.pad(host, widths, constant_values=9)
        elif how == "twice" and rank:
            axis = data.draw(st.integers(0, rank - 1))
            x, host = layout.concatenate([x, x], axis=axis), np.concatenate([host, host], axis)
        elif how == "repeat" and rank < 6:
            shape = (2, *host.shape)
            x, host = layout.broadcast_to(x, shape), np.broadcast_to(host, shape)
        if host.size > 4000:
            break
    check(tools, x, host)
