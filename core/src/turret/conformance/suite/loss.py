"""Cases of the loss slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from turret.spi import HALVES, DType, Host

from ..case import Case, call_case
from ..given import Call, Draw, Given, Slope
from ..oracle import loss as oracle
from ..tracked import Tracked
from .naming import SHORT, variant
from .views import WHOLE, Views, cut_out, of, rotated

if TYPE_CHECKING:
    from ..bench import Bench

SIZES = ((1, 1), (1, 5), (3, 1), (7, 1000), (3, 4099), (0, 5))
MIXED_SIZES = ((63, 65), (5, 1025), (1025, 4))
NARROW: tuple[DType, ...] = ("float16", "bfloat16", "float64")
NOWHERE = -100
Values = Callable[[Draw], Host]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Logits (N, V), targets (N,), weights (N,) or None, and the target that counts for nothing."""

    logits: Host
    targets: Host
    weights: Host | None = None
    ignore: int = NOWHERE

    def given(self, draw: Draw, dtype: DType, views: Views) -> tuple[Given, Given, Given | None]:
        weights = None
        if self.weights is not None:
            weights = draw.of(self.weights, "float32", of(views, "weights"))
        logits = draw.of(self.logits, dtype, of(views, "logits"))
        return logits, draw.of(self.targets, "int32", of(views, "targets")), weights


Build = Callable[[Draw], Batch]


def cases() -> Iterator[Case]:
    """Cross entropy and its gradient: sizes, views, dtypes, what is ignored, weights, extreme logits."""
    for rows, classes in SIZES:
        yield from _both(variant((rows, classes)), _plain(rows, classes))
    for rows, classes in MIXED_SIZES:
        yield from _both(variant((rows, classes), "float32", "mixed"), _mixed(rows, classes))
    yield _gradient(variant((66000, 2), "float32", "mixed"), _mixed(66000, 2), differences=False)
    for views in rotated("logits", "targets", "weights"):
        yield from _both(variant((6, 35), views=views), _mixed(6, 35), views=views)
    yield _cut_out()
    for dtype in NARROW:
        yield from _both(variant((63, 65), dtype, "mixed"), _mixed(63, 65), dtype)
        yield from _both(f"far-apart-{SHORT[dtype]}", _far_apart, dtype)
    for word, ignore in IGNORED.items():
        yield from _both(f"ignore-{word}-f32", _mixed(9, 33, ignore))
    for word, build in BATCHES.items():
        yield from _both(f"{word}-f32", build)
    for word, build in HUGE.items():
        yield from _both(f"{word}-f32", build, differences=False)
    for word, build in NOTHING.items():
        yield _nothing(word, build)
    yield Case(id="loss/cross-entropy-grad/one-pass-f32", body=_one_pass, kind="vjp")


def _plain(rows: int, classes: int) -> Build:
    """No weights and nothing ignored."""
    return lambda draw: Batch(logits=_logits(draw, rows, classes), targets=_targets(draw, rows, classes))


