"""The packed stand-in for a linear layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.nn import Init, Linear, Module, PackedLinear
from turret.nn.linear import project
from turret.optim import Adam
from turret.quant import PackedWeight
from turret.registry import OpenBackend, open_backend, use_backend
from turret.spi import ConfigError, NonFiniteError, ScaleCode, ShapeError
from turret.tensor import Parameter, Tensor, backward, capture, ops, tensor

RANDOM = np.random.default_rng(7)
SCALES: list[ScaleCode] = ["float32", "dynamic", "linear"]


def host(*shape: int) -> Any:
    return RANDOM.normal(size=shape).astype(np.float32)


def linear_of(outputs: int, inputs: int, *, bias: bool = True, seed: int | None = None) -> Linear:
    made = Linear(inputs, outputs, init=Init(0), bias=bias)
    draw = RANDOM if seed is None else np.random.default_rng(seed)
    for parameter in made.parameters():
        parameter.assign(tensor(draw.normal(size=parameter.shape).astype(np.float32)).value)
    return made


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("bias", [True, False])
def test_it_stands_in_for_the_linear_it_was_made_of(backend: OpenBackend, scales: ScaleCode, bias: bool) -> None:
    linear, x = linear_of(33, 70, bias=bias), tensor(host(2, 5, 70))
    before = {name: value.tobytes() for name, value in linear.state_dict().items()}
    packed = PackedLinear.of(linear, block=32, scales=scales)
    weight = packed.weight.unpack().numpy().astype(np.float64)
    shift = 0.0 if linear.bias is None else linear.bias.numpy()
    np.testing.assert_allclose(packed(x).numpy(), x.numpy() @ weight.T + shift, rtol=1e-4, atol=3e-4)
    assert packed(x).shape == linear(x).shape
    assert (packed.weight.shape, packed.weight.block, packed.weight.scale_code) == ((33, 70), 32, scales)
    assert {name: value.tobytes() for name, value in linear.state_dict().items()} == before


def test_the_bias_is_a_copy_as_trainable_as_it_was(backend: OpenBackend) -> None:
    linear = linear_of(4, 32)
    assert linear.bias is not None
    for trainable in (True, False):
        linear.bias.trainable = trainable
        packed = PackedLinear.of(linear)
        assert packed.bias is not None
        assert packed.bias.trainable is trainable
        assert packed.bias.numpy().tobytes() == linear.bias.numpy().tobytes()
        linear.bias.assign(tensor(host(4)).value)
        assert packed.bias.numpy().tobytes() != linear.bias.numpy().tobytes()


def test_only_the_bias_is_a_parameter_and_all_is_held(backend: OpenBackend) -> None:
    packed = PackedLinear.of(linear_of(4, 32), scales="dynamic")
    assert [name for name, _ in packed.named_parameters()] == ["bias"]
    assert list(packed.state_dict()) == ["bias"]
    held = {id(t) for t in packed.held_tensors()}
    assert held >= {id(t) for t in (packed.codes, packed.scales, packed.group_scales, packed.offset, packed.bias)}
    x = tensor(host(2, 32), requires_grad=True)
    found = backward(packed(x).sum())
    assert found[x].shape == (2, 32)
    assert packed.bias is not None
    assert found[packed.bias].numpy().tolist() == [2.0] * 4


def test_project_calls_it_as_it_is(backend: OpenBackend) -> None:
    linear, packed, x = linear_of(4, 32), PackedLinear.of(linear_of(6, 32)), tensor(host(100, 32))
    one, two = project(x, linear, packed)  # type: ignore[arg-type]
    np.testing.assert_allclose(one.numpy(), linear(x).numpy(), rtol=1e-5, atol=1e-5)
    assert two.numpy().tobytes() == packed(x).numpy().tobytes()


class Adapted(Module):
    """A packed layer and a trained one on top."""

    def __init__(self, scales: ScaleCode) -> None:
        self.below, self.above = PackedLinear.of(linear_of(16, 32, seed=1), scales=scales), linear_of(4, 16, seed=2)

    def loss(self, x: Tensor) -> Tensor:
        out = self.above(ops.gelu(self.below(x)))
        return (out * out).mean()


@pytest.mark.parametrize(
    ("spec", "scales"),
    [
        ("tpu:cpu", "float32"),
        ("metal:cpu", "linear"),
        pytest.param("tpu:cpu", "linear", marks=pytest.mark.slow),
        pytest.param("metal:cpu", "float32", marks=pytest.mark.slow),
    ],
)
def test_a_captured_step_trains_around_it(spec: str, scales: ScaleCode) -> None:
    with use_backend(spec):
        runs = []
        for captured in (True, False):
            net, inputs = Adapted(scales), np.random.default_rng(9).normal(size=(3, 3, 32)).astype(np.float32)
            adam = Adam(net.named_parameters(), lr=1e-2)
            before = {name: array.tobytes() for name, array in net.below.weight.arrays().items()}

            def step(x: Tensor, net: Adapted = net, adam: Adam = adam) -> Tensor:
                loss = net.loss(x)
                adam.step(backward(loss))
                return loss

            run = capture(step, state=[net, adam], enabled=captured)
            losses = [run(tensor(x)).item() for x in inputs]
            assert {name: array.tobytes() for name, array in net.below.weight.arrays().items()} == before
            assert run.compiles == (1 if captured else 0)
            runs.append((losses, net.above.weight.numpy()))
        np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=1e-4)
        np.testing.assert_allclose(runs[0][1], runs[1][1], rtol=1e-3, atol=1e-4)


def test_a_captured_step_sees_a_weight_that_was_loaded_later() -> None:
    """The arrays are inputs of the program, no constants of it."""
    with use_backend("tpu:cpu"):
        layer, other = PackedLinear.of(linear_of(4, 32, bias=False)), PackedLinear.of(linear_of(4, 32, bias=False))
        run = capture(layer.__call__, state=[layer])
        x = tensor(host(2, 32))
        first = run(x).numpy()
        layer.codes.value, layer.scales.value = other.codes.value, other.scales.value
        assert run(x).numpy().tobytes() != first.tobytes()
        np.testing.assert_allclose(run(x).numpy(), other(x).numpy(), rtol=1e-5, atol=1e-5)
        assert run.compiles == 1


@pytest.mark.parametrize("scales", SCALES)
def test_a_move_takes_all_of_it_along(scales: ScaleCode, make_backend: Callable[..., OpenBackend]) -> None:
    with use_backend("cpu"):
        net = Adapted(scales)
        x = host(3, 32)
        want, before = net.loss(tensor(x)).item(), {k: v.tobytes() for k, v in net.below.weight.arrays().items()}
    for target in (open_backend("metal:cpu"), make_backend(), open_backend("cpu")):
        for _ in range(2):
            assert net.to(target) is net
            assert net.below.weight.backend is target
            assert {k: v.tobytes() for k, v in net.below.weight.arrays().items()} == before
        assert net.loss(tensor(x, backend=target)).item() == pytest.approx(want, rel=1e-4)


def test_parts_that_do_not_fit_are_refused(backend: OpenBackend) -> None:
    weight = PackedWeight.pack(tensor(host(4, 32)))
    with pytest.raises(ShapeError, match=r"got bias \(5,\) for a weight \(4, 32\); wanted \(4,\)"):
        PackedLinear(weight, Parameter(host(5)))
    with pytest.raises(ShapeError, match=r"got a weight \(2, 3, 4\); wanted \(outputs, inputs\)"):
        PackedLinear(PackedWeight.pack(tensor(host(2, 3, 4))))
    linear = linear_of(4, 32)
    with pytest.raises(ConfigError, match="blocks of 48"):
        PackedLinear.of(linear, block=48)
    with pytest.raises(ShapeError, match=r"got x \(2, 31\) and a packed weight \(4, 32\)"):
        PackedLinear(weight)(tensor(host(2, 31)))
    linear.weight.assign(tensor(np.full((4, 32), np.nan, np.float32)).value)
    with pytest.raises(NonFiniteError, match="128 NaN or infinite"):
        PackedLinear.of(linear)


def test_what_is_no_layer_no_weight_and_no_bias_is_refused(backend: OpenBackend) -> None:
    weight = PackedWeight.pack(tensor(host(5, 32)))
    wrong: list[Any] = [np.zeros(5), [0.0] * 5, tensor(host(5))]
    for bias in wrong:
        with pytest.raises(ConfigError, match=f"got {type(bias).__name__} for a bias; wanted a Parameter or None"):
            PackedLinear(weight, bias)
    for other in (*wrong, None, weight.packed):
        with pytest.raises(ConfigError, match=f"got {type(other).__name__} for a weight; wanted a PackedWeight"):
            PackedLinear(other)
        with pytest.raises(ConfigError, match=rf"PackedLinear.of got {type(other).__name__}; wanted a Linear"):
            PackedLinear.of(other)
