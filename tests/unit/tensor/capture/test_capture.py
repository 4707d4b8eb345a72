"""A captured step is the step: same results, one program, and the old state kept where it fails."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import turret
from turret.registry import OpenBackend
from turret.spi import ConfigError, NonFiniteError, StaleGraph
from turret.tensor import Captured, CaptureWarning, RandomStream, Tensor
from turret.tensor.tracing import capturing

Make = Callable[..., Any]


def test_captured_steps_are_the_steps(device: OpenBackend, make: Make) -> None:
    captured, eager = make(device), make(device, enabled=False)
    for n in range(5):
        got, want = (learner.step(learner.put(seed=n)).item() for learner in (captured, eager))
        assert got == pytest.approx(want, rel=1e-5)
        assert captured.adam.stats is not None and eager.adam.stats is not None
        assert captured.adam.stats.gradient_norm == pytest.approx(eager.adam.stats.gradient_norm, rel=1e-4)
    for (name, p), q in zip(captured.net.named_parameters(), eager.net.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
    assert (captured.step.compiles, eager.step.compiles) == (1, 0)
    assert captured.adam.steps == eager.adam.steps == 5


def test_rates_and_corrections_change_without_another_program(device: OpenBackend, make: Make) -> None:
    captured, eager = make(device), make(device, enabled=False)
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


def test_a_rate_that_is_no_rate_is_refused_before_anything_runs(device: OpenBackend, make: Make) -> None:
    learner = make(device)
    learner.step(learner.put())
    before, learner.adam.lr = learner.state(), float("nan")
    with pytest.raises(ConfigError, match="learning rate nan"):
        learner.step(learner.put())
    assert learner.state() == before


def test_a_new_shape_compiles_once(device: OpenBackend, make: Make) -> None:
    learner = make(device)
    for rows in (3, 5, 3, 5, 3):
        learner.step(learner.put(rows))
    assert learner.step.compiles == 2


def test_recording_and_not_are_two_programs(device: OpenBackend, make: Make) -> None:
    learner = make(device, state="net")
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


def test_numbers_that_only_look_equal_are_other_programs(device: OpenBackend) -> None:
    step = turret.capture(lambda x, scale: x * scale)
    x = turret.tensor([1.0], backend=device)
    for number, want in ((0.0, "0.0"), (-0.0, "-0.0"), (1, "1.0"), (True, "1.0"), (math.nan, "nan"), (math.nan, "nan")):
        assert str(step(x, number).numpy()[0]) == want
    assert step.compiles == 5


def test_what_is_not_finite_changes_nothing_and_names_the_tensor(device: OpenBackend, make: Make) -> None:
    learner = make(device)
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


def test_a_forward_pass_gives_no_parameter_away(device: OpenBackend, make: Make) -> None:
    learner = make(device)
    forward = turret.capture(learner.net.loss, state=[learner.net])
    held = [p.value for p in learner.net.parameters()]
    first = forward(learner.put()).item()
    assert forward(learner.put()).item() == first
    assert all(p.value is value for p, value in zip(learner.net.parameters(), held, strict=True))
    assert np.isfinite(device.tools.storage.to_host(held[0])).all()


def test_an_update_by_hand_arrives_in_the_parameters(device: OpenBackend, make: Make) -> None:
    learner = make(device, state="net")

    def descend(x: Tensor) -> Tensor:
        loss = learner.net.loss(x)
        found = turret.backward(loss)
        for p in learner.net.parameters():
            p.assign((p.detach() - found[p] * 0.1).value)
        return loss

    step = turret.capture(descend, state=[learner.net])
    want = make(device, enabled=False)
    loss = want.net.loss(want.put())
    found = turret.backward(loss)
    hosts = [p.numpy() - 0.1 * found[p].numpy() for p in want.net.parameters()]
    assert step(learner.put()).item() == pytest.approx(loss.item(), rel=1e-5)
    for p, host in zip(learner.net.parameters(), hosts, strict=True):
        np.testing.assert_allclose(p.numpy(), host, rtol=1e-4, atol=1e-6)
    assert step(learner.put()).item() < loss.item()
    assert step.compiles == 1


def test_a_changed_buffer_is_read_anew(device: OpenBackend, make: Make) -> None:
    learner = make(device)
    forward = turret.capture(learner.net.loss, state=[learner.net])
    before = forward(learner.put()).item()
    learner.net.shift = turret.tensor([10.0, 10.0], backend=device)
    assert forward(learner.put()).item() > before + 50


def test_two_parameters_with_one_array_are_both_given_away(device: OpenBackend, make: Make) -> None:
    learner = make(device)
    inner = learner.net.inner
    inner.weight.assign(learner.net.inner.weight.value)
    learner.adam._moments.first[0].value = learner.adam._moments.second[0].value
    learner.step(learner.put())
    assert learner.adam.steps == 1


def test_a_graph_from_before_the_step_is_stale_after_it(device: OpenBackend, make: Make) -> None:
    learner = make(device)
    loss = learner.net.loss(learner.put())
    learner.step(learner.put())
    with pytest.raises(StaleGraph):
        loss.backward()


def test_inside_another_capture_it_is_part_of_that_program(device: OpenBackend, make: Make) -> None:
    learner = make(device)
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


def test_a_failed_step_is_explained_with_its_own_random_numbers(device: OpenBackend, make: Make) -> None:
    learner, stream = make(device), RandomStream(1, backend=device)
    drawn: list[bytes] = []

    def step(x: Tensor) -> None:
        noise = stream.uniform(4)
        if x.requires_grad is False and capturing() is None:
            drawn.append(noise.numpy().tobytes())
        learner.adam.step(turret.backward(learner.net.loss(x + noise)))

    captured = turret.capture(step, state=[learner.net, learner.adam, stream])
    captured(learner.put())
    with pytest.raises(NonFiniteError, match="step 2"):
        captured(turret.tensor(np.full((3, 4), np.inf, np.float32), backend=device))
    assert drawn == [RandomStream(1, backend=device, counter=1).uniform(4).numpy().tobytes()]
    assert stream.counter == 2


def test_where_nothing_compiles_the_step_simply_runs(backend: OpenBackend, make: Make) -> None:
    learner = make(backend)
    first = learner.step(learner.put())
    assert first.node is None
    assert learner.step(learner.put()).item() < first.item()
    assert (learner.step.compiles, learner.adam.steps) == (0, 2)
