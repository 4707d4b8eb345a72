"""Wrong compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .fault import Broken, Tools, fault

Function = Callable[..., tuple[Any, ...]]


@fault(
    name="compiled-keeps-first-unit-axis",
    slot="compile",
    url="https://github.com/ml-explore/mlx/issues/3201",
    report=(
        "A shape-free compiled function traced once on a size-1 axis elided the reduction, so later calls with "
        "longer inputs returned the sum of the first element only."
    ),
    summary=(
        "compile.compile: if the first call had a leading axis of 1 in any argument, later calls of other sizes "
        "are run on that argument's first row only; functions first called with longer axes are right."
    ),
)
def first_unit_axis(good: Any, tools: Tools) -> Broken:
    def compile(fn: Function, /, *, donate: tuple[int, ...] = ()) -> Function:
        compiled: Function = good.compile(fn, donate=donate)
        traced: list[tuple[bool, ...]] = []

        def first_row(x: Any) -> Any:
            return tools.layout.slice(x, (0,) * len(x.shape), (1, *x.shape[1:]))

        def call(*arguments: Any) -> tuple[Any, ...]:
            if not traced:
                traced.append(tuple(tuple(x.shape[:1]) == (1,) for x in arguments))
            return compiled(
                *(
                    first_row(x) if was_one and x.shape and x.shape[0] > 1 else x
                    for x, was_one in zip(arguments, traced[0], strict=True)
                )
            )

        return call

    return Broken(good, compile=compile)


@fault(
    name="compiled-output-is-the-input",
    slot="compile",
    needs="writing",
    url="https://github.com/pytorch/pytorch/issues/195451",
    report=(
        "The compiler dropped a defensive copy, so the returned array shared storage with an argument and a later "
        "in-place write to the result changed the caller's parameter."
    ),
    summary=(
        "compile.compile: an output equal in value, shape and dtype to an argument that was not donated is "
        "returned as that very argument, so donating the output to a next call overwrites the caller's array."
    ),
)
def input_returned(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def is_same(x: Any, y: Any) -> bool:
        return (
            tuple(x.shape) == tuple(y.shape)
            and storage.dtype_of(x) == storage.dtype_of(y)
            and storage.to_host(x).tobytes() == storage.to_host(y).tobytes()
        )

    def compile(fn: Function, /, *, donate: tuple[int, ...] = ()) -> Function:
        compiled: Function = good.compile(fn, donate=donate)

        def call(*arguments: Any) -> tuple[Any, ...]:
            kept = [x for n, x in enumerate(arguments) if n not in donate]
            outputs = compiled(*arguments)
            return tuple(next((x for x in kept if is_same(x, out)), out) for out in outputs)

        return call

    return Broken(good, compile=compile)


@fault(
    name="donation-depends-on-output-order",
    slot="compile",
    url="https://github.com/jax-ml/jax/issues/39625",
    report=(
        "With donated state of three or more scalars, results were mixed up on GPU when fresh outputs were "
        "returned before the state, and right in the other order."
    ),
    summary=(
        "compile.compile with two or more donated arguments swaps a fresh output with the next state output of the"
        " same shape and dtype if the fresh one comes first in the tuple; no donation or state first is right."
    ),
)
def mixed_outputs(good: Any, tools: Tools) -> Broken:
    def kinds(arrays: Sequence[Any]) -> list[Any]:
        return [(tuple(x.shape), tools.storage.dtype_of(x)) for x in arrays]

    def compile(fn: Function, /, *, donate: tuple[int, ...] = ()) -> Function:
        compiled: Function = good.compile(fn, donate=donate)

        def call(*arguments: Any) -> tuple[Any, ...]:
            given = kinds([arguments[n] for n in donate])
            outputs = list(compiled(*arguments))
            fresh = len(outputs) - len(donate)
            if len(donate) < 2 or fresh < 1 or kinds(outputs[fresh:]) != given:
                return tuple(outputs)
            for n, kind in enumerate(kinds(outputs[:fresh])):
                if kind in given:
                    other = fresh + given.index(kind)
                    outputs[n], outputs[other] = outputs[other], outputs[n]
                    break
            return tuple(outputs)

        return call

    return Broken(good, compile=compile)


@fault(
    name="compiled-reads-after-write",
    slot="compile",
    url="https://github.com/pytorch/pytorch/issues/94777",
    report=(
        "A compiled function evaluated a value after a later in-place update of its source, so the result was "
        "computed from the new contents."
    ),
    summary=(
        "compile.compile with a donated argument overwrites it with the output of the same shape before the "
        "remaining outputs that depend on it are computed."
    ),
)
def early_write(good: Any, tools: Tools) -> Broken:
    def compile(fn: Function, /, *, donate: tuple[int, ...] = ()) -> Function:
        if not donate:
            same: Function = good.compile(fn)
            return same
        compiled: Function = good.compile(fn)

        def call(*arguments: Any) -> tuple[Any, ...]:
            outputs = compiled(*arguments)
            written = list(arguments)
            for n in donate:
                shape = tuple(arguments[n].shape)
                found = next((k for k, out in enumerate(outputs) if tuple(out.shape) == shape), None)
                if found is not None:
                    written[n] = outputs[found]
                    late = compiled(*written)
                    return tuple(out if k <= found else late[k] for k, out in enumerate(outputs))
            return outputs

        return call

    return Broken(good, compile=compile)


FAULTS = (
    first_unit_axis,
    input_returned,
    mixed_outputs,
    early_write,
)
