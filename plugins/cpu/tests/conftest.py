from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import numpy as np
import pytest

from turret_cpu.backend import CpuBackend


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
