from __future__ import annotations

import math
from typing import Any

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.spi.array_api import required_from

shapes = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)
layouts = [required_from(np), required_from(array_api_strict)]
quickly = settings(max_examples=60, deadline=None)


def counted(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return np.arange(math.prod(shape), dtype=dtype).reshape(shape)


def check(want: Any, do: Any, x: Any, *others: Any) -> None:
    """`do(layout, *arrays)` equals `want` on every namespace."""
    for required in layouts:
        got = required.storage.to_host(do(required.layout, *map(required.storage.from_host, (x, *others))))
        assert got.dtype == want.dtype and np.array_equal(got, want)


@quickly
@given(shape=shapes, data=st.data())
def test_transpose_and_reshape_keep_every_element(shape: tuple[int, ...], data: Any) -> None:
    axes, x = tuple(data.draw(st.permutations(range(len(shape))))), counted(shape)
    check(x.transpose(axes), lambda layout, a: layout.transpose(a, axes), x)
    flat = (math.prod(shape), 1)
    check(x.transpose(axes).reshape(flat), lambda layout, a: layout.reshape(layout.transpose(a, axes), flat), x)


@quickly
@given(shape=shapes, data=st.data())
def test_slice_cuts_static_bounds_with_steps(shape: tuple[int, ...], data: Any) -> None:
    bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    start, stop = tuple(a for a, _ in bounds), tuple(b for _, b in bounds)
    step = data.draw(st.none() | st.tuples(*[st.integers(1, 3)] * len(shape)))
    cut = tuple(slice(a, b, s) for a, b, s in zip(start, stop, step or (1,) * len(shape), strict=True))
    check(counted(shape)[cut], lambda layout, a: layout.slice(a, start, stop, step=step), counted(shape))


@quickly
@given(shape=shapes, data=st.data())
def test_pad_surrounds_with_its_value(shape: tuple[int, ...], data: Any) -> None:
    widths = [data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3))) for _ in shape]
    dtype, value = data.draw(st.sampled_from([("float32", -math.inf), ("int32", 7.0), ("uint8", 255.0), ("bool", 1.0)]))
    x = counted(shape).astype(dtype)
    kind = bool if dtype == "bool" else float if dtype == "float32" else int
    check(np.pad(x, widths, constant_values=kind(value)), lambda layout, a: layout.pad(a, widths, value=value), x)


@quickly
@given(shape=shapes, data=st.data())
def test_concatenate_joins_along_its_axis(shape: tuple[int, ...], data: Any) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    lengths = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    parts = [counted((*shape[:axis], n, *shape[axis + 1 :])) + i for i, n in enumerate(lengths)]
    check(np.concatenate(parts, axis=axis), lambda layout, *xs: layout.concatenate(xs, axis=axis), *parts)


@quickly
@given(shape=shapes, data=st.data())
def test_broadcast_to_repeats_axes_of_one(shape: tuple[int, ...], data: Any) -> None:
    x = counted(tuple(1 if data.draw(st.booleans()) else n for n in shape))
    wide = (*data.draw(st.lists(st.integers(1, 3), max_size=2)), *shape)
    check(np.broadcast_to(x, wide), lambda layout, a: layout.broadcast_to(a, wide), x)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "uint8"])
def test_every_namespace_rearranges_any_dtype(space: Any, dtype: str) -> None:
    x, layout = counted((2, 3, 4)).astype(dtype), space.layout
    a = space.put(x)
    space.same(layout.reshape(a, (6, 4)), x.reshape(6, 4))
    space.same(layout.transpose(a, (2, 0, 1)), x.transpose(2, 0, 1))
    space.same(layout.slice(a, (0, 1, 0), (2, 3, 4), step=(1, 1, 2)), x[:, 1:3, ::2])
    space.same(layout.concatenate([a, a], axis=1), np.concatenate([x, x], axis=1))
    space.same(layout.pad(a, [(1, 0), (0, 2), (0, 0)]), np.pad(x, [(1, 0), (0, 2), (0, 0)]))
    space.same(layout.broadcast_to(layout.slice(a, (0, 0, 0), (1, 3, 4)), (2, 3, 4)), np.broadcast_to(x[:1], (2, 3, 4)))


def test_rank_zero_stays_an_array(space: Any) -> None:
    x, layout = space.put(np.float32(3)), space.layout
    made = (
        layout.reshape(space.put(np.array([3], np.float32)), ()),
        layout.transpose(x, ()),
        layout.slice(x, (), ()),
        layout.pad(x, []),
        layout.broadcast_to(x, ()),
    )
    for got in made:
        space.same(got, np.array(3, np.float32))


def test_padding_keeps_halves(space: Any) -> None:
    for dtype in space.storage.device().dtypes & {"float16", "bfloat16"}:
        got = space.layout.pad(space.put(np.ones(2, np.float32), dtype), [(1, 1)], value=0.5)
        assert space.storage.dtype_of(got) == dtype and space.get(got).tolist() == [0.5, 1, 1, 0.5]
