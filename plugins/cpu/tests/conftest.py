from __future__ import annotations

import numpy as np
import pytest

from turret_cpu.backend import CpuBackend


@pytest.fixture(scope="session")
def backend() -> CpuBackend:
    return CpuBackend()


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(7)
