"""Wrong softmax."""

from __future__ import annotations

from typing import Any

from .fault import Broken, Tools, Views, fault


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
    name="softmax-padded-rows-misaddressed",
    slot="softmax",
    views=True,
    url="https://github.com/ROCm/rocm-libraries/issues/11387",
    report=(
        "A faster softmax derived its geometry from lengths alone, so rows of a padded or sliced array were read "
        "at packed offsets."
    ),
    summary=(
        "softmax.log_softmax on an array cut from a wider one by layout.slice on the last axis reads row i at i * "
        "N of the parent storage instead of its real row start."
    ),
)
def packed_rows(good: Any, tools: Tools, views: Views) -> Broken:
    def log_softmax(x: Any, /) -> Any:
        view = views.about(x)
        misread = view is not None and view.trims(len(x.shape) - 1)
        return good.log_softmax(views.packed(tools.storage, x) if misread else x)

    return Broken(good, log_softmax=log_softmax)


FAULTS = (
    rows_of_the_storage,
    packed_output,
    packed_rows,
)
