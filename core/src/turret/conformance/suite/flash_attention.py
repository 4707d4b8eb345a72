"""Cases of the memory-linear attention slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from turret.spi import HALVES, DType, Flashed, Memory

from ..bench import Bench
from ..case import Body, Case, call_case
from ..given import Call, Draw, Given
from ..oracle import attention as oracle
from ..tolerances import FORMATS
from .attention_inputs import Question, Sizes, compare, joint, normal, plain, questions, seen, slope

BLOCKS = (Sizes(1, 40, 257, 1, 1, 8, 217), Sizes(1, 3, 513, 2, 1, 8, 400), Sizes(1, 200, 70, 1, 1, 4, 0))
"""Several tiles of keys, the last of them partly or wholly unseen; more queries than keys."""
JOINT = Sizes(2, 65, 65, 4, 2, 16, 0)
CHAINED = (Sizes(2, 9, 12, 4, 2, 8, 3), Sizes(1, 130, 130, 2, 1, 8, 0))
LONG = Sizes(1, 2048, 2048, 4, 4, 8, 0)


def cases() -> Iterator[Case]:
    """Output, row statistics and gradients over sizes, views, dtypes and extremes; memory where the device tells."""
    for question in (*questions(), *(plain("sizes", sizes) for sizes in BLOCKS)):
        yield _forward(question)
        yield _vjp(question)
    yield Case(id=f"flash_attention/joint/{JOINT}-f32", body=_joint, kind="forward")
    yield Case(id=f"flash_attention/joint-vjp/{JOINT}-f32", body=_joint_vjp, kind="vjp")
    for sizes in CHAINED:
        yield Case(id=f"flash_attention/chain-vjp/{sizes}-f32", body=_chain(sizes), kind="vjp")
    yield Case(id="flash_attention/rows/scores-below-any-fill", body=_far_below, kind="forward")
    yield Case(id="flash_attention/sizes/B2-T9-S12-H4-K2-d8-o3-f64", body=_float64, kind="forward")
    yield Case(id="flash_attention/memory/linear-in-T", body=_memory, kind="forward")
    yield Case(id="flash_attention/memory-vjp/linear-in-T", body=_memory_vjp, kind="vjp")


def _forward(question: Question) -> Case:
    options: dict[str, object] = {"scale": question.scale, "offset": question.sizes.offset}

    def build(draw: Draw) -> Call:
        return Call("flash_attention", "attend", question.inputs(draw), options)

    name = f"flash_attention/{question.check}/{question.variant}"
    return call_case(name, build, oracle.flash_attend, returns=(question.dtype, "float32", "float32"))


def _vjp(question: Question) -> Case:
    options: dict[str, object] = {"scale": question.scale, "offset": question.sizes.offset}

    def build(draw: Draw) -> Call:
        inputs = question.inputs(draw)
        dy = draw.normal(*inputs[0].shape, dtype=question.dtype, view=inputs[0].view)
        saved = _saved(draw, inputs, question.dtype, question.scale, question.sizes.offset)
        return Call("flash_attention", "attend_vjp", (dy, *inputs, saved), options, slope=slope(question, dy, inputs))

    def truth(dy: Any, q: Any, k: Any, v: Any, saved: Any, **given: Any) -> Any:
        # sum(P dP) may be taken as sum(dy saved.out), and that was rounded to a half: as if v had been
        shaky = v.rounded(FORMATS[question.dtype].unit) if question.dtype in HALVES else v
        return oracle.flash_attend_vjp(dy, q, k, shaky, saved, **given)

    name = f"flash_attention/{question.check}-vjp/{question.variant}"
    return call_case(name, build, truth, kind="vjp", returns=(question.dtype,) * 3)


def _saved(draw: Draw, inputs: tuple[Given, Given, Given], dtype: DType, scale: float, offset: int) -> Flashed[Given]:
    """What a forward pass without error would have kept."""
    q, k, v = (x.exact for x in inputs)
    out, row_max, row_sum = oracle.flash_attend(q, k, v, scale=scale, offset=offset)
    return Flashed(draw.of(out, dtype), draw.of(row_max), draw.of(row_sum))


def _joint(bench: Bench) -> None:
    hosts, (q, k, v) = joint(bench, JOINT)
    bench.context = "flash_attention.attend of slices of one projection"
    got = bench.tools.flash_attention.attend(q, k, v, scale=JOINT.scale, offset=0)
    tq, tk, tv = (x.tracked for x in hosts)
    compare(bench, ("out", "row_max", "row_sum"), got, oracle.flash_attend(tq, tk, tv, scale=JOINT.scale, offset=0))


def _joint_vjp(bench: Bench) -> None:
    hosts, (q, k, v) = joint(bench, JOINT)
    dy = bench.draw.normal(*hosts[0].shape)
    saved = _saved(bench.draw, hosts, "float32", JOINT.scale, 0)
    placed = Flashed(*(bench.put(x) for x in saved))
    bench.context = "flash_attention.attend_vjp of slices of one projection"
    got = bench.tools.flash_attention.attend_vjp(bench.put(dy), q, k, v, placed, scale=JOINT.scale, offset=0)
    tq, tk, tv = (x.tracked for x in hosts)
    kept = tuple(x.tracked for x in saved)
    wants = oracle.flash_attend_vjp(dy.tracked, tq, tk, tv, (kept[0], kept[1], kept[2]), scale=JOINT.scale, offset=0)
    compare(bench, ("dq", "dk", "dv"), got, wants)


def _chain(sizes: Sizes) -> Body:
    """The VJP fed with what the backend's own forward pass kept."""

    def body(bench: Bench) -> None:
        inputs, slot = normal(bench.draw, sizes), bench.tools.flash_attention
        dy = bench.draw.normal(*inputs[0].shape)
        q, k, v = (bench.put(x) for x in inputs)
        bench.context = "flash_attention.attend, then attend_vjp"
        saved = slot.attend(q, k, v, scale=sizes.scale, offset=sizes.offset)
        bench.require(isinstance(saved, Flashed), f"attend gave {type(saved).__name__}, wanted Flashed")
        got = slot.attend_vjp(bench.put(dy), q, k, v, saved, scale=sizes.scale, offset=sizes.offset)
        tq, tk, tv = (x.tracked for x in inputs)
        kept = oracle.flash_attend(tq, tk, tv, scale=sizes.scale, offset=sizes.offset)
        wants = oracle.flash_attend_vjp(dy.tracked, tq, tk, tv, kept, scale=sizes.scale, offset=sizes.offset)
        compare(bench, ("dq", "dk", "dv"), got, wants)

    return body


