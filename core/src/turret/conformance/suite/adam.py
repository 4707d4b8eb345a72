"""Cases of the optimizer's update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from turret.spi import HALVES, Adapted, DType, Host, Shape

from ..bench import Bench
from ..case import Body, Case, call_case
from ..given import Call, Draw, Given, View
from ..oracle import adam as oracle
from ..tolerances import FORMATS
from .naming import SHORT

MIXED: tuple[Shape, ...] = ((3, 2), (), (5,), (2, 1, 4))
LARGE: tuple[Shape, ...] = ((1025,), (5000,), (64, 65), (1,))
MANY: tuple[Shape, ...] = tuple((1 + n % 7,) for n in range(33))
VIEWED: tuple[Shape, ...] = ((6, 8), (4, 5))
BAD = {"nan": math.nan, "inf": math.inf, "minus-inf": -math.inf}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One update. grads: the size of the gradients, or what makes them of their shapes.

    fresh: moments are zero, as at the first step. decay: None for a different one per tensor.
    """

    shapes: tuple[Shape, ...] = MIXED
    dtype: DType = "float32"
    view: View = "whole"
    at: int = 3
    max_norm: float = math.inf
    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay: float | None = None
    grads: float | Callable[[Shape], Host] = 1.0
    fresh: bool = False

    def draw(self, draw: Draw) -> tuple[tuple[Given, ...], ...]:
        """params, grads, first, second."""
        made: list[tuple[Given, ...]] = []
        for shape in self.shapes:
            values = self.grads(shape) if callable(self.grads) else draw.rng.standard_normal(shape) * self.grads
            first = draw.normal(*shape, scale=0.0 if self.fresh else 0.1, view=self.view)
            second = draw.of(np.square(draw.rng.standard_normal(shape)) * (0.0 if self.fresh else 0.1), view=self.view)
            params = draw.normal(*shape, dtype=self.dtype, view=self.view)
            made.append((params, draw.of(values, self.dtype, self.view), first, second))
        return tuple(zip(*made, strict=True))

    def options(self, draw: Draw, *, donate: bool) -> dict[str, Any]:
        rates = tuple((0.1, 0.0, 0.5)[n % 3] if self.decay is None else self.decay for n in range(len(self.shapes)))
        return {
            "lr": draw.of(np.array(self.lr)),
            "correction1": draw.of(np.array(1 - self.betas[0] ** self.at)),
            "correction2": draw.of(np.array(1 - self.betas[1] ** self.at)),
            "betas": self.betas,
            "eps": self.eps,
            "decay": rates,
            "max_norm": self.max_norm,
            "donate": donate,
        }


def cases() -> Iterator[Case]:
    """Steps beside the oracle, clipping, extremes, refusal of what is not finite, donation."""
    for at in (1, 2, 1000):
        yield from _both(f"steps/t{at}", Step(at=at, fresh=at == 1))
    yield from _both("steps/t1-large", Step(shapes=LARGE, at=1, fresh=True))
    yield from _both("steps/large", Step(shapes=LARGE))
    many = Step(shapes=MANY, max_norm=1.0)
    yield Case(id="adam/steps/33-tensors-donated", body=_donated(many), kind="forward")
    yield from _both("steps/rank-0-alone", Step(shapes=((),)))
    yield from _both("steps/empty-among", Step(shapes=((0, 3), (2,), (4, 0))))
    yield from _both("steps/empty-alone", Step(shapes=((0,),)))
    for name, step in _settings().items():
        yield from _both(f"settings/{name}", step)
    for name, step in _clipping().items():
        yield from _both(f"clipping/{name}", step)
    for dtype in sorted(HALVES):
        for name, step in (
            ("t1", Step(at=1, fresh=True)),
            ("clipped", Step(max_norm=0.5)),
            ("large", Step(shapes=LARGE)),
        ):
            yield from _both(f"halves/{name}-{SHORT[dtype]}", replace(step, dtype=dtype))
    for view in ("transposed", "strided", "offset"):
        yield _valued(f"views/{view}", Step(shapes=VIEWED, view=view, max_norm=1.0), donate=False)
        yield Case(id=f"adam/views/{view}-donated", body=_donated_view(view), kind="forward")
    yield from _refusals()
    yield Case(id="adam/trajectory/six-steps", body=_trajectory, kind="forward")


def _settings() -> dict[str, Step]:
    return {
        "no-decay": Step(decay=0.0),
        "strong-decay": Step(decay=2.0, lr=0.3),
        # gradients of the size of eps: it counts, and it stands outside the root
        "eps-counts": Step(at=1, fresh=True, grads=1e-8),
        "eps-large": Step(eps=0.5),
        "eps-zero": Step(eps=0.0),
        "lr-zero": Step(lr=0.0),
        "lr-large": Step(lr=3.0),
        "betas-low": Step(betas=(0.5, 0.6), at=2),
        "betas-zero": Step(betas=(0.0, 0.0), at=1),
    }


