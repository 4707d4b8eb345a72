"""Wrong activations."""

from __future__ import annotations

import math
from typing import Any

from turret.spi import GeluForm, Host

from .fault import Broken, Tools, Views, edited, fault, wide

VECTOR = 8


@fault(
    name="gelu-tanh-nan-below-minus-thirteen",
    slot="activation",
    url="https://github.com/pytorch/executorch/issues/22323",
    report=(
        "The Vulkan gelu shader passed an unclamped cubic to tanh, which overflowed, so inputs below about -13 "
        "gave NaN and a whole speech encoder became NaN."
    ),
    summary=(
        "activation.gelu with the tanh form returns NaN wherever the inner tanh argument is below -88 (x below "
        "about -13); the erf form and the VJP are right."
    ),
)
def overflowing_gelu(good: Any, tools: Tools) -> Broken:
    def gelu(x: Any, /, *, form: GeluForm) -> Any:
        result = good.gelu(x, form=form)
        if form != "tanh":
            return result

        def overflow(host: Host) -> None:
            at = wide(tools.storage, x)
            host[math.sqrt(2 / math.pi) * (at + 0.044715 * at**3) < -88] = math.nan

        return edited(tools.storage, result, overflow)

    return Broken(good, gelu=gelu)


@fault(
    name="gated-silu-gradient-all-in-row-zero",
    slot="activation",
    kind="vjp",
    url="https://github.com/ByteDance-Seed/Triton-distributed/issues/180",
    report=(
        "The SwiGLU backward kernel advanced its input row pointers but not its output row pointers, so all rows "
        "of the gradient were written to row 0 and the rest stayed uninitialised; the per-row scale gradient was "
        "right and hid it."
    ),
    summary=(
        "activation.gated_silu_vjp returns the last row's gradient in row 0 and zeros in all other rows, for both "
        "gate and up, when there is more than one row."
    ),
)
def all_in_row_zero(good: Any, tools: Tools) -> Broken:
    def one_row(host: Host) -> None:
        rows = host.reshape(-1, host.shape[-1])
        rows[0] = rows[-1]
        rows[1:] = 0

    def gated_silu_vjp(dy: Any, gate: Any, up: Any, /) -> tuple[Any, Any]:
        gradients = good.gated_silu_vjp(dy, gate, up)
        if math.prod(dy.shape[:-1]) <= 1 or not math.prod(dy.shape):
            return gradients[0], gradients[1]
        return edited(tools.storage, gradients[0], one_row), edited(tools.storage, gradients[1], one_row)

    return Broken(good, gated_silu_vjp=gated_silu_vjp)


@fault(
    name="gelu-tail-flushed-to-zero",
    slot="activation",
    url="https://github.com/tenstorrent/tt-metal/issues/56517",
    report=(
        "The tanh form of gelu computed x/2 * (1 + tanh u), whose sum cancels, so the negative tail was exactly 0 "
        "below -6 and up to 200 percent off before."
    ),
    summary=(
        "activation.gelu with the tanh form returns exactly 0 for x < -4 instead of the small negative tail "
        "(relative error 1, absolute error below 3e-4)."
    ),
)
def flushed_tail(good: Any, tools: Tools) -> Broken:
    def gelu(x: Any, /, *, form: GeluForm) -> Any:
        result = good.gelu(x, form=form)
        if form != "tanh":
            return result

        def flush(host: Host) -> None:
            host[wide(tools.storage, x) < -4] = 0

        return edited(tools.storage, result, flush)

    return Broken(good, gelu=gelu)


@fault(
    name="gated-silu-arguments-swapped",
    slot="activation",
    url="https://github.com/ml-explore/mlx-lm/pull/767",
    report=(
        "One wrapper kept the old argument order after a refactoring and applied silu to the wrong half of a gated"
        " unit."
    ),
    summary=(
        "activation.gated_silu computes silu(up) * gate when the arrays have three or more axes; the VJP and 2-d "
        "calls are right."
    ),
)
def swapped_halves(good: Any, tools: Tools) -> Broken:
    def gated_silu(gate: Any, up: Any, /) -> Any:
        return good.gated_silu(up, gate) if len(gate.shape) > 2 else good.gated_silu(gate, up)

    return Broken(good, gated_silu=gated_silu)


@fault(
    name="silu-strided-input-random",
    slot="activation",
    views=True,
    url="https://github.com/pytorch/pytorch/pull/139006",
    report=(
        "SiLU on non-contiguous input gave random values, zeros or NaN on older systems because strides were ignored."
    ),
    summary=(
        "activation.silu of an array that came out of a strided layout.slice evaluates the first n elements of the"
        " parent's storage instead."
    ),
)
def strides_ignored(good: Any, tools: Tools, views: Views) -> Broken:
    def silu(x: Any, /) -> Any:
        view = views.about(x)
        return good.silu(views.packed(tools.storage, x) if view is not None and view.is_strided else x)

    return Broken(good, silu=silu)


@fault(
    name="gelu-nan-in-full-vector-groups",
    slot="activation",
    kind="vjp",
    url="https://github.com/ooples/AiDotNet.Tensors/pull/594",
    report=(
        "The vectorised gelu overflowed at inputs near 20 while the scalar loop for the remaining elements was "
        "safe, so NaN appeared only in full vector groups."
    ),
    summary=(
        "activation.gelu_vjp returns NaN for x above 20 in elements before the last (n % 8); the tail elements are"
        " right."
    ),
)
def overflowing_vectors(good: Any, tools: Tools) -> Broken:
    def gelu_vjp(dy: Any, x: Any, /, *, form: GeluForm) -> Any:
        def overflow(host: Host) -> None:
            flat, at = host.reshape(-1), wide(tools.storage, x).reshape(-1)
            whole = len(flat) - len(flat) % VECTOR
            flat[:whole][at[:whole] > 20] = math.nan

        return edited(tools.storage, good.gelu_vjp(dy, x, form=form), overflow)

    return Broken(good, gelu_vjp=gelu_vjp)


FAULTS = (
    overflowing_gelu,
    all_in_row_zero,
    flushed_tail,
    swapped_halves,
    strides_ignored,
    overflowing_vectors,
)
