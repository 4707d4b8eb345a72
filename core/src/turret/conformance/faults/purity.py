"""Wrong with memory: inputs written, results shared, arrays of another library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turret.spi import Host

from .fault import Broken, Tools, fault, overwrite

LANES = 64


@fault(
    name="loss-overwrites-logits",
    slot="loss",
    capability="purity",
    kind="purity",
    needs="writing",
    url="https://github.com/linkedin/Liger-Kernel/pull/1251",
    report=(
        "A fused cross entropy stored its gradient into the logits it was given, invisible to the version counter,"
        " so the operation before it silently differentiated the wrong values."
    ),
    summary=(
        "loss.cross_entropy_grad writes the gradient into the buffer of logits and returns that buffer; loss and "
        "gradient values are right, the input is changed."
    ),
)
def gradient_in_logits(good: Any, tools: Tools) -> Broken:
    def cross_entropy_grad(logits: Any, targets: Any, weights: Any, /, *, ignore: int) -> tuple[Any, Any]:
        loss, gradient = good.cross_entropy_grad(logits, targets, weights, ignore=ignore)
        overwrite(tools, logits, tools.storage.to_host(gradient))
        return loss, logits

    return Broken(good, cross_entropy_grad=cross_entropy_grad)


@fault(
    name="outputs-reused-by-next-call",
    slot="softmax",
    capability="purity",
    kind="purity",
    needs="writing",
    url="https://github.com/pytorch/pytorch/pull/184368",
    report=(
        "Replayed graph outputs were not invalidated like those of the warm-up runs, so an output kept from one "
        "call silently held the values of the next."
    ),
    summary=(
        "softmax.softmax returns one of a pool of buffers per shape from the third call on and overwrites it at "
        "the next call of that shape, so a result kept across calls changes; the first two calls are fresh."
    ),
)
def reused_outputs(good: Any, tools: Tools) -> Broken:
    storage = tools.storage
    calls: dict[Any, int] = {}
    pool: dict[Any, Any] = {}

    def softmax(x: Any, /) -> Any:
        result = good.softmax(x)
        kind = (tuple(x.shape), storage.dtype_of(x))
        calls[kind] = calls.get(kind, 0) + 1
        if calls[kind] < 3:
            return result
        if kind not in pool:
            pool[kind] = result
        else:
            overwrite(tools, pool[kind], storage.to_host(result))
        return pool[kind]

    return Broken(good, softmax=softmax)


@fault(
    name="tail-lanes-write-past-the-end",
    slot="activation",
    capability="purity",
    kind="purity",
    needs="writing",
    url="https://github.com/fla-org/flash-linear-attention/issues/1102",
    report=(
        "Kernels launched on a rounded-up grid stored without a mask, so sizes that are no multiple of the block "
        "wrote past the output into whatever array lay behind it."
    ),
    summary=(
        "activation.silu with an element count that is no multiple of 64 also writes the rounded-up rest of the "
        "block into the start of the previously created result of this slot; multiples of 64 are harmless."
    ),
)
def past_the_end(good: Any, tools: Tools) -> Broken:
    storage = tools.storage
    before: list[Any] = []

    def silu(x: Any, /) -> Any:
        result = good.silu(x)
        over = -math.prod(x.shape) % LANES
        if over and before:

            def spill(host: Host) -> Host:
                host.reshape(-1)[:over] = 0  # silu of the zeros that the rounded-up lanes have read
                return host

            overwrite(tools, before[0], spill(storage.to_host(before[0])))
        before[:] = [result]
        return result

    return Broken(good, silu=silu)


@fault(
    name="copy-returns-host-array",
    slot="storage",
    capability="purity",
    kind="purity",
    url="https://github.com/jax-ml/jax/issues/3473",
    report=(
        "Copying a device array returned a NumPy array instead of a device array, so later operations ran on the "
        "host or mixed types."
    ),
    summary=(
        "storage.copy returns the host array from to_host instead of an array of the library; it has the right "
        "shape and values and most operations accept it."
    ),
)
def host_copy(good: Any, tools: Tools) -> Broken:
    def copy(x: Any, /) -> Any:
        host = good.to_host(x)
        # where the library's arrays are NumPy's own, a plain buffer stands for the foreign array
        return memoryview(host) if isinstance(x, np.ndarray) else host

    return Broken(good, copy=copy)


FAULTS = (gradient_in_logits, reused_outputs, past_the_end, host_copy)
