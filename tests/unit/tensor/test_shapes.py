"""Broadcasting, slicing, padding and indexing on generated shapes, forward and backward."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as shapes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.registry import OpenBackend
from turret.spi import ShapeError
from turret.tensor import Tensor, backward, ops, tensor

Array = npt.NDArray[Any]
SIZES = shapes.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
quick = settings(max_examples=60, deadline=None)
some = settings(max_examples=25, deadline=None)


def numbers(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def pullback(out: Tensor, leaf: Tensor, cotangent: Array) -> Array:
    return backward(out, tensor(cotangent))[leaf].numpy()


def check_adjoint(run: Any, inputs: tuple[Array, ...], which: int, forward: Any) -> None:
    """<vjp(c), d> = <c, f'(d)> for f linear in one input, exactly: all numbers are small integers."""
    leaves = tuple(tensor(x, requires_grad=i == which) for i, x in enumerate(inputs))
    out = run(*leaves)
    cotangent, direction = numbers(out.shape, 1), numbers(inputs[which].shape, 2)
    moved = [direction if i == which else x for i, x in enumerate(inputs)]
    got = pullback(out, leaves[which], cotangent)
    assert got.shape == inputs[which].shape
    assert (got * direction).sum() == (cotangent * forward(*moved)).sum()


@pytest.mark.parametrize("name", ["add", "multiply"])
@pytest.mark.parametrize("which", [0, 1])
@given(found=shapes.mutually_broadcastable_shapes(num_shapes=2, min_side=0, max_side=4, max_dims=4))
@some
def test_gradients_are_summed_over_stretched_axes(plain: OpenBackend, name: str, which: int, found: Any) -> None:
    a, b = (numbers(shape, i) for i, shape in enumerate(found.input_shapes))
    numpy_op = getattr(np, name)
    assert getattr(ops, name)(tensor(a), tensor(b)).numpy().tolist() == numpy_op(a, b).tolist()
    forward = (
        numpy_op if name == "multiply" else lambda x, y: np.broadcast_to(x if which == 0 else y, found.result_shape)
    )
    check_adjoint(getattr(ops, name), (a, b), which, forward)


@given(found=shapes.mutually_broadcastable_shapes(num_shapes=3, min_side=0, max_side=4, max_dims=3))
@some
def test_where_broadcasts_all_three(plain: OpenBackend, found: Any) -> None:
    c, a, b = (numbers(shape, i) for i, shape in enumerate(found.input_shapes))
    condition = tensor(c > 0)
    assert ops.where(condition, tensor(a), tensor(b)).numpy().tolist() == np.where(c > 0, a, b).tolist()
    full = found.result_shape
    check_adjoint(
        lambda x, y: ops.where(condition, x, y), (a, b), 0, lambda x, y: np.where(c > 0, np.broadcast_to(x, full), 0)
    )
    check_adjoint(
        lambda x, y: ops.where(condition, x, y), (a, b), 1, lambda x, y: np.where(c > 0, 0, np.broadcast_to(y, full))
    )


@given(shape=SIZES, data=st.data())
@quick
def test_index_equals_numpy_and_scatters_back(plain: OpenBackend, shape: tuple[int, ...], data: st.DataObject) -> None:
    key = data.draw(shapes.basic_indices(shape, allow_ellipsis=True, allow_newaxis=False))
    parts = key if isinstance(key, tuple) else (key,)
    host = numbers(shape)
    if any(isinstance(part, slice) and (part.step or 1) < 0 for part in parts):
        with pytest.raises(ShapeError, match="got step -"):
            tensor(host)[key]
        return
    leaf = tensor(host, requires_grad=True)
    out = leaf[key]
    want = np.asarray(host[key])
    assert out.shape == want.shape
    assert out.numpy().tolist() == want.tolist()
    cotangent, back = numbers(want.shape, 1), np.zeros_like(host)
    back[key] += cotangent
    assert pullback(out, leaf, cotangent).tolist() == back.tolist()


@given(shape=SIZES, data=st.data())
@quick
def test_slice_with_steps_scatters_back(plain: OpenBackend, shape: tuple[int, ...], data: st.DataObject) -> None:
    start, stop, step = [], [], []
    for size in shape:
        a = data.draw(st.integers(0, size))
        start.append(a), stop.append(data.draw(st.integers(a, size))), step.append(data.draw(st.integers(1, 5)))
    key = tuple(slice(*bounds) for bounds in zip(start, stop, step, strict=True))
    host = numbers(shape)
    leaf = tensor(host, requires_grad=True)
    out = ops.slice(leaf, start, stop, step=step)
    assert out.numpy().tolist() == host[key].tolist()
    back = np.zeros_like(host)
    back[key] = cotangent = numbers(np.shape(host[key]), 1)
    assert pullback(out, leaf, cotangent).tolist() == back.tolist()


