from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

EMULATOR = Path(__file__).resolve().parents[3] / "tests" / "cuda_emulator"
if str(EMULATOR) not in sys.path:
    sys.path.insert(0, str(EMULATOR))  # `import cupy` is the emulator's in this process

if TYPE_CHECKING:
    from turret.spi import Toolset
    from turret_cuda.place import Place


@pytest.fixture(scope="session")
def place() -> Place:
    from turret_cuda.place import place_of

    return place_of("emulated")


@pytest.fixture(scope="session")
def tools() -> Toolset[Any]:
    from turret.derived import fill
    from turret_cuda.backend import CudaBackend

    return fill(CudaBackend("emulated").capabilities())


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a Python of its own that sees the emulator, warnings as errors: -c and code, -m and a module, or a file."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", *(textwrap.dedent(each) for each in arguments)],
            env=dict(os.environ) | {"PYTHONPATH": str(EMULATOR)} | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