def _mixed(rows: int, classes: int, ignore: int = NOWHERE) -> Build:
    """Weights with zeros among them; the first and the last of at least five rows ignored, and one between."""

    def build(draw: Draw) -> Batch:
        targets, weights = _targets(draw, rows, classes), draw.rng.uniform(0.2, 3.0, rows)
        weights[1::5] = 0.0
        if -(2**31) <= ignore < 2**31:
            targets[[0, rows // 2, -1]] = ignore
        return Batch(logits=_logits(draw, rows, classes), targets=targets, weights=weights, ignore=ignore)

    return build


def _logits(draw: Draw, rows: int, classes: int) -> Host:
    return draw.rng.standard_normal((rows, classes)) * 2.0 + 1.0


def _targets(draw: Draw, rows: int, classes: int) -> Host:
    """Every class may come, the first and the last surely do where there is room."""
    targets = draw.rng.integers(0, classes, rows)
    targets[1:3] = np.array([classes - 1, 0])[: max(0, rows - 1)]
    return targets


IGNORED = {
    "minus-one": -1,
    "first-class": 0,
    "last-class": 32,
    "least": -(2**31),
    "greatest": 2**31 - 1,
    # its low 32 bits are a class
    "beyond-int32": 2**32 + 3,
}


def _unweighted(draw: Draw) -> Batch:
    """Ignored rows without weights: the rest is a plain mean."""
    targets = _targets(draw, 9, 33)
    targets[[0, 5, 8]] = NOWHERE
    return Batch(logits=_logits(draw, 9, 33), targets=targets)


def _weighted(scale: float, rows: int = 7) -> Build:
    def build(draw: Draw) -> Batch:
        weights = draw.rng.uniform(0.5, 1.0, rows) * scale
        return Batch(logits=_logits(draw, rows, 33), targets=_targets(draw, rows, 33), weights=weights)

    return build


def _uneven_weights(draw: Draw) -> Batch:
    weights = np.array([1e-6, 1e3, 1.0, 0.0, 20.0, 1e-3, 1.0])
    return Batch(logits=_logits(draw, 7, 33), targets=_targets(draw, 7, 33), weights=weights)


def _far_apart(draw: Draw) -> Batch:
    """Logits up to 1e4 apart; targets at the top, in the middle and at the bottom; rows that are far from 0."""
    logits = draw.rng.standard_normal((6, 65))
    logits[0, 3], logits[1, 64], logits[2, 7] = 1e4, 1e4, -1e4
    logits[3] += 1e4
    logits[4] -= 1e4
    logits[5, 0] = 50.0
    return Batch(logits=logits, targets=np.array([3, 0, 7, 64, 1, 0]))


def _equal(draw: Draw) -> Batch:
    return Batch(logits=np.repeat([[0.0], [-1e4], [1e30]], 1030, axis=1), targets=np.array([0, 517, 1029]))


BATCHES: dict[str, Build] = {
    "ignored-without-weights": _unweighted,
    "weights-tiny": _weighted(1e-12),
    "weights-huge": _weighted(1e12),
    "weights-below-one": _weighted(0.1, rows=3),
    "weights-uneven": _uneven_weights,
}


def _huge(draw: Draw) -> Batch:
    logits = draw.rng.standard_normal((3, 65))
    logits[0, 64], logits[1, 0], logits[2] = 1e30, -1e30, -3e38
    return Batch(logits=logits, targets=np.array([64, 5, 9]))


def _huge_in_vain(draw: Draw) -> Batch:
    """Rows that count for nothing hold logits whose differences overflow: 0 times infinity must not be formed."""
    batch = _mixed(9, 65, NOWHERE)(draw)
    for row in (0, 1, 8):
        batch.logits[row] = np.where(np.arange(65) % 2, 3e38, -3e38)
    batch.targets[1] = 2
    return batch


HUGE: dict[str, Build] = {"far-apart": _far_apart, "equal": _equal, "huge": _huge, "huge-in-vain": _huge_in_vain}


def _all_ignored(weights: bool) -> Build:
    def build(draw: Draw) -> Batch:
        drawn = draw.rng.uniform(0.5, 2.0, 5) if weights else None
        return Batch(logits=_logits(draw, 5, 33) * 10, targets=np.full(5, NOWHERE), weights=drawn)

    return build


def _weightless(ignored: int) -> Build:
    """All weights 0, and the first `ignored` targets ignored besides."""

    def build(draw: Draw) -> Batch:
        targets = np.where(np.arange(5) < ignored, NOWHERE, _targets(draw, 5, 33))
        return Batch(logits=_logits(draw, 5, 33), targets=targets, weights=np.zeros(5))

    return build


def _weight_where_ignored(draw: Draw) -> Batch:
    """Only ignored rows weigh something."""
    targets = np.array([NOWHERE, 3, NOWHERE])
    return Batch(logits=_logits(draw, 3, 33), targets=targets, weights=np.array([2.0, 0.0, 1.0]))


NOTHING: dict[str, Build] = {
    "all-ignored": _all_ignored(False),
    "all-ignored-weights": _all_ignored(True),
    "weightless": _weightless(0),
    "weightless-ignored": _weightless(2),
    "weight-where-ignored": _weight_where_ignored,
}


def _nothing(word: str, build: Build) -> Case:
    """A loss of exactly 0 and a gradient of zeros, from both methods."""

    def body(bench: Bench) -> None:
        logits, targets, weights = build(bench.draw).given(bench.draw, "float32", WHOLE)
        for method in ("cross_entropy", "cross_entropy_grad"):
            results = bench.call(Call("loss", method, (logits, targets, weights), {"ignore": NOWHERE}))
            loss, gradient = results if method == "cross_entropy_grad" else (results, None)
            bench.close("loss", loss, np.zeros(()))
            if gradient is not None:
                bench.close("gradient", gradient, np.zeros(logits.shape))

    return Case(id=f"loss/cross-entropy-grad/{word}-f32", body=body, kind="vjp")


def _both(
    name: str, build: Build, dtype: DType = "float32", *, views: Views = WHOLE, differences: bool = True
) -> Iterator[Case]:
    """The loss alone, and the loss with its gradient. The loss is float32 of rank 0 whatever the logits are."""

    def call(draw: Draw) -> Call:
        batch = build(draw)
        return Call("loss", "cross_entropy", batch.given(draw, dtype, views), {"ignore": batch.ignore})

    yield call_case(f"loss/cross-entropy/{name}", call, oracle.cross_entropy, returns=_returns(dtype)[:1])
    yield _gradient(name, build, dtype, views=views, differences=differences)


def _gradient(
    name: str, build: Build, dtype: DType = "float32", *, views: Views = WHOLE, differences: bool = True
) -> Case:
    def call(draw: Draw) -> Call:
        batch = build(draw)
        logits, targets, weights = given = batch.given(draw, dtype, views)
        slope = None
        if differences and dtype not in HALVES:
            slope = _slope(logits, targets.exact, None if weights is None else weights.exact, batch.ignore)
        return Call("loss", "cross_entropy_grad", given, {"ignore": batch.ignore}, slope=slope)

    truth, returns = oracle.cross_entropy_grad, _returns(dtype)
    return call_case(f"loss/cross-entropy-grad/{name}", call, truth, kind="vjp", returns=returns)


def _cut_out() -> Case:
    """Logits, targets and weights between others, as where a vocabulary was padded."""

    def build(draw: Draw) -> Call:
        batch = _mixed(7, 35)(draw)
        return Call("loss", "cross_entropy_grad", batch.given(draw, "float32", WHOLE), {"ignore": batch.ignore})

    return cut_out("loss/cross-entropy-grad", build, oracle.cross_entropy_grad, kind="vjp")


def _returns(dtype: DType) -> tuple[DType, DType]:
    """The loss is float32 unless everything is float64."""
    return "float64" if dtype == "float64" else "float32", dtype


def _slope(logits: Given, targets: Host, weights: Host | None, ignore: int) -> Slope:
    """The two results are the gradients of factor * loss at factor 1: for the factor and for the logits."""

    def scaled(factor: Any, x: Any) -> Any:
        return factor * oracle.cross_entropy(x, targets, weights, ignore=ignore)

    return Slope(scaled, (np.ones(()), logits.exact), np.ones(()))


def _one_pass(bench: Bench) -> None:
    """The loss that comes with the gradient is the loss."""
    batch = _mixed(65, 130)(bench.draw)
    given = batch.given(bench.draw, "float32", WHOLE)
    alone = bench.call(Call("loss", "cross_entropy", given, {"ignore": batch.ignore}))
    along, _ = bench.call(Call("loss", "cross_entropy_grad", given, {"ignore": batch.ignore}))
    logits, targets, weights = given
    assert weights is not None
    truth = oracle.cross_entropy(logits.tracked, targets.exact, weights.exact, ignore=batch.ignore)
    bench.close("loss alone", alone, truth)
    host = bench.get(alone).astype(np.float64)
    bench.close("loss with gradient, beside the loss alone", along, Tracked(host, truth.error, truth.unit))
