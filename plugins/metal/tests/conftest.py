from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from turret.derived import fill
from turret.spi import Toolset
from turret_metal.backend import MetalBackend


@pytest.fixture(scope="session")
def backend() -> MetalBackend:
    return MetalBackend("cpu")


@pytest.fixture(scope="session")
def tools(backend: MetalBackend) -> Toolset[mx.array]:
    return fill(backend.capabilities())


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def put(tools: Toolset[mx.array]) -> Callable[[Any], mx.array]:
    """A host value on the device, numbers as float32."""

    def put(value: Any) -> mx.array:
        host = np.asarray(value)
        return tools.storage.from_host(host.astype(np.float32) if host.dtype == np.float64 else host)

    return put


@pytest.fixture(scope="session")
def run_code() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in a Python of its own, warnings as errors but for its own forks, with environment variables added."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning:__main__", "-c", textwrap.dedent(code)],
            env=dict(os.environ) | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