def _far_below(bench: Bench) -> None:
    """Equal scores of -2^60, below whatever number stands for minus infinity: each row is the mean of what it sees."""
    sizes = Sizes(1, 4, 6, 1, 1, 1, 0)
    q = bench.put(bench.draw.of(np.full((1, 4, 1, 1), 2.0**50)))
    k = bench.put(bench.draw.of(np.full((1, 6, 1, 1), -(2.0**50))))
    v = bench.draw.uniform(1, 6, 1, 1, low=1, high=2)
    bench.context = "flash_attention.attend"
    got = bench.tools.flash_attention.attend(q, k, bench.put(v), scale=2.0**-40, offset=0)
    count = np.arange(1, 5)
    visible = seen(sizes)
    means = (visible @ v.exact.reshape(6)) / count
    unit = FORMATS["float32"].unit
    bench.within("out", bench.get(got.out).reshape(4), means, 16 * unit)
    bench.within("row_max", bench.get(got.row_max).reshape(4), np.full(4, -(2.0**60)), 2.0**60 * 2 * unit)
    bench.within("row_sum", bench.get(got.row_sum).reshape(4), count.astype(np.float64), 16 * unit)


def _float64(bench: Bench) -> None:
    """The output keeps the precision of float64."""
    bench.needs("float64")
    sizes = Sizes(2, 9, 12, 4, 2, 8, 3)
    inputs = normal(bench.draw, sizes, "float64")
    q, k, v = (bench.put(x) for x in inputs)
    bench.context = "flash_attention.attend"
    out = bench.tools.flash_attention.attend(q, k, v, scale=sizes.scale, offset=sizes.offset).out
    tq, tk, tv = (x.tracked for x in inputs)
    want = oracle.flash_attend(tq, tk, tv, scale=sizes.scale, offset=sizes.offset)[0]
    bench.close("out", out, want, "float64")


def _memory(bench: Bench) -> None:
    """Peak memory stays far under what the scores of all queries would take."""
    before = _measured(bench)
    q, k, v = (bench.put(x) for x in normal(bench.draw, LONG))
    out = bench.tools.flash_attention.attend(q, k, v, scale=LONG.scale, offset=0)
    _check_peak(bench, before, list(out))


def _memory_vjp(bench: Bench) -> None:
    before = _measured(bench)
    inputs = normal(bench.draw, LONG)
    q, k, v = (bench.put(x) for x in inputs)
    slot = bench.tools.flash_attention
    saved = slot.attend(q, k, v, scale=LONG.scale, offset=0)
    grads = slot.attend_vjp(bench.put(bench.draw.normal(*inputs[0].shape)), q, k, v, saved, scale=LONG.scale, offset=0)
    _check_peak(bench, before, list(grads))


def _score_bytes() -> int:
    return 4 * LONG.batch * LONG.heads * LONG.queries * LONG.keys


def _measured(bench: Bench) -> Memory:
    before = bench.tools.storage.memory()
    if before is None:
        bench.skip("the device does not report memory")
    if before.peak_bytes - before.used_bytes > _score_bytes() // 2:
        bench.skip("an earlier peak hides what this call would take; run the case alone")
    return before


def _check_peak(bench: Bench, before: Memory, results: list[Any]) -> None:
    storage = bench.tools.storage
    storage.synchronize(*results)
    after = storage.memory()
    assert after is not None, "a device that reported memory before the call reports it after"
    taken = after.peak_bytes - before.used_bytes
    bench.require(
        taken < _score_bytes() // 2,
        f"took {taken} bytes at T = S = {LONG.keys}, where the scores of all queries are {_score_bytes()}: not linear",
    )
