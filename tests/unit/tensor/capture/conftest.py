from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import turret
from turret.nn import Init, Linear, Module
from turret.optim import Adam
from turret.registry import OpenBackend, open_backend, use_backend
from turret.tensor import Tensor, ops

LR = 1e-2


@pytest.fixture(scope="session", params=["tpu:cpu", "cuda:emulated"])
def device(request: pytest.FixtureRequest) -> OpenBackend:
    """A backend that compiles, and runs on any machine: by tracing arrays, or by recording what is queued."""
    return open_backend(request.param)


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


@pytest.fixture(scope="session")
def make() -> Callable[..., Learner]:
    """Makes a learner on a backend."""
    return Learner
