from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

EMULATOR = Path(__file__).parents[2] / "cuda_emulator"
if str(EMULATOR) not in sys.path:
    sys.path.insert(0, str(EMULATOR))

if TYPE_CHECKING:
    import cupy


@pytest.fixture
def device() -> Iterator[None]:
    """The emulated device in order before the test and after it."""
    from cupy import emulated

    yield
    emulated.set_driver(13000)
    emulated.set_device_count(1)
    emulated.set_total_memory(4 << 30)
    emulated.settings.order = "forward"
    emulated.reset()


@pytest.fixture
def pool(device: None) -> cupy.cuda.MemoryPool:
    import cupy

    return cupy.cuda.MemoryPool()


@pytest.fixture
def stream(device: None) -> Iterator[cupy.cuda.Stream]:
    """A stream that is the current one."""
    import cupy

    with cupy.cuda.Stream(non_blocking=True) as made:
        yield made
