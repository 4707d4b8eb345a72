"""Wrong activations, softmax and normalization."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turret.spi import GeluForm, Host, Normed

from .fault import Broken, Tools, Views, edited, fault, new, wide

GROUP = 32


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
    name="softmax-ignores-transposed-strides",
    slot="softmax",
    views=True,
    url="https://github.com/tracel-ai/burn/issues/4815",
    report=(
        "Softmax of a transposed array on the cube backends computed the softmax of the underlying storage rows "
        "instead of the logical rows."
    ),
    summary=(
        "softmax.softmax on an array that came out of layout.transpose (non-contiguous) computes over the rows of "
        "the contiguous storage reinterpreted in the logical shape."
    ),
)
def rows_of_the_storage(good: Any, tools: Tools, views: Views) -> Broken:
    def softmax(x: Any, /) -> Any:
        view = views.about(x)
        return good.softmax(views.packed(tools.storage, x) if view and view.method == "transpose" else x)

    return Broken(good, softmax=softmax)


@fault(
    name="softmax-gradient-misreads-strided-output",
    slot="softmax",
    kind="vjp",
    views=True,
    url="https://github.com/pytorch/pytorch/pull/139740",
    report=(
        "The CPU softmax backward was wrong when its saved output was non-contiguous, as after slicing a larger "
        "array, because it was read as if packed."
    ),
    summary=(
        "softmax.softmax_vjp, when y came out of layout.slice on a middle axis, reads y as if it were the leading "
        "block of the parent's storage; dy and packed y are right."
    ),
)
def packed_output(good: Any, tools: Tools, views: Views) -> Broken:
    def softmax_vjp(dy: Any, y: Any, /) -> Any:
        view = views.about(y)
        misread = view is not None and any(view.trims(axis) for axis in range(1, len(y.shape) - 1))
        return good.softmax_vjp(dy, views.packed(tools.storage, y) if misread else y)

    return Broken(good, softmax_vjp=softmax_vjp)


@fault(
    name="norm-drops-partial-simdgroup",
    slot="normalization",
    url="https://github.com/ggml-org/llama.cpp/pull/26708",
    report=(
        "Metal norm kernels with a row length leaving a partial SIMD group (33 for example) never read one of the "
        "partial sums, so mean and variance were wrong for the whole row."
    ),
    summary=(
        "normalization.layer_norm and rms_norm on D above 32 with D % 32 between 1 and the number of groups minus "
        "1 (33, 65, 66, ...) leave the last partial group out of the mean and square sums while still dividing by "
        "D."
    ),
)
def partial_group_lost(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def is_lost(width: int) -> bool:
        return width > GROUP and 1 <= width % GROUP <= -(-width // GROUP) - 1

    def layer_norm(x: Any, weight: Any, bias: Any, /, *, eps: float) -> Any:
        right = good.layer_norm(x, weight, bias, eps=eps)
        width = x.shape[-1]
        if not is_lost(width):
            return right
        rows, kept = wide(storage, x), width - width % GROUP
        mean = rows[..., :kept].sum(axis=-1, keepdims=True) / width
        rstd = 1 / np.sqrt(((rows[..., :kept] - mean) ** 2).sum(axis=-1, keepdims=True) / width + eps)
        out = (rows - mean) * rstd * wide(storage, weight) + wide(storage, bias)
        return Normed(new(storage, out, x), new(storage, mean, right.mean), new(storage, rstd, right.rstd))

    def rms_norm(x: Any, weight: Any, /, *, eps: float) -> Any:
        right = good.rms_norm(x, weight, eps=eps)
        width = x.shape[-1]
        if not is_lost(width):
            return right
        rows, kept = wide(storage, x), width - width % GROUP
        rstd = 1 / np.sqrt((rows[..., :kept] ** 2).sum(axis=-1, keepdims=True) / width + eps)
        return new(storage, rows * rstd * wide(storage, weight), x), new(storage, rstd, right[1])

    return Broken(good, layer_norm=layer_norm, rms_norm=rms_norm)


@fault(
    name="layer-norm-clamps-small-variance",
    slot="normalization",
    url="https://github.com/pytorch/pytorch/issues/190491",
    report=(
        "The MPS layer norm computed the variance in one pass and clamped values below 1e-6 to zero, so rows with "
        "tiny true variance were scaled by rsqrt(eps), a thousand times too much."
    ),
    summary=(
        "normalization.layer_norm treats a row variance below 1e-6 as 0, so rstd is 1/sqrt(eps); visible only for "
        "nearly constant rows and an eps that is small beside the variance."
    ),
)
def clamped_variance(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def layer_norm(x: Any, weight: Any, bias: Any, /, *, eps: float) -> Any:
        right = good.layer_norm(x, weight, bias, eps=eps)
        if not x.shape[-1]:
            return right
        rows = wide(storage, x)
        mean = rows.mean(axis=-1, keepdims=True)
        clamped = ((rows - mean) ** 2).mean(axis=-1, keepdims=True) < 1e-6
        if not clamped.any():
            return right
        rstd = 1 / math.sqrt(eps) if eps else math.inf
        with np.errstate(all="ignore"):
            out = (rows - mean) * rstd * wide(storage, weight) + wide(storage, bias)
        return Normed(
            edited(storage, right.out, lambda host: np.where(clamped, out, host)),
            right.mean,
            edited(storage, right.rstd, lambda host: np.where(clamped, rstd, host)),
        )

    return Broken(good, layer_norm=layer_norm)


FAULTS = (
    overflowing_gelu,
    all_in_row_zero,
    rows_of_the_storage,
    packed_output,
    partial_group_lost,
    clamped_variance,
)
