"""What a captured step may not do, each refused with the line of the user's that did it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import turret
from turret.nn import Linear
from turret.registry import OpenBackend
from turret.spi import BackendMismatch, CaptureError
from turret.tensor import RandomStream, Tensor, ops

Make = Callable[..., Any]


def line_of(function: Callable[..., Any], marker: str) -> str:
    """file:line of the source line that holds a marker."""
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(i for i, line in enumerate(lines) if marker in line)}"


def reads_an_item(x: Tensor) -> Tensor:
    return x * float(x.sum().item())  # here


def copies_to_the_host(x: Tensor) -> Tensor:
    return x * float(x.numpy()[0])  # here


def branches(x: Tensor) -> Tensor:
    return x if x.sum() else -x  # here


def makes_a_tensor(x: Tensor) -> Tensor:
    return x * turret.tensor(2.0, backend=x.backend)  # here


def converts_natively(x: Tensor) -> Tensor:
    return x * float(x.sum().value)  # here


def branches_natively(x: Tensor) -> Tensor:
    return x if x.sum().value > 0 else -x  # here


def converts_to_numpy(x: Tensor) -> Tensor:
    return x * float(np.asarray(x.value)[0])  # here


HOST_READS = [reads_an_item, copies_to_the_host, branches, makes_a_tensor]
NATIVE_READS = [converts_natively, branches_natively, converts_to_numpy]


@pytest.mark.parametrize("device", ["tpu:cpu"], indirect=True)
@pytest.mark.parametrize("step", NATIVE_READS)
def test_a_value_read_by_the_librarys_own_means_names_the_line(
    device: OpenBackend, step: Callable[[Tensor], Tensor]
) -> None:
    test_a_host_read_names_the_line(device, step)


@pytest.mark.parametrize("step", HOST_READS)
def test_a_host_read_names_the_line(device: OpenBackend, step: Callable[[Tensor], Tensor]) -> None:
    captured = turret.capture(step)
    with pytest.raises(CaptureError) as caught:
        captured(turret.tensor([1.0, 2.0], backend=device))
    assert line_of(step, "# here") in str(caught.value)
    assert captured.compiles == 0


def test_a_host_read_deep_in_a_model_names_the_models_line(device: OpenBackend, make: Make) -> None:
    learner = make(device)
    learner.net.inner.__class__ = Curious
    with pytest.raises(CaptureError) as caught:
        learner.step(learner.put())
    assert line_of(Curious.__call__, "# here") in str(caught.value)


class Curious(Linear):
    """A layer that looks at its input."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x * x.numpy().mean())  # here


def test_a_failed_capture_leaves_everything_as_it_was(device: OpenBackend, make: Make) -> None:
    learner = make(device)
    before = learner.state()
    versions = [p.version for p in learner.net.parameters()]

    def step(x: Tensor) -> Tensor:
        loss = learner.net.loss(x)
        loss.backward()
        learner.adam.step()
        return loss * loss.item()

    with pytest.raises(CaptureError):
        turret.capture(step, state=[learner.net, learner.adam])(learner.put())
    assert learner.state() == before
    assert [p.version for p in learner.net.parameters()] == versions
    assert all(p.grad is None for p in learner.net.parameters())
    learner.step(learner.put())
    assert learner.adam.steps == 1


@pytest.mark.parametrize(("state", "who"), [("net", "Adam outside the captured state"), ("adam", "shift")])
def test_state_that_was_not_named_is_refused(device: OpenBackend, state: str, who: str, make: Make) -> None:
    learner = make(device, state=state)
    if state == "adam":  # every parameter is the optimizer's too, and a buffer alone is a constant
        learner.step(learner.put())
        assert learner.adam.steps == 1
        return
    with pytest.raises(CaptureError, match=who):
        learner.step(learner.put())


def test_a_parameter_outside_the_state_is_refused(device: OpenBackend, make: Make) -> None:
    learner = make(device)
    for recording in (True, False):
        with pytest.raises(CaptureError, match=r"linear reads a parameter of shape \(8, 4\).*not part of the captured"):
            if recording:
                turret.capture(learner.net.loss)(learner.put())
            else:
                with turret.no_grad():
                    turret.capture(learner.net.loss)(learner.put())


def test_a_rate_inside_the_step_is_refused(device: OpenBackend, make: Make) -> None:
    learner = make(device)

    def step(x: Tensor) -> None:
        learner.adam.step(turret.backward(learner.net.loss(x)), lr=0.1)  # here

    with pytest.raises(CaptureError, match=r"set optimizer\.lr before the call") as caught:
        turret.capture(step, state=[learner.net, learner.adam])(learner.put())
    assert line_of(step, "# here") in str(caught.value)


def test_two_updates_in_one_step_are_refused(device: OpenBackend, make: Make) -> None:
    learner = make(device)

    def twice(x: Tensor) -> None:
        learner._step(x)
        learner._step(x)

    with pytest.raises(CaptureError, match="called twice in one captured step"):
        turret.capture(twice, state=[learner.net, learner.adam])(learner.put())


@pytest.mark.parametrize("when", ["before", "after"])
def test_gradients_on_parameters_are_refused(device: OpenBackend, when: str, make: Make) -> None:
    learner = make(device)
    step = turret.capture(lambda x: learner.net.loss(x).backward(), state=[learner.net])
    if when == "before":
        learner.net.loss(learner.put()).backward()
    with pytest.raises(CaptureError, match="has a gradient from before" if when == "before" else "left a gradient"):
        step(learner.put())


def test_a_state_that_changes_its_shape_is_refused(device: OpenBackend, make: Make) -> None:
    learner = make(device)

    def grow(x: Tensor) -> None:
        learner.net.shift.value = ops.concatenate([learner.net.shift, learner.net.shift], axis=0).value

    with pytest.raises(CaptureError, match=r"from shape \(2,\) to \(4,\)"):
        turret.capture(grow, state=[learner.net])(learner.put())
    assert learner.net.shift.shape == (2,)


@pytest.mark.parametrize("bad", [np.ones(2, np.float32), object(), {1, 2}], ids=lambda bad: type(bad).__name__)
def test_an_argument_that_is_no_tensor_says_what_would_be_one(device: OpenBackend, bad: Any) -> None:
    for enabled in (True, False):
        with pytest.raises(CaptureError, match=r"argument 0 of a captured step is \w+; wanted a Tensor"):
            turret.capture(lambda x: x, enabled=enabled)(bad)


def test_a_result_of_the_host_is_refused(device: OpenBackend, backend: OpenBackend) -> None:
    for each in (device, backend):
        with pytest.raises(CaptureError, match=r"returned float as its result\[1\]; wanted Tensors"):
            turret.capture(lambda x: (x, 1.5))(turret.tensor([1.0], backend=each))


def test_tensors_of_two_backends_are_refused(device: OpenBackend, backend: OpenBackend) -> None:
    x, y = (turret.tensor([1.0], backend=each) for each in (device, backend))
    with pytest.raises(BackendMismatch, match="wanted one backend"):
        turret.capture(lambda a, b: a)(x, y)


def test_state_must_be_stateful() -> None:
    with pytest.raises(CaptureError, match=r"got dict in state=; wanted modules, optimizers, caches"):
        turret.capture(lambda x: x, state=[{}])  # type: ignore[list-item]


def test_random_numbers_of_a_stream_outside_the_state_are_refused(device: OpenBackend) -> None:
    stream = RandomStream(1, backend=device)
    with pytest.raises(CaptureError, match="stream outside the captured state"):
        turret.capture(lambda x: x + stream.uniform(1))(turret.tensor([1.0], backend=device))
