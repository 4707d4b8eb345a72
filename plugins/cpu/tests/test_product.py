"""Matrix products whose terms are all 0 but one: what packing moves must come out bit for bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from turret_cpu.backend import CpuBackend
from turret_cpu.kernels.intrinsics import PANEL, TURN
from turret_cpu.kernels.product import DEPTH
from turret_cpu.products import FEW

BACKEND = CpuBackend()  # for hypothesis, which takes no fixtures
NEAR = st.sampled_from([1, TURN, PANEL, 2 * PANEL, DEPTH]).flatmap(lambda n: st.integers(max(1, n - 2), n + 2))


@settings(max_examples=60, deadline=None)
@given(outs=NEAR, ins=NEAR, seed=st.integers(0, 2**32 - 1))
def test_unit_rows_give_back_every_weight_bit_for_bit(outs: int, ins: int, seed: int) -> None:
    weight = np.random.default_rng(seed).standard_normal((outs, ins)).astype(np.float32)
    linear = BACKEND.capabilities().linear
    assert linear is not None
    rows = np.eye(max(ins, FEW + 1), ins, dtype=np.float32)
    assert np.array_equal(linear.linear(rows, weight, None)[:ins], weight.T)
