"""Wrong linear layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from turret.spi import Host

from .fault import Broken, Tools, edited, fault, wide

LONG_BATCH = 4
LARGE = 32
WIDE = 256


@fault(
    name="linear-bias-wraps-on-long-batch",
    slot="linear",
    url="https://github.com/pytorch/pytorch/issues/189495",
    report=(
        "F.linear with a bias on a 3-d input was wrong for some rows once the first axis passed 65536; without "
        "bias, or with the input flattened to 2-d, it was right."
    ),
    summary=(
        "linear.linear with a bias and x of rank 3 or more: first-axis entries from index 4 on are computed from "
        "entry (index modulo 4) instead (limit scaled down from 65536); no bias or rank 2 is right."
    ),
)
def wrapping_batch(good: Any, tools: Tools) -> Broken:
    def linear(x: Any, weight: Any, bias: Any, /) -> Any:
        result = good.linear(x, weight, bias)
        if bias is None or len(x.shape) < 3 or x.shape[0] <= LONG_BATCH:
            return result
        return edited(tools.storage, result, lambda host: host[np.arange(len(host)) % LONG_BATCH])

    return Broken(good, linear=linear)


@fault(
    name="weight-gradient-depends-on-last-shape",
    slot="linear",
    kind="vjp",
    url="https://github.com/pytorch/pytorch/issues/177116",
    report=(
        "On MPS gradients were off by factors of a thousand only if an earlier backward had run in the same "
        "process at another batch size and the new one was large; the forward stayed right."
    ),
    summary=(
        "linear.linear_vjp_weight, when the previous call had another row count and now there are more than 32 "
        "rows, adds the previous call's rows (cut or padded to length) into the reduction; first calls and same-"
        "shape calls are right."
    ),
)
def last_shape_remembered(good: Any, tools: Tools) -> Broken:
    storage = tools.storage
    last: list[tuple[Host, Host]] = []

    def linear_vjp_weight(dy: Any, x: Any, /) -> tuple[Any, Any]:
        weight, bias = good.linear_vjp_weight(dy, x)
        rows = [wide(storage, each).reshape(-1, each.shape[-1]) for each in (dy, x)]
        if last and len(last[0][0]) != len(rows[0]) > LARGE:
            stale = [_fitted(old, now.shape[1]) for old, now in zip(last[0], rows, strict=True)]
            weight = edited(storage, weight, lambda host: host + stale[0].T @ stale[1])
            bias = edited(storage, bias, lambda host: host + stale[0].sum(axis=0))
        last[:] = [(rows[0], rows[1])]
        return weight, bias

    return Broken(good, linear_vjp_weight=linear_vjp_weight)


def _fitted(rows: Host, width: int) -> Host:
    """Rows cut, or padded with zeros, to a width."""
    cut = rows[:, :width]
    return np.pad(cut, [(0, 0), (0, width - cut.shape[1])])


@fault(
    name="input-gradient-drops-wide-outputs",
    slot="linear",
    kind="vjp",
    url="https://github.com/pytorch/pytorch/issues/153957",
    report=(
        "Gradients through two linear layers differed from the CPU only when the output layer was wide; the last "
        "layer's own gradient was right."
    ),
    summary=(
        "linear.linear_vjp_input with O > 256 sums only the first O - O % 256 outputs (or drops the last 8 when O "
        "is a multiple of 256); linear_vjp_weight is right."
    ),
)
def dropped_outputs(good: Any, tools: Tools) -> Broken:
    def linear_vjp_input(dy: Any, weight: Any, /) -> Any:
        outputs = weight.shape[0]
        if outputs > WIDE:
            kept = outputs - (outputs % WIDE or 8)
            dy = tools.layout.slice(dy, (0,) * len(dy.shape), (*dy.shape[:-1], kept))
            weight = tools.layout.slice(weight, (0, 0), (kept, weight.shape[1]))
        return good.linear_vjp_input(dy, weight)

    return Broken(good, linear_vjp_input=linear_vjp_input)


FAULTS = (
    wrapping_batch,
    last_shape_remembered,
    dropped_outputs,
)
