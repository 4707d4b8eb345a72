"""Nothing of a step is half done, whatever it contains, and nothing outside it is taken for a constant by mistake."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import turret
from turret.nn import Module
from turret.optim import Adam
from turret.registry import OpenBackend, use_backend
from turret.spi import CaptureError, NonFiniteError
from turret.tensor import Parameter, RandomStream, Tensor, ops
from turret_tpu.backend import TpuBackend

Make = Callable[..., Any]


class Table(Module):
    """One matrix, and a buffer."""

    def __init__(self, value: float = 0.1) -> None:
        self.w = Parameter(np.full((4, 8), value, np.float32))
        self.seen = turret.tensor(np.zeros((2, 4), np.float32))

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.w


@pytest.fixture
def x(device: OpenBackend) -> Tensor:
    return turret.tensor(np.ones((2, 4), np.float32), backend=device)


@pytest.fixture
def nan(device: OpenBackend) -> Tensor:
    return turret.tensor(np.full((2, 4), np.nan, np.float32), backend=device)


@pytest.fixture
def table(device: OpenBackend) -> Callable[[], Table]:
    def build() -> Table:
        with use_backend(device):
            return Table()

    return build


def adam(table: Table) -> Adam:
    return Adam(table.named_parameters(), lr=0.1)


@pytest.mark.parametrize("bad", [0, 1])
def test_of_two_optimizers_both_step_or_none(table: Any, x: Tensor, nan: Tensor, bad: int) -> None:
    tables = table(), table()
    optimizers = [adam(each) for each in tables]

    def step(*inputs: Tensor) -> None:
        for each, optimizer, rows in zip(tables, optimizers, inputs, strict=True):
            optimizer.step(turret.backward(each(rows).sum()))

    captured = turret.capture(step, state=[*tables, *optimizers])
    captured(x, x)
    before = [(each.w.numpy().tobytes(), optimizer.steps) for each, optimizer in zip(tables, optimizers, strict=True)]
    with pytest.raises(NonFiniteError, match="step 2: the gradient of 'w'"):
        captured(*((nan, x) if bad == 0 else (x, nan)))
    after = [(each.w.numpy().tobytes(), optimizer.steps) for each, optimizer in zip(tables, optimizers, strict=True)]
    assert after == before
    captured(x, x)
    assert [optimizer.steps for optimizer in optimizers] == [2, 2]


def test_what_else_a_refused_step_writes_stays_as_it_was(table: Any, x: Tensor, nan: Tensor) -> None:
    average, learner = table(), table()
    optimizer = adam(learner)

    def step(rows: Tensor) -> None:
        average.w.assign((average.w * 0.5).value)
        loss = learner(rows).sum()
        loss.backward()
        optimizer.step()

    captured = turret.capture(step, state=[average, learner, optimizer])
    captured(x)
    with pytest.raises(NonFiniteError):
        captured(nan)
    assert average.w.numpy()[0, 0] == np.float32(0.05)
    assert learner.w.grad is None
    captured(x)
    assert average.w.numpy()[0, 0] == np.float32(0.025)


def test_a_loss_that_is_not_finite_refuses_the_step(table: Any, x: Tensor) -> None:
    learner = table()
    optimizer = adam(learner)

    def step(rows: Tensor, factor: Tensor) -> None:
        loss = learner(rows).sum()
        optimizer.step(turret.backward(loss), loss=loss * factor)

    factors = [turret.tensor(value, backend=x.backend) for value in (1.0, float("inf"))]
    captured = turret.capture(step, state=[learner, optimizer])
    captured(x, factors[0])
    before = learner.w.numpy().tobytes()
    for run in (captured, step):
        with pytest.raises(NonFiniteError, match=r"step 2: the loss is -?inf; nothing was changed"):
            run(x, factors[1])
        assert (learner.w.numpy().tobytes(), optimizer.steps) == (before, 1)


def test_a_buffer_that_the_step_replaces_is_a_result(table: Any, x: Tensor) -> None:
    counting = table()

    def step(rows: Tensor) -> Tensor:
        counting.seen = counting.seen + rows
        return counting(rows)

    captured = turret.capture(step, state=[counting])
    for _ in range(3):
        captured(x)
    assert counting.seen.numpy().tolist() == np.full((2, 4), 3.0).tolist()
    assert captured.compiles == 1


def test_a_tensor_that_comes_twice_is_one(device: OpenBackend) -> None:
    t = turret.tensor(np.ones(2, np.float32), requires_grad=True, backend=device)
    captured = turret.capture(lambda a, b: turret.backward((a * b).sum())[a])
    assert captured(t, t).numpy().tolist() == [2.0, 2.0]
    other = turret.tensor(np.ones(2, np.float32), requires_grad=True, backend=device)
    assert captured(t, other).numpy().tolist() == [1.0, 1.0]


def test_an_argument_of_the_state_is_the_state(table: Any, x: Tensor) -> None:
    learner = table()
    optimizer = adam(learner)

    def step(rows: Tensor, w: Tensor) -> None:
        optimizer.step(turret.backward(learner(rows).sum() * 0.0 + (w * w).sum()))

    turret.capture(step, state=[learner, optimizer])(x, learner.w)
    np.testing.assert_allclose(learner.w.numpy(), 0.0, atol=1e-4)


OUTSIDE: dict[str, Callable[[Tensor, Table], Tensor]] = {
    "detached": lambda x, outside: x @ outside.w.detach(),
    "chosen": lambda x, outside: ops.argmax(outside.w, 1),
    "compared": lambda x, outside: ops.equal(outside.w, outside.w),
    "cast": lambda x, outside: outside.w.cast("float32"),
    "returned": lambda x, outside: outside.w,
}


@pytest.mark.parametrize("how", OUTSIDE)
def test_a_parameter_outside_the_state_is_refused_however_it_is_read(table: Any, x: Tensor, how: str) -> None:
    outside = table()
    with pytest.raises(CaptureError, match="state"):
        turret.capture(lambda rows: OUTSIDE[how](rows, outside))(x)


def test_another_opening_is_another_program(table: Any, x: Tensor) -> None:
    other = OpenBackend.wrap(x.backend.info, TpuBackend("cpu"), "cpu")
    moving = table()
    captured = turret.capture(moving, state=[moving])
    captured(x)
    moving.to(other)
    assert captured(turret.tensor(x.numpy(), backend=other)).backend is other
    assert captured.compiles == 2


def test_named_tuples_of_one_name_are_told_apart(device: OpenBackend) -> None:
    first, second = namedtuple("Pair", "a b"), namedtuple("Pair", "b a")  # type: ignore[misc]
    one, zero = (turret.tensor(value, backend=device) for value in (1.0, 0.0))
    captured = turret.capture(lambda pair: pair.a - pair.b)
    assert captured(first(a=one, b=zero)).item() == captured(second(a=one, b=zero)).item() == 1.0


def test_what_cannot_be_made_again_is_refused(x: Tensor) -> None:
    class Own(list[Any]):
        pass

    for bad in (Own([x]), {x: 1}):
        with pytest.raises(CaptureError, match="wanted a Tensor"):
            turret.capture(lambda thing: x)(bad)
    with pytest.raises(CaptureError, match="returned dict"):
        turret.capture(lambda rows: {rows: rows})(x)


def test_a_compiler_may_ask_for_the_step_again(table: Any, x: Tensor) -> None:
    learner = table()
    captured = turret.capture(learner, state=[learner])
    want = captured(x).numpy()
    jax.clear_caches()
    np.testing.assert_array_equal(captured(x).numpy(), want)


def test_a_captured_function_may_be_used_in_a_captured_step(table: Any, x: Tensor, nan: Tensor) -> None:
    learner = table()
    optimizer = adam(learner)
    inner = turret.capture(lambda rows: learner(rows).sum(), state=[learner])
    for enabled in (True, False):
        outer = turret.capture(
            lambda rows: optimizer.step(turret.backward(inner(rows))) and None,
            state=[learner, optimizer],
            enabled=enabled,
        )
        outer(x)
        with pytest.raises(NonFiniteError, match="the gradient of 'w'"):
            outer(nan)


def test_a_failed_capture_takes_no_random_numbers(table: Any, x: Tensor) -> None:
    stream = RandomStream(3, backend=x.backend)

    def step(rows: Tensor) -> Tensor:
        return rows + float(stream.uniform(1).item())

    captured = turret.capture(step, state=[stream])
    for _ in range(2):
        with pytest.raises(CaptureError):
            captured(x)
    assert stream.counter == 0


def test_two_threads_may_capture_over_one_model(table: Any, x: Tensor) -> None:
    shared = table()
    inside, go = threading.Event(), threading.Event()

    def slow(rows: Tensor) -> Tensor:
        y = shared(rows)
        inside.set()
        go.wait(0.2)
        return y

    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(turret.capture(slow, state=[shared])(x).numpy()))
    first.start()
    inside.wait(20)
    results.append(turret.capture(lambda rows: shared(rows) * 2.0, state=[shared])(x).numpy())
    first.join()
    assert sorted(float(r[0, 0]) for r in results) == pytest.approx([0.4, 0.8])
    assert shared.w.numpy()[0, 0] == np.float32(0.1)


def test_what_a_program_contains_cannot_be_changed(table: Any) -> None:
    optimizer = adam(table())
    for name, value in (("betas", (0.0, 0.0)), ("eps", 1.0), ("max_norm", 1.0)):
        with pytest.raises(AttributeError):
            setattr(optimizer, name, value)