@given(shape=SIZES, data=st.data())
@quick
def test_pad_equals_numpy_and_cuts_back(plain: OpenBackend, shape: tuple[int, ...], data: st.DataObject) -> None:
    widths = [(data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))) for _ in shape]
    host = numbers(shape)
    leaf = tensor(host, requires_grad=True)
    out = ops.pad(leaf, widths, value=3.0)
    assert out.numpy().tolist() == (np.pad(host, widths, constant_values=3) if shape else host).tolist()
    cotangent = numbers(out.shape, 1)
    cut = cotangent[tuple(slice(a, a + n) for (a, _), n in zip(widths, shape, strict=True))]
    assert pullback(out, leaf, cotangent).tolist() == cut.tolist()


@given(shape=SIZES, data=st.data())
@some
def test_transpose_and_reshape_go_back_the_way_they_came(
    plain: OpenBackend, shape: tuple[int, ...], data: st.DataObject
) -> None:
    axes = tuple(data.draw(st.permutations(range(len(shape)))))
    host = numbers(shape)
    leaf = tensor(host, requires_grad=True)
    turned = ops.transpose(leaf, axes)
    assert turned.numpy().tolist() == host.transpose(axes).tolist()
    flat = turned.reshape(host.size)
    cotangent = numbers((host.size,), 1)
    back = cotangent.reshape(host.transpose(axes).shape).transpose(np.argsort(axes) if axes else ())
    assert pullback(flat, leaf, cotangent).tolist() == back.tolist()


@given(sizes=st.lists(st.integers(0, 3), min_size=1, max_size=4), axis=st.integers(-3, 2))
@some
def test_concatenate_gives_each_part_its_piece(plain: OpenBackend, sizes: list[int], axis: int) -> None:
    hosts = [numbers(tuple(n if i == axis % 3 else 2 for i in range(3)), k) for k, n in enumerate(sizes)]
    leaves = [tensor(h, requires_grad=True) for h in hosts]
    out = ops.concatenate(leaves, axis)
    assert out.numpy().tolist() == np.concatenate(hosts, axis).tolist()
    cotangent = numbers(out.shape, 9)
    found = backward(out, tensor(cotangent))
    pieces = np.split(cotangent, np.cumsum(sizes)[:-1], axis)
    for leaf, piece in zip(leaves, pieces, strict=True):
        assert found[leaf].numpy().tolist() == piece.tolist()


@given(shape=shapes.array_shapes(min_dims=1, max_dims=4, max_side=4), data=st.data(), keepdims=st.booleans())
@some
def test_reductions_take_any_axes(
    plain: OpenBackend, shape: tuple[int, ...], data: st.DataObject, keepdims: bool
) -> None:
    axes = data.draw(st.lists(st.sampled_from(range(len(shape))), min_size=1, unique=True))
    signed = tuple(a - len(shape) if data.draw(st.booleans()) else a for a in axes)
    host = numbers(shape)
    for name in ("sum", "mean", "max"):
        leaf = tensor(host, requires_grad=True)
        out = getattr(leaf, name)(signed, keepdims=keepdims)
        want = getattr(host, name)(tuple(axes), keepdims=True)
        np.testing.assert_allclose(out.numpy().reshape(want.shape), want, rtol=1e-6)
        assert out.shape == getattr(host, name)(tuple(axes), keepdims=keepdims).shape
        got = pullback(out, leaf, np.ones(out.shape, np.float32))
        if name == "max":
            share = (host == want) / (host == want).sum(tuple(axes), keepdims=True)
        else:
            share = np.full_like(host, 1.0 if name == "sum" else want.size / host.size)
        np.testing.assert_allclose(got, share, rtol=1e-6)


def test_equal_operands_of_an_extremum_share_the_gradient(plain: OpenBackend) -> None:
    for op in (ops.maximum, ops.minimum):
        a, b = (tensor([1.0, 2.0, 3.0], requires_grad=True) for _ in range(2))
        found = backward(op(a, b).sum())
        assert found[a].numpy().tolist() == found[b].numpy().tolist() == [0.5, 0.5, 0.5]


def test_repeated_rows_add_their_gradients(backend: OpenBackend) -> None:
    table = tensor(numbers((4, 2)), requires_grad=True)
    got = pullback(ops.gather_rows(table, tensor([1, 1, 3])), table, np.ones((3, 2), np.float32))
    assert got.tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]
