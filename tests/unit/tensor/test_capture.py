"""A captured step is the step: same results, one program, old state kept where it fails, and errors that name a line."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import turret
from turret.nn import Init, Linear, Module
from turret.optim import Adam
from turret.registry import OpenBackend, open_backend, use_backend
from turret.spi import BackendMismatch, CaptureError, ConfigError, NonFiniteError, StaleGraph
from turret.tensor import Captured, CaptureWarning, RandomStream, Tensor, ops

LR = 1e-2


@pytest.fixture(scope="module")
def device() -> OpenBackend:
    """A backend that compiles, and runs on any machine."""
    return open_backend("tpu:cpu")


class Net(Module):
    """Two layers; `loss` is the mean square of what comes out."""

    def __init__(self) -> None:
        init = Init(3)
        self.inner, self.outer = Linear(4, 8, init=init), Linear(8, 2, init=init)
        self.shift = turret.tensor([0.5, -0.5])

    def loss(self, x: Tensor) -> Tensor:
        y = self.outer(ops.gelu(self.inner(x))) + self.shift
        return (y * y).mean()


class Learner:
    """A net with its optimizer and a step over both."""

    def __init__(self, device: OpenBackend, *, enabled: bool = True, state: str = "both") -> None:
        self.device = device
        with use_backend(device):
            self.net = Net()
        self.adam = Adam(self.net.named_parameters(), lr=LR)
        members = {"both": [self.net, self.adam], "net": [self.net], "adam": [self.adam]}[state]
        self.step = turret.capture(self._step, state=members, enabled=enabled)

    def _step(self, x: Tensor) -> Tensor:
        loss = self.net.loss(x)
        self.adam.step(turret.backward(loss))
        return loss

    def put(self, rows: int = 3, seed: int = 0) -> Tensor:
        host = np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)
        return turret.tensor(host, backend=self.device)

    def state(self) -> dict[str, bytes]:
        arrays = {**self.net.state_dict(), **self.adam.state_dict()}
        return {name: value.tobytes() for name, value in arrays.items()} | {"steps": bytes([self.adam.steps])}


def line_of(function: Callable[..., Any], marker: str) -> str:
    """file:line of the source line that holds a marker."""
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(i for i, line in enumerate(lines) if marker in line)}"


def test_captured_steps_are_the_steps(device: OpenBackend) -> None:
    captured, eager = Learner(device), Learner(device, enabled=False)
    for n in range(5):
        got, want = (learner.step(learner.put(seed=n)).item() for learner in (captured, eager))
        assert got == pytest.approx(want, rel=1e-5)
        assert captured.adam.stats is not None and eager.adam.stats is not None
        assert captured.adam.stats.gradient_norm == pytest.approx(eager.adam.stats.gradient_norm, rel=1e-4)
    for (name, p), q in zip(captured.net.named_parameters(), eager.net.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
    assert (captured.step.compiles, eager.step.compiles) == (1, 0)
    assert captured.adam.steps == eager.adam.steps == 5


def test_rates_and_corrections_change_without_another_program(device: OpenBackend) -> None:
    captured, eager = Learner(device), Learner(device, enabled=False)
    for n, rate in enumerate([1e-2, 3e-2, 0.0, 1e-3]):
        before = captured.net.state_dict()
        for learner in (captured, eager):
            learner.adam.lr = rate
            learner.step(learner.put(seed=n))
        if rate == 0.0:
            assert all((before[name] == value).all() for name, value in captured.net.state_dict().items())
    for p, q in zip(captured.net.parameters(), eager.net.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-4, atol=1e-6)
    assert captured.step.compiles == 1


def test_a_rate_that_is_no_rate_is_refused_before_anything_runs(device: OpenBackend) -> None:
    learner = Learner(device)
    learner.step(learner.put())
    before, learner.adam.lr = learner.state(), float("nan")
    with pytest.raises(ConfigError, match="learning rate nan"):
        learner.step(learner.put())
    assert learner.state() == before


def test_a_new_shape_compiles_once(device: OpenBackend) -> None:
    learner = Learner(device)
    for rows in (3, 5, 3, 5, 3):
        learner.step(learner.put(rows))
    assert learner.step.compiles == 2


def test_recording_and_not_are_two_programs(device: OpenBackend) -> None:
    learner = Learner(device, state="net")
    loss = turret.capture(learner.net.loss, state=[learner.net])
    with turret.no_grad():
        quiet = loss(learner.put()).item()
    assert loss(learner.put()).item() == pytest.approx(quiet)
    assert loss.compiles == 2


@pytest.mark.parametrize("how", ["shape", "number"])
def test_a_recompile_storm_warns_with_its_cause(device: OpenBackend, how: str) -> None:
    step = turret.capture(lambda x, scale: x * scale)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(1, 10):
            x = turret.tensor(np.ones(n if how == "shape" else 2, np.float32), backend=device)
            step(x, 2.0 if how == "shape" else float(n))
    (text,) = [str(w.message) for w in caught if w.category is CaptureWarning]
    assert "compiled 9 times" in text
    cause = "argument 0 came in 9 forms" if how == "shape" else "argument 1 came in 9 forms (1.0, 2.0, 3.0, ...)"
    assert cause in text
    assert ("pad it to a few shapes" if how == "shape" else "pass it as a Tensor") in text


def test_what_is_not_finite_changes_nothing_and_names_the_tensor(device: OpenBackend) -> None:
    learner = Learner(device)
    learner.step(learner.put())
    before = learner.state()
    with pytest.raises(NonFiniteError, match=r"step 2: the gradient of 'inner\.weight'.*nothing was changed"):
        learner.step(turret.tensor(np.full((3, 4), np.nan, np.float32), backend=device))
    assert learner.state() == before
    assert learner.adam.stats is not None and learner.adam.stats.step == 1
    learner.step(learner.put())
    assert learner.adam.steps == 2
    assert learner.step.compiles == 1


def test_a_result_may_be_any_nest_of_tensors(device: OpenBackend) -> None:
    def step(pair: tuple[Tensor, Tensor], *, options: dict[str, Any]) -> dict[str, Any]:
        first, second = pair
        return {"sum": first + second, "more": [first * options["factor"], None, (second,)]}

    x, y = (turret.tensor([float(n), 2.0], backend=device) for n in (1, 3))
    got = turret.capture(step)((x, y), options={"factor": 3, "name": "any"})
    assert got["sum"].numpy().tolist() == [4.0, 4.0]
    assert got["more"][0].numpy().tolist() == [3.0, 6.0]
    assert got["more"][1] is None
    assert got["more"][2][0].numpy().tolist() == [3.0, 2.0]


def test_a_forward_pass_gives_no_parameter_away(device: OpenBackend) -> None:
    learner = Learner(device)
    forward = turret.capture(learner.net.loss, state=[learner.net])
    held = [p.value for p in learner.net.parameters()]
    first = forward(learner.put()).item()
    assert forward(learner.put()).item() == first
    assert all(p.value is value for p, value in zip(learner.net.parameters(), held, strict=True))
    assert np.isfinite(held[0]).all()


def test_an_update_by_hand_arrives_in_the_parameters(device: OpenBackend) -> None:
    learner = Learner(device, state="net")

    def descend(x: Tensor) -> Tensor:
        loss = learner.net.loss(x)
        found = turret.backward(loss)
        for p in learner.net.parameters():
            p.assign((p.detach() - found[p] * 0.1).value)
        return loss

    step = turret.capture(descend, state=[learner.net])
    want = Learner(device, enabled=False)
    loss = want.net.loss(want.put())
    found = turret.backward(loss)
    hosts = [p.numpy() - 0.1 * found[p].numpy() for p in want.net.parameters()]
    assert step(learner.put()).item() == pytest.approx(loss.item(), rel=1e-5)
    for p, host in zip(learner.net.parameters(), hosts, strict=True):
        np.testing.assert_allclose(p.numpy(), host, rtol=1e-4, atol=1e-6)
    assert step(learner.put()).item() < loss.item()
    assert step.compiles == 1


def test_a_changed_buffer_is_read_anew(device: OpenBackend) -> None:
    learner = Learner(device)
    forward = turret.capture(learner.net.loss, state=[learner.net])
    before = forward(learner.put()).item()
    learner.net.shift = turret.tensor([10.0, 10.0], backend=device)
    assert forward(learner.put()).item() > before + 50


def test_two_parameters_with_one_array_are_both_given_away(device: OpenBackend) -> None:
    learner = Learner(device)
    inner = learner.net.inner
    inner.weight.assign(learner.net.inner.weight.value)
    learner.adam._moments.first[0].value = learner.adam._moments.second[0].value
    learner.step(learner.put())
    assert learner.adam.steps == 1


def test_a_graph_from_before_the_step_is_stale_after_it(device: OpenBackend) -> None:
    learner = Learner(device)
    loss = learner.net.loss(learner.put())
    learner.step(learner.put())
    with pytest.raises(StaleGraph):
        loss.backward()


def test_inside_another_capture_it_is_part_of_that_program(device: OpenBackend) -> None:
    learner = Learner(device)
    outer = turret.capture(lambda x: learner.step(x) * 2.0, state=[learner.net, learner.adam])
    assert outer(learner.put()).item() > 0
    assert (outer.compiles, learner.step.compiles, learner.adam.steps) == (1, 0, 1)


def test_random_numbers_are_those_of_the_eager_step(device: OpenBackend) -> None:
    def noisy(stream: RandomStream, enabled: bool) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        def step(x: Tensor) -> tuple[Tensor, Tensor]:
            return x + stream.normal(2, 3), stream.uniform(4)

        return turret.capture(step, state=[stream], enabled=enabled)

    streams = [RandomStream(7, backend=device) for _ in range(2)]
    captured, eager = noisy(streams[0], True), noisy(streams[1], False)
    seen = set()
    for _ in range(4):
        x = turret.tensor(np.zeros((2, 3), np.float32), backend=device)
        got, want = captured(x), eager(x)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        seen.add(got[1].numpy().tobytes())
    assert len(seen) == 4
    assert [stream.counter for stream in streams] == [8, 8]
    assert isinstance(captured, Captured) and captured.compiles == 1


def test_a_failed_step_is_explained_with_its_own_random_numbers(device: OpenBackend) -> None:
    learner, stream = Learner(device), RandomStream(1, backend=device)
    drawn: list[bytes] = []

    def step(x: Tensor) -> None:
        noise = stream.uniform(4)
        if x.requires_grad is False and not isinstance(x.value, jax.core.Tracer):
            drawn.append(noise.numpy().tobytes())
        learner.adam.step(turret.backward(learner.net.loss(x + noise)))

    captured = turret.capture(step, state=[learner.net, learner.adam, stream])
    captured(learner.put())
    with pytest.raises(NonFiniteError, match="step 2"):
        captured(turret.tensor(np.full((3, 4), np.inf, np.float32), backend=device))
    assert drawn == [RandomStream(1, backend=device, counter=1).uniform(4).numpy().tobytes()]
    assert stream.counter == 2


def test_random_numbers_of_a_stream_outside_the_state_are_refused(device: OpenBackend) -> None:
    stream = RandomStream(1, backend=device)
    with pytest.raises(CaptureError, match="stream outside the captured state"):
        turret.capture(lambda x: x + stream.uniform(1))(turret.tensor([1.0], backend=device))


def test_where_nothing_compiles_the_step_simply_runs(backend: OpenBackend) -> None:
    learner = Learner(backend)
    first = learner.step(learner.put())
    assert first.node is None
    assert learner.step(learner.put()).item() < first.item()
    assert (learner.step.compiles, learner.adam.steps) == (0, 2)


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


HOST_READS = [
    reads_an_item,
    copies_to_the_host,
    branches,
    makes_a_tensor,
    converts_natively,
    branches_natively,
    converts_to_numpy,
]


@pytest.mark.parametrize("step", HOST_READS)
def test_a_host_read_names_the_line(device: OpenBackend, step: Callable[[Tensor], Tensor]) -> None:
    captured = turret.capture(step)
    with pytest.raises(CaptureError) as caught:
        captured(turret.tensor([1.0, 2.0], backend=device))
    assert line_of(step, "# here") in str(caught.value)
    assert captured.compiles == 0


def test_a_host_read_deep_in_a_model_names_the_models_line(device: OpenBackend) -> None:
    learner = Learner(device)
    learner.net.inner.__class__ = Curious
    with pytest.raises(CaptureError) as caught:
        learner.step(learner.put())
    assert line_of(Curious.__call__, "# here") in str(caught.value)


class Curious(Linear):
    """A layer that looks at its input."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x * x.numpy().mean())  # here


