from __future__ import annotations

import sys
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