def _clipping() -> dict[str, Step]:
    return {
        "active": Step(max_norm=0.25),
        "inactive": Step(max_norm=1e4),
        "exactly-at-norm": Step(max_norm=5.0, shapes=((2,), ()), grads=_three_four),
        "tiny-limit": Step(max_norm=1e-6),
        "one-tensor-dominates": Step(max_norm=1.0, shapes=((4,), (3, 3), (1200,)), grads=_uneven),
        "gradients-zero": Step(max_norm=1.0, grads=0.0),
        "gradients-zero-unclipped": Step(grads=0.0),
        "gradients-1e30": Step(max_norm=1.0, grads=1e30, shapes=LARGE),
        "gradients-1e-30": Step(max_norm=1.0, grads=1e-30),
        "gradients-1e-30-unclipped": Step(grads=1e-30, shapes=LARGE),
        "gradients-1e15-unclipped": Step(grads=1e15),
        "gradients-1e25-beside-1": Step(max_norm=1.0, shapes=((3,), (1,), (2, 2)), grads=_beside),
    }


def _three_four(shape: Shape) -> Host:
    """A norm of 5 over a vector and a scalar."""
    return np.array(4.0) if shape == () else np.array([3.0, 0.0])


def _uneven(shape: Shape) -> Host:
    return np.full(shape, 100.0 if shape == (3, 3) else 0.01)


def _beside(shape: Shape) -> Host:
    return np.full(shape, 1e25 if shape == (1,) else 1.0)


def _both(name: str, step: Step) -> Iterator[Case]:
    yield _valued(name, step, donate=False)
    yield Case(id=f"adam/{name}-donated", body=_donated(step), kind="forward")


def _valued(name: str, step: Step, *, donate: bool) -> Case:
    def build(draw: Draw) -> Call:
        return Call("adam", "update", step.draw(draw), step.options(draw, donate=donate))

    return call_case(f"adam/{name}", build, _truth, returns=_dtypes(step))


def _truth(*given: Any, **options: Any) -> Any:
    return oracle.update(*given, **options, largest=FORMATS["float32"].greatest)


def _dtypes(step: Step) -> list[DType]:
    count = len(step.shapes)
    return [*[step.dtype] * count, *["float32"] * (2 * count + 1), "bool"]  # type: ignore[list-item]


def _given(bench: Bench, options: dict[str, Any], *, tracked: bool = False) -> dict[str, Any]:
    """The options with their arrays on the device, or ready for the oracle."""
    return {key: (x.tracked if tracked else bench.put(x)) if isinstance(x, Given) else x for key, x in options.items()}


def _updated(bench: Bench, step: Step, hosts: Any, *, donate: bool) -> Adapted[Any]:
    """The call on these inputs."""
    params, grads, first, second = (tuple(bench.put(x) for x in group) for group in hosts)
    if donate:
        bench.donates(*params, *first, *second)
    bench.context = f"adam.update of {len(params)} tensors, donate={donate}"
    options = _given(bench, step.options(bench.draw, donate=donate))
    got: Adapted[Any] = bench.tools.adam.update(params, grads, first, second, **options)
    bench.require(isinstance(got, Adapted), f"got {type(got).__name__}, wanted Adapted")
    return got


def _wanted(bench: Bench, step: Step, hosts: Any) -> Any:
    tracked = [tuple(x.tracked for x in group) for group in hosts]
    return _truth(*tracked, **_given(bench, step.options(bench.draw, donate=False), tracked=True))


def _donated(step: Step) -> Body:
    """Values are right as well where the old arrays may be written."""

    def body(bench: Bench) -> None:
        hosts = step.draw(bench.draw)
        _compare(bench, step, _updated(bench, step, hosts, donate=True), _wanted(bench, step, hosts))

    return body


def _compare(bench: Bench, step: Step, got: Adapted[Any], want: Any) -> None:
    for label, results, wants, dtype in zip(
        ("params", "first", "second"), got[:3], want[:3], (step.dtype, "float32", "float32"), strict=True
    ):
        bench.require(len(results) == len(wants), f"{label}: got {len(results)} tensors, wanted {len(wants)}")
        for n, (result, truth) in enumerate(zip(results, wants, strict=True)):
            bench.close(f"{label}[{n}]", result, truth, dtype)
    bench.close("norm", got.norm, want[3])
    bench.exact("finite", got.finite, np.array(want[4]), "bool")


def _donated_view(view: View) -> Body:
    """Where donated arrays are views, what lies between and beside their elements stays."""
    step = Step(shapes=((6, 8),), view=view)

    def body(bench: Bench) -> None:
        hosts, storage, layout = step.draw(bench.draw), bench.tools.storage, bench.tools.layout
        pairs = [[x.put(storage, layout) for x in group] for group in hosts]
        wholes = [storage.to_host(whole) for group in pairs for _, whole in group]
        params, grads, first, second = ([array for array, _ in group] for group in pairs)
        bench.context = f"adam.update of donated {view} views"
        options = _given(bench, step.options(bench.draw, donate=True))
        got = bench.tools.adam.update(params, grads, first, second, **options)
        _compare(bench, step, got, _wanted(bench, step, hosts))
        for before, (_, whole) in zip(wholes, [pair for group in pairs for pair in group], strict=True):
            foreign = np.isnan(before)
            now = storage.to_host(whole)
            bench.require(np.isnan(now[foreign]).all(), "memory beside a donated view was written")

    return body


