"""Cases of the causal attention slot."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from turret.spi import DType

from ..bench import Bench
from ..case import Body, Case, call_case
from ..given import Call, Draw
from ..oracle import attention as oracle
from ..tolerances import FORMATS, growth
from .attention_inputs import Question, Sizes, compare, joint, normal, questions, seen, slope
from .naming import SHORT

JOINT = (Sizes(2, 9, 9, 4, 2, 8, 0), Sizes(2, 65, 65, 4, 1, 32, 0), Sizes(2, 1, 1, 8, 8, 16, 0))
ROWS = (Sizes(2, 7, 10, 4, 2, 8, 2), Sizes(1, 65, 130, 2, 1, 16, 65), Sizes(2, 3, 9, 2, 2, 8, 0))


def cases() -> Iterator[Case]:
    """Output, probabilities and gradients over sizes, views, dtypes and extremes; the mask for itself."""
    for question in questions():
        yield _forward(question)
        yield _vjp(question)
    for sizes in JOINT:
        yield Case(id=f"causal_attention/joint/{sizes}-f32", body=_joint(sizes), kind="forward")
        yield Case(id=f"causal_attention/joint-vjp/{sizes}-f32", body=_joint_vjp(sizes), kind="vjp")
    for sizes in ROWS:
        for dtype in ("float32", "float16"):
            yield Case(id=f"causal_attention/rows/{sizes}-{SHORT[dtype]}", body=_rows(sizes, dtype), kind="forward")
    yield Case(id="causal_attention/rows/scores-below-any-fill", body=_far_below, kind="forward")
    yield Case(id="causal_attention/sizes/B2-T9-S12-H4-K2-d8-o3-f64", body=_float64, kind="forward")
    yield Case(id="causal_attention/chain-vjp/own-probabilities", body=_chain, kind="vjp")


def _forward(question: Question) -> Case:
    options: dict[str, object] = {"scale": question.scale, "offset": question.sizes.offset}

    def build(draw: Draw) -> Call:
        return Call("causal_attention", "attend", question.inputs(draw), options)

    name = f"causal_attention/{question.check}/{question.variant}"
    return call_case(name, build, oracle.attend, returns=(question.dtype, "float32"))


def _vjp(question: Question) -> Case:
    scale, offset = question.scale, question.sizes.offset

    def build(draw: Draw) -> Call:
        inputs = question.inputs(draw)
        q, k, v = (x.exact for x in inputs)
        dy = draw.normal(*q.shape, dtype=question.dtype, view=inputs[0].view)
        probabilities = draw.of(oracle.attend(q, k, v, scale=scale, offset=offset)[1])
        return Call(
            "causal_attention",
            "attend_vjp",
            (dy, *inputs, probabilities),
            {"scale": scale},
            slope=slope(question, dy, inputs),
        )

    return call_case(f"causal_attention/{question.check}-vjp/{question.variant}", build, oracle.attend_vjp, kind="vjp")


def _joint(sizes: Sizes) -> Body:
    def body(bench: Bench) -> None:
        hosts, (q, k, v) = joint(bench, sizes)
        bench.context = "causal_attention.attend of slices of one projection"
        out, probabilities = bench.tools.causal_attention.attend(q, k, v, scale=sizes.scale, offset=0)
        tracked = [x.tracked for x in hosts]
        want = oracle.attend(*tracked, scale=sizes.scale, offset=0)
        bench.close("output", out, want[0])
        bench.close("probabilities", probabilities, want[1])

    return body


def _joint_vjp(sizes: Sizes) -> Body:
    def body(bench: Bench) -> None:
        hosts, placed = joint(bench, sizes)
        dy = bench.draw.normal(*hosts[0].shape)
        exact = [x.exact for x in hosts]
        probabilities = bench.draw.of(oracle.attend(*exact, scale=sizes.scale, offset=0)[1])
        bench.context = "causal_attention.attend_vjp of slices of one projection"
        got = bench.tools.causal_attention.attend_vjp(
            bench.put(dy), *placed, bench.put(probabilities), scale=sizes.scale
        )
        tracked = [x.tracked for x in (dy, *hosts, probabilities)]
        wants = oracle.attend_vjp(*tracked, scale=sizes.scale)
        compare(bench, ("dq", "dk", "dv"), got, wants)

    return body


def _rows(sizes: Sizes, dtype: DType) -> Body:
    def body(bench: Bench) -> None:
        """Exactly zero where unseen, positive elsewhere for moderate scores, and every row a distribution."""
        q, k, v = (bench.put(x) for x in normal(bench.draw, sizes, dtype))
        bench.context = "causal_attention.attend"
        got = bench.tools.causal_attention.attend(q, k, v, scale=sizes.scale, offset=sizes.offset)[1]
        probabilities = bench.get(got).astype(np.float64)
        visible = np.broadcast_to(seen(sizes), probabilities.shape)
        bench.require(not probabilities[~visible].any(), "a key that is not seen has a probability other than zero")
        bench.require((probabilities[visible] > 0).all(), "a key that is seen has no probability")
        allowed = (growth(sizes.keys) + 8) * FORMATS["float32"].unit
        sums = probabilities.sum(axis=-1)
        bench.within("row sums", sums, np.ones(sums.shape), allowed)

    return body


def _far_below(bench: Bench) -> None:
    """Equal scores of -2^60, below whatever number stands for minus infinity: each row is uniform over what it sees."""
    sizes = Sizes(1, 4, 6, 1, 1, 1, 0)
    q = bench.put(bench.draw.of(np.full((1, 4, 1, 1), 2.0**50)))
    k = bench.put(bench.draw.of(np.full((1, 6, 1, 1), -(2.0**50))))
    bench.context = "causal_attention.attend"
    v = bench.put(bench.draw.normal(1, 6, 1, 1))
    got = bench.get(bench.tools.causal_attention.attend(q, k, v, scale=2.0**-40, offset=0)[1])
    visible = seen(sizes)
    bench.require(not got[0, 0][~visible].any(), "a key that is not seen has a probability other than zero")
    want = np.where(visible, 1 / np.arange(1, 5)[:, None], 0.0)
    bench.within("probabilities", got[0, 0], want, 8 * FORMATS["float32"].unit)


def _float64(bench: Bench) -> None:
    """The output keeps the precision of float64."""
    bench.needs("float64")
    sizes = Sizes(2, 9, 12, 4, 2, 8, 3)
    inputs = normal(bench.draw, sizes, "float64")
    bench.context = "causal_attention.attend"
    q, k, v = (bench.put(x) for x in inputs)
    out, _ = bench.tools.causal_attention.attend(q, k, v, scale=sizes.scale, offset=sizes.offset)
    want = oracle.attend(*(x.tracked for x in inputs), scale=sizes.scale, offset=sizes.offset)[0]
    bench.close("output", out, want, "float64")


def _chain(bench: Bench) -> None:
    """The VJP fed with the backend's own probabilities."""
    sizes = Sizes(2, 9, 12, 4, 2, 8, 3)
    inputs, slot = normal(bench.draw, sizes), bench.tools.causal_attention
    dy = bench.draw.normal(*inputs[0].shape)
    q, k, v = (bench.put(x) for x in inputs)
    bench.context = "causal_attention.attend, then attend_vjp"
    _, probabilities = slot.attend(q, k, v, scale=sizes.scale, offset=sizes.offset)
    got = slot.attend_vjp(bench.put(dy), q, k, v, probabilities, scale=sizes.scale)
    tq, tk, tv = (x.tracked for x in inputs)
    mixed = oracle.attend(tq, tk, tv, scale=sizes.scale, offset=sizes.offset)[1]
    wants = oracle.attend_vjp(dy.tracked, tq, tk, tv, mixed, scale=sizes.scale)
    compare(bench, ("dq", "dk", "dv"), got, wants)
