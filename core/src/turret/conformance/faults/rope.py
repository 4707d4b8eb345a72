"""Wrong rotary positions."""

from __future__ import annotations

from typing import Any

from turret.spi import Host

from .fault import Broken, Tools, edited, fault


@fault(
    name="rope-single-step-only-first-batch-row",
    slot="rope",
    url="https://github.com/ml-explore/mlx/issues/3795",
    report=(
        "mx.fast.rope was right for batch row 0 only when the sequence length was 1 and the batch larger than 1, "
        "the very shape of batched decoding; longer sequences were right."
    ),
    summary="rope.rope with T == 1 and B > 1 returns zeros for batch rows 1 and up; T >= 2 or B == 1 is right.",
)
def single_step(good: Any, tools: Tools) -> Broken:
    def rope(x: Any, cos: Any, sin: Any, /, *, interleaved: bool) -> Any:
        result = good.rope(x, cos, sin, interleaved=interleaved)
        if x.shape[1] != 1 or x.shape[0] < 2:
            return result

        def first_alone(host: Host) -> None:
            host[1:] = 0

        return edited(tools.storage, result, first_alone)

    return Broken(good, rope=rope)


@fault(
    name="rope-always-half-split",
    slot="rope",
    url="https://github.com/vllm-project/vllm/pull/49323",
    report=(
        "A fused rotary kernel always rotated the pairs (i, i+d/2) and never looked at the flag that asks for "
        "adjacent pairs, so models with interleaved weights produced garbled text."
    ),
    summary=(
        "rope.rope and rope_vjp ignore interleaved=True and rotate the half-split pairs when cos has three axes "
        "(per-batch positions); two-axis cos honours the flag."
    ),
)
def always_half_split(good: Any, tools: Tools) -> Broken:
    def rope(x: Any, cos: Any, sin: Any, /, *, interleaved: bool) -> Any:
        return good.rope(x, cos, sin, interleaved=interleaved and len(cos.shape) == 2)

    def rope_vjp(dy: Any, cos: Any, sin: Any, /, *, interleaved: bool) -> Any:
        return good.rope_vjp(dy, cos, sin, interleaved=interleaved and len(cos.shape) == 2)

    return Broken(good, rope=rope, rope_vjp=rope_vjp)


@fault(
    name="rope-has-no-gradient",
    slot="rope",
    kind="vjp",
    url="https://github.com/huggingface/candle/pull/3612",
    report="The fused rotary kernels had no backward, so parameters before them silently received no gradient.",
    summary="rope.rope_vjp returns zeros for T > 1 with interleaved=True; half-split is right.",
)
def no_gradient(good: Any, tools: Tools) -> Broken:
    def rope_vjp(dy: Any, cos: Any, sin: Any, /, *, interleaved: bool) -> Any:
        gradient = good.rope_vjp(dy, cos, sin, interleaved=interleaved)
        is_lost = interleaved and dy.shape[1] > 1
        return edited(tools.storage, gradient, lambda host: host * 0) if is_lost else gradient

    return Broken(good, rope_vjp=rope_vjp)


@fault(
    name="rope-backward-forgets-pairing",
    slot="rope",
    kind="vjp",
    url="https://github.com/Dao-AILab/flash-attention/pull/569",
    report=(
        "The rotary backward named an undefined pairing flag and misspelt the conjugate option, so that backward "
        "path could not carry the forward's pairing (it raised)."
    ),
    summary=(
        "rope.rope_vjp always uses half-split pairs and the forward direction of the angle when interleaved is "
        "True; the forward is right."
    ),
)
def forgotten_pairing(good: Any, tools: Tools) -> Broken:
    def rope_vjp(dy: Any, cos: Any, sin: Any, /, *, interleaved: bool) -> Any:
        if interleaved:
            return good.rope(dy, cos, sin, interleaved=False)
        return good.rope_vjp(dy, cos, sin, interleaved=False)

    return Broken(good, rope_vjp=rope_vjp)


FAULTS = (
    single_step,
    always_half_split,
    no_gradient,
    forgotten_pairing,
)
