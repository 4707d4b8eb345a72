"""Compiled programs: donated buffers are XLA's to reuse, nothing runs on the host, errors are turret's."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.derived import fill
from turret.spi import CaptureError, OutOfMemory, ShapeError, Toolset
from turret_tpu.backend import TpuBackend
from turret_tpu.library import jax

X = jax.Array


@pytest.fixture(scope="module")
def tools(backend: TpuBackend) -> Toolset[Any]:
    return fill(backend.capabilities())


def put(tools: Toolset[Any], *hosts: Any) -> list[X]:
    return [tools.storage.from_host(np.asarray(x, np.float32)) for x in hosts]


def training(tools: Toolset[Any]) -> Callable[..., tuple[X, ...]]:
    """A step through every native slot: (weight, m, v, table, ids, rate, correction1, correction2) -> ..."""

    def step(w: X, m: X, v: X, table: X, ids: X, lr: X, c1: X, c2: X) -> tuple[X, ...]:
        x = tools.indexing.gather_rows(table, ids)  # (6, 8)
        normed = tools.normalization.layer_norm(x, tools.storage.full((8,), 1.0, dtype="float32"), x[0], eps=1e-5)
        h = tools.activation.gelu(tools.linear.linear(normed.out, w, None), form="erf")
        q = tools.layout.reshape(h, (1, 6, 2, 4))
        turned = tools.rope.rope(q, h[:, :2], h[:, 2:4], interleaved=False)
        mixed, _ = tools.causal_attention.attend(turned, q, q, scale=0.5, offset=0)
        logits = tools.layout.reshape(mixed, (6, 8))
        loss, dl = tools.loss.cross_entropy_grad(logits, ids, None, ignore=-1)
        dw, _ = tools.linear.linear_vjp_weight(tools.softmax.softmax_vjp(dl, tools.softmax.softmax(h)), x)
        done = tools.adam.update(
            (w,), (dw,), (m,), (v,), lr=lr, correction1=c1, correction2=c2, betas=(0.9, 0.99), eps=1e-8,
            decay=(0.1,), max_norm=1.0, donate=True,
        )  # fmt: skip
        return done.params[0], done.first[0], done.second[0], loss, done.finite

    return step


def arguments(tools: Toolset[Any]) -> list[X]:
    draw = np.random.default_rng(0)
    shapes = [(8, 8), (8, 8), (8, 8), (8, 8)]
    ids = tools.storage.from_host(np.arange(6, dtype=np.int32))
    return [*put(tools, *(draw.random(shape) for shape in shapes)), ids, *put(tools, 0.1, 0.1, 0.01)]


def test_the_lowered_step_aliases_what_is_donated_and_calls_no_host(tools: Toolset[Any]) -> None:
    given = arguments(tools)
    text = jax.jit(training(tools), donate_argnums=(0, 1, 2)).lower(*given).as_text()
    assert text.count("module @") == 1
    assert text.count("tf.aliasing_output") + text.count("jax.buffer_donor") == 3
    assert "callback" not in text
    assert "f64" not in text
    assert "i64>" not in text.replace("array<i64", "")  # dimension lists are i64 attributes, tensors are not


def test_the_slot_donates_what_jax_can_use(tools: Toolset[Any]) -> None:
    given = arguments(tools)
    program = tools.compile.compile(training(tools), donate=(0, 1, 2))
    kept = [tools.storage.copy(x) for x in given]
    got = program(*given)
    assert [x.is_deleted() for x in given] == [True] * 3 + [False] * 5
    want = training(tools)(*kept)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(tools.storage.to_host(x), tools.storage.to_host(y), rtol=1e-5, atol=1e-6)


def test_a_donated_buffer_of_no_use_stays_and_warns_nobody(tools: Toolset[Any]) -> None:
    x, y = put(tools, np.ones((3, 5)), np.ones(5))
    program = tools.compile.compile(
        lambda a, b: (tools.reduction.sum(tools.elementwise.add(a, b), axis=0),), donate=(0, 1)
    )
    assert tools.storage.to_host(program(x, y)[0]).tolist() == [6] * 5
    assert (x.is_deleted(), y.is_deleted()) == (False, True)


@pytest.mark.parametrize("donate", [(0,), (1,), (0, 1)])
def test_one_array_for_two_arguments_may_be_donated(tools: Toolset[Any], donate: tuple[int, ...]) -> None:
    (x,) = put(tools, [1, 2])
    program = tools.compile.compile(
        lambda a, b: (tools.elementwise.add(a, b), tools.elementwise.multiply(a, b)), donate=donate
    )
    assert [tools.storage.to_host(y).tolist() for y in program(x, x)] == [[2, 4], [1, 4]]


def test_an_output_that_is_an_input_is_an_array_of_its_own(tools: Toolset[Any]) -> None:
    (x,) = put(tools, np.zeros((64, 64)))
    total = tools.elementwise.add
    program = tools.compile.compile(lambda a: (a, total(a, 1.0), a))
    first, _, third = program(x)
    pointers = {y.unsafe_buffer_pointer() for y in (x, first, third)}
    assert len(pointers) == 3


def test_the_function_runs_once_for_each_shape(tools: Toolset[Any]) -> None:
    seen = []

    def fn(x: X) -> tuple[X, ...]:
        seen.append(x.shape)
        return (tools.elementwise.negative(x),)

    for donate in ((), (0,)):
        program = tools.compile.compile(fn, donate=donate)
        for n in (2, 3, 2, 3):
            program(*put(tools, np.ones((n, 1 + len(donate)))))
    assert seen == [(2, 1), (3, 1), (2, 2), (3, 2)]


READS: dict[str, Callable[[Any], Any]] = {
    "if": lambda x: 1.0 if x[0] > 0 else 2.0,
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "index": lambda x: [1.0, 2.0][x.astype("int32")[0]],
    "numpy": lambda x: np.asarray(x),
}


@pytest.mark.parametrize("donate", [(), (0,)])
@pytest.mark.parametrize("how", READS)
def test_a_read_value_is_a_capture_error_that_leads_to_the_line(
    tools: Toolset[Any], how: str, donate: tuple[int, ...]
) -> None:
    def the_users_step(x: X) -> tuple[X, ...]:
        return (tools.elementwise.add(x, READS[how](x)),)

    (x,) = put(tools, [1, 2])
    with pytest.raises(CaptureError, match="on the host") as caught:
        tools.compile.compile(the_users_step, donate=donate)(x)
    assert "the_users_step" in "".join(traceback.format_exception(caught.value))
    assert not x.is_deleted()


def test_to_host_in_a_program_is_a_capture_error(tools: Toolset[Any]) -> None:
    program = tools.compile.compile(lambda x: (tools.storage.from_host(tools.storage.to_host(x)),))
    with pytest.raises(CaptureError, match="to_host"):
        program(*put(tools, [1]))


def test_an_array_that_outlives_its_trace_is_a_capture_error(tools: Toolset[Any]) -> None:
    kept: list[X] = []

    def fn(x: X) -> tuple[X, ...]:
        kept.append(tools.elementwise.add(x, 1.0))
        return (x,)

    tools.compile.compile(fn)(*put(tools, [1]))
    with pytest.raises(CaptureError, match="stored it outside"):
        tools.elementwise.add(kept[0], 1.0)


def test_what_the_function_raises_reaches_the_caller_and_nothing_is_donated(tools: Toolset[Any]) -> None:
    def fn(x: X) -> tuple[X, ...]:
        raise ShapeError("mine")

    (x,) = put(tools, [1])
    with pytest.raises(ShapeError, match="mine"):
        tools.compile.compile(fn, donate=(0,))(x)
    assert not x.is_deleted()


def test_no_room_is_out_of_memory(tools: Toolset[Any]) -> None:
    program = tools.compile.compile(
        lambda x: (tools.layout.broadcast_to(x, (1 << 42, 2)), tools.elementwise.add(x, 1.0))
    )
    with pytest.raises(OutOfMemory, match="no room"):
        tools.storage.synchronize(*program(*put(tools, [1, 2])))


def test_arrays_from_outside_are_computed_with_in_a_program(tools: Toolset[Any]) -> None:
    (constant,) = put(tools, [1, 2])

    def fn(x: X) -> tuple[X, ...]:
        return (tools.elementwise.add(x, tools.softmax.softmax(tools.elementwise.add(constant, constant))),)

    for _ in range(2):
        (got,) = tools.compile.compile(fn)(constant)
        want = np.exp([2, 4]) / np.exp([2, 4]).sum() + [1, 2]
        np.testing.assert_allclose(tools.storage.to_host(got), want, rtol=1e-6)


def test_a_program_within_a_program_is_part_of_it(tools: Toolset[Any]) -> None:
    inner = tools.compile.compile(lambda x: (tools.elementwise.add(x, 1.0),), donate=(0,))
    outer = tools.compile.compile(lambda x: (inner(x)[0], tools.elementwise.multiply(x, 3.0)))
    (x,) = put(tools, [1, 2])
    assert [tools.storage.to_host(y).tolist() for y in outer(x)] == [[2, 3], [3, 6]]
    assert not x.is_deleted()
