from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import numpy as np
import pytest

from turret_tpu.backend import TpuBackend

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def backend() -> TpuBackend:
    return TpuBackend("cpu")


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def run_code() -> Run:
    """Runs code in a Python of its own, warnings as errors, with environment variables added."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "TPU_"))}
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
            env=kept | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
