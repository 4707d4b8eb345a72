from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret_cpu.backend import CpuBackend

X = npt.NDArray[Any]


@pytest.fixture(scope="session")
def backend() -> CpuBackend:
    return CpuBackend()


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def run_code() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in a Python of its own, warnings as errors but for its own forks, with environment variables added."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
        return subprocess.run(
            [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning:__main__", "-c", textwrap.dedent(code)],
            env=kept | environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def slopes() -> Callable[[Callable[..., X], Sequence[X], X], list[X]]:
    """Central differences of sum(seed * function(*inputs)) with respect to each input, float64."""

    def gradients(function: Callable[..., X], inputs: Sequence[X], seed: X) -> list[X]:
        found = []
        for at, x in enumerate(inputs):
            gradient = np.zeros(x.size)
            for i in range(x.size):
                ends = []
                for step in (1e-5, -1e-5):
                    moved = x.copy().reshape(-1)
                    moved[i] += step
                    ends.append(float((seed * function(*inputs[:at], moved.reshape(x.shape), *inputs[at + 1 :])).sum()))
                gradient[i] = (ends[0] - ends[1]) / 2e-5
            found.append(gradient.reshape(x.shape))
        return found

    return gradients