def _refusals() -> Iterator[Case]:
    for word, value in BAD.items():
        for place in ("first", "middle", "last"):
            for donate in (False, True):
                body = _refused(_struck(1, place, value), donate=donate)
                yield Case(id=f"adam/refusal/{word}-gradient-{place}{_word(donate)}", body=body, kind="forward")
    for group, label in ((2, "first-moment"), (3, "second-moment"), (0, "parameter")):
        for word in ("nan", "inf"):
            body = _refused(_struck(group, "middle", BAD[word]), donate=True)
            yield Case(id=f"adam/refusal/{word}-{label}-donated", body=body, kind="forward")
    plain = Step(shapes=((1500,), (3, 3), ()), max_norm=1.0)
    for donate in (False, True):
        for name, step in (
            # (1 - 0.999) * 1e22^2 is beyond float32
            ("second-moment-overflows", replace(plain, max_norm=math.inf, grads=1e22)),
            ("one-second-moment-overflows", replace(plain, max_norm=math.inf, grads=_last_huge)),
            ("norm-overflows", replace(plain, grads=lambda shape: np.full(shape, 3e38))),
            ("parameter-overflows", replace(plain, lr=3e38, decay=1e3)),
        ):
            yield Case(id=f"adam/refusal/{name}{_word(donate)}", body=_refused(step.draw, step, donate), kind="forward")
        half = replace(plain, dtype="float16", lr=6e4, decay=100.0)
        yield Case(
            id=f"adam/refusal/parameter-beyond-half{_word(donate)}-f16",
            body=_refused(half.draw, half, donate),
            kind="forward",
        )


def _word(donate: bool) -> str:
    return "-donated" if donate else "-kept"


def _last_huge(shape: Shape) -> Host:
    return np.full(shape, 1e22 if shape == () else 1e-3)


def _struck(group: int, place: str, value: float) -> Callable[[Draw], Any]:
    """Inputs of which one element is `value`: the last of the first tensor, one within the middle, the scalar."""
    shapes: tuple[Shape, ...] = ((1500,), (3, 3), ())

    def draw(draw: Draw) -> Any:
        hosts = Step(shapes=shapes).draw(draw)
        tensor, at = {"first": (0, (1499,)), "middle": (1, (1, 2)), "last": (2, ())}[place]
        hosts[group][tensor].host[at] = value
        hosts[0][0].host[:3] = (-0.0, 0.0, 1e-30)
        return hosts

    return draw


def _refused(draw: Callable[[Draw], Any], step: Step | None = None, donate: bool = False) -> Body:
    """finite is False, and all that comes back is bit for bit what went in."""
    asked = step or Step(shapes=((1500,), (3, 3), ()), max_norm=1.0)

    def body(bench: Bench) -> None:
        hosts = draw(bench.draw)
        got = _updated(bench, asked, hosts, donate=donate)
        bench.exact("finite", got.finite, np.array(False), "bool")
        for label, results, olds in zip(("params", "first", "second"), got[:3], (0, 2, 3), strict=True):
            for n, (result, old) in enumerate(zip(results, hosts[olds], strict=True)):
                bench.exact(f"{label}[{n}]", result, old.host, old.dtype)
        kind = bench.tools.storage.dtype_of(got.norm), tuple(got.norm.shape)
        bench.require(kind == ("float32", ()), f"norm: got {kind[0]} {kind[1]}, wanted float32 of rank 0")

    return body


def _trajectory(bench: Bench) -> None:
    """Six donated steps, one of them refused: state carries over, and the refused step leaves no trace."""
    shapes: tuple[Shape, ...] = ((3, 2), (), (7,))
    step = Step(shapes=shapes, max_norm=2.0, fresh=True)
    hosts = step.draw(bench.draw)
    state: Any = tuple(tuple(bench.put(x) for x in group) for group in (hosts[0], hosts[2], hosts[3]))
    bench.donates(*(x for group in state for x in group))
    wanted: Any = tuple(tuple(x.tracked for x in group) for group in (hosts[0], hosts[2], hosts[3]))
    for at in range(1, 7):
        grads = tuple(bench.draw.normal(*shape) for shape in shapes)
        if at == 3:
            grads[1].host[()] = math.nan
        options = replace(step, at=at).options(bench.draw, donate=True)
        bench.context = f"adam.update, step {at} of 6"
        placed = tuple(bench.put(x) for x in grads)
        got = bench.tools.adam.update(state[0], placed, state[1], state[2], **_given(bench, options))
        exact = tuple(x.tracked for x in grads)
        want = _truth(wanted[0], exact, *wanted[1:], **_given(bench, options, tracked=True))
        bench.exact("finite", got.finite, np.array(at != 3), "bool")
        state, wanted = (got.params, got.first, got.second), want[:3]
        for label, results, wants in zip(("params", "first", "second"), state, wanted, strict=True):
            for n, (result, each) in enumerate(zip(results, wants, strict=True)):
                bench.close(f"{label}[{n}]", result, each)