def test_a_failed_capture_leaves_everything_as_it_was(device: OpenBackend) -> None:
    learner = Learner(device)
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
def test_state_that_was_not_named_is_refused(device: OpenBackend, state: str, who: str) -> None:
    learner = Learner(device, state=state)
    if state == "adam":  # every parameter is the optimizer's too, and a buffer alone is a constant
        learner.step(learner.put())
        assert learner.adam.steps == 1
        return
    with pytest.raises(CaptureError, match=who):
        learner.step(learner.put())


def test_a_parameter_outside_the_state_is_refused(device: OpenBackend) -> None:
    learner = Learner(device)
    for recording in (True, False):
        with pytest.raises(CaptureError, match=r"linear reads a parameter of shape \(8, 4\).*not part of the captured"):
            if recording:
                turret.capture(learner.net.loss)(learner.put())
            else:
                with turret.no_grad():
                    turret.capture(learner.net.loss)(learner.put())


def test_a_rate_inside_the_step_is_refused(device: OpenBackend) -> None:
    learner = Learner(device)

    def step(x: Tensor) -> None:
        learner.adam.step(turret.backward(learner.net.loss(x)), lr=0.1)  # here

    with pytest.raises(CaptureError, match="set optimizer.lr before the call") as caught:
        turret.capture(step, state=[learner.net, learner.adam])(learner.put())
    assert line_of(step, "# here") in str(caught.value)


def test_two_updates_in_one_step_are_refused(device: OpenBackend) -> None:
    learner = Learner(device)

    def twice(x: Tensor) -> None:
        learner._step(x)
        learner._step(x)

    with pytest.raises(CaptureError, match="called twice in one captured step"):
        turret.capture(twice, state=[learner.net, learner.adam])(learner.put())


@pytest.mark.parametrize("when", ["before", "after"])
def test_gradients_on_parameters_are_refused(device: OpenBackend, when: str) -> None:
    learner = Learner(device)
    step = turret.capture(lambda x: learner.net.loss(x).backward(), state=[learner.net])
    if when == "before":
        learner.net.loss(learner.put()).backward()
    with pytest.raises(CaptureError, match="has a gradient from before" if when == "before" else "left a gradient"):
        step(learner.put())


def test_a_state_that_changes_its_shape_is_refused(device: OpenBackend) -> None:
    learner = Learner(device)

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
