"""Indices outside their axis are refused: NumPy alone would count negative ones from the end."""

from __future__ import annotations

import numpy as np
import pytest

from turret.spi import DataError
from turret_cpu.indexing import CpuIndexing

TABLE = np.ones((5, 4), np.float32)


@pytest.mark.parametrize("bad", [-1, 5, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("slot", ["gather_rows", "gather_last", "scatter_add_rows", "set_rows"])
def test_an_index_outside_its_axis_is_refused_and_nothing_written(slot: str, bad: int) -> None:
    table, ids = TABLE.copy(), np.array([0, bad, 1, 2, 3], np.int32)
    call = getattr(CpuIndexing(), slot)
    with pytest.raises(DataError, match="indices"):
        if slot.startswith("gather"):
            call(table, ids)
        else:
            call(table, ids, np.zeros((5, 4), np.float32), donate=True)
    np.testing.assert_array_equal(table, TABLE)
