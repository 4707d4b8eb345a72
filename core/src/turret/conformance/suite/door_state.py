"""Cases of core's door that look at what a refusal leaves behind: graphs, parameters, optimizers, models, caches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from turret.kv import ContiguousCache
from turret.models import DecoderConfig, LanguageModel, build_model
from turret.optim import Adam
from turret.spi import (
    BackendMismatch,
    DataError,
    DTypeError,
    GraphError,
    NonFiniteError,
    ShapeError,
    StaleGraph,
    TurretError,
)
from turret.tensor import Parameter, Tensor, backward, no_grad, tensor

from ..bench import Bench
from ..case import Case
from ..given import Given
from ..instrument import uncounted

CONFIG = DecoderConfig(vocabulary=5, context=4, width=4, heads=2, blocks=1, feed_forward=4)


def state_cases() -> Iterator[Case]:
    """One promise each: after the refusal everything is as it was, and the right call that follows is right."""
    checks: dict[str, Callable[[Bench], None]] = {
        "graph/failed-operation": _graph_survives,
        "graph/seed": _seeds,
        "graph/no-graph": _no_graph,
        "graph/stale": _stale,
        "parameter/assign": _assign,
        "model/token-ids": _token_ids,
        "model/state": _model_state,
        "model/other-backend": _model_elsewhere,
        "cache/keys": _cache,
        "optimizer/missing-gradient": _missing_gradient,
        "optimizer/not-finite": _not_finite,
    }
    for name, check in checks.items():
        yield Case(id=f"door/{name}", body=check, kind="door")


def refused(bench: Bench, error: type[TurretError], call: Callable[[], object]) -> None:
    """The call raises `error`, says something, and reaches neither a slot of the plugin nor a composition."""
    counts = bench.subject.counts
    before: Counter[str] = counts.calls + counts.derived
    text = bench.refuses(error, call)
    bench.require(text.strip(), f"{error.__name__} was raised without a word")
    reached = (counts.calls + counts.derived) - before
    bench.require(not reached, f"slots were called before {error.__name__} was raised: {', '.join(sorted(reached))}")


def _f(bench: Bench, *shape: int, leaf: bool = False) -> Tensor:
    given = Given(bench.draw.normal(math.prod(shape)).host.reshape(shape), "float32")
    return Tensor(bench.put(given), bench.opened, "float32", requires_grad=leaf)


def _same_state(bench: Bench, label: str, got: dict[str, Any], want: dict[str, Any]) -> None:
    for name, value in want.items():
        bench.same(f"{label} {name}", got[name], value)


def _graph_survives(bench: Bench) -> None:
    x, y = _f(bench, 2, 3, leaf=True), _f(bench, 2, 3)
    product = x * y
    refused(bench, ShapeError, lambda: product + _f(bench, 3, 2))
    refused(bench, DTypeError, lambda: product + tensor_like(bench, "int32"))
    found = backward(product.sum())
    bench.require(len(found) == 1, f"the graph has {len(found)} leaves after a refusal, wanted 1")
    bench.same("gradient", found[x].numpy(), y.numpy())


def tensor_like(bench: Bench, dtype: Any) -> Tensor:
    """A tensor (2, 3) of another dtype, made without a counted call."""
    return Tensor(bench.put(bench.draw.integers(2, 3, low=0, high=2, dtype=dtype)), bench.opened, dtype)


def _seeds(bench: Bench) -> None:
    x = _f(bench, 2, 3, leaf=True)
    y = x * 3
    other = uncounted(bench.opened)
    right = _f(bench, 2, 3)
    refused(bench, GraphError, lambda: backward(y))
    refused(bench, ShapeError, lambda: backward(y, _f(bench, 3, 2)))
    refused(bench, DTypeError, lambda: backward(y, tensor_like(bench, "int32")))
    refused(bench, BackendMismatch, lambda: backward(y, Tensor(right.value, other, "float32")))
    found = backward(y, right)[x].numpy()
    bench.within("gradient", found, 3 * right.numpy().astype(np.float64), 1e-6)
    refused(bench, GraphError, lambda: backward(y, right))


def _no_graph(bench: Bench) -> None:
    x = _f(bench, leaf=False)
    refused(bench, GraphError, lambda: backward(x))
    with no_grad():
        y = _f(bench, leaf=True) * 2
    refused(bench, GraphError, lambda: backward(y))


def _stale(bench: Bench) -> None:
    weight = Parameter(np.full((3,), 2.0, np.float32))
    y = (weight * _f(bench, 3)).sum()
    weight.assign(bench.put(bench.draw.normal(3)))
    bench.refuses(StaleGraph, lambda: y.backward())
    bench.require(weight.grad is None, "a refused backward left a gradient")


def _assign(bench: Bench) -> None:
    weight = Parameter(bench.draw.normal(2, 3).host)
    before, version = weight.numpy(), weight.version
    bench.refuses(ShapeError, lambda: weight.assign(bench.put(bench.draw.normal(3, 2))))
    bench.refuses(DTypeError, lambda: weight.assign(bench.put(bench.draw.integers(2, 3, low=0, high=9))))
    bench.same("value", weight.numpy(), before)
    bench.require(weight.version == version, "a refused assignment counted as a change")


def _model(bench: Bench) -> tuple[LanguageModel, dict[str, Any]]:
    model = build_model(CONFIG)
    state = {name: bench.draw.normal(*value.shape).host for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    return model, state


def _ids(bench: Bench, *shape: int, dtype: Any = "int32") -> Tensor:
    given = bench.draw.integers(*shape, low=0, high=2, dtype=dtype)
    return Tensor(bench.put(given), bench.opened, dtype)


def _token_ids(bench: Bench) -> None:
    model, _ = _model(bench)
    refused(bench, DataError, lambda: model(_ids(bench, 1, 3, dtype="uint8")))
    refused(bench, DataError, lambda: model(_f(bench, 1, 3)))
    refused(bench, DataError, lambda: model(_ids(bench, 3)))
    refused(bench, DataError, lambda: model(_ids(bench, 1, 0)))
    refused(bench, DataError, lambda: model(np.zeros((1, 3), np.int32)))  # type: ignore[arg-type]
    refused(bench, ShapeError, lambda: model(_ids(bench, 1, CONFIG.context + 1)))


def _model_state(bench: Bench) -> None:
    model, state = _model(bench)
    name = next(iter(state))
    short = {**state, name: state[name][:-1]}
    refused(bench, ShapeError, lambda: model.load_state_dict(short))
    whole = {**state, name: state[name].astype(np.int32)}
    refused(bench, DTypeError, lambda: model.load_state_dict(whole))
    _same_state(bench, "parameter", model.state_dict(), state)


def _model_elsewhere(bench: Bench) -> None:
    model, state = _model(bench)
    other = uncounted(bench.opened)
    ids = _ids(bench, 1, 3)
    bench.refuses(BackendMismatch, lambda: model(Tensor(ids.value, other, "int32")))
    optimizer = Adam(model.named_parameters())
    model.to(other)
    bench.refuses(BackendMismatch, lambda: optimizer.step())
    _same_state(bench, "parameter", model.state_dict(), state)


def _cache(bench: Bench) -> None:
    cache = ContiguousCache(bench.opened, layers=1, batch=2, capacity=3, kv_heads=2, head_size=4)
    layer, right = cache.layers[0], _f(bench, 2, 1, 2, 4)
    refused(bench, GraphError, lambda: layer.append(right, right))
    with no_grad():
        for shape in ((1, 1, 2, 4), (2, 1, 1, 4), (2, 4, 2, 4)):
            wrong = _f(bench, *shape)
            refused(bench, ShapeError, partial(layer.append, wrong, wrong))
        refused(bench, DTypeError, lambda: layer.append(_ids(bench, 2, 1, 2, 4), _ids(bench, 2, 1, 2, 4)))
        keys, values = layer.append(right, right)
    bench.same("keys", keys.numpy(), right.numpy())
    bench.same("values", values.numpy(), right.numpy())
    bench.require(cache.length == 0, f"the cache says {cache.length} tokens before it was advanced")


def _missing_gradient(bench: Bench) -> None:
    model, state = _model(bench)
    optimizer = Adam(model.named_parameters())
    moments = optimizer.state_dict()
    refused(bench, GraphError, lambda: optimizer.step())
    bench.require(optimizer.steps == 0, "a refused step was counted")
    _same_state(bench, "parameter", model.state_dict(), state)
    _same_state(bench, "moment", optimizer.state_dict(), moments)


def _not_finite(bench: Bench) -> None:
    """All or nothing: one NaN among the gradients, found on the device, and every bit is as it was."""
    model, state = _model(bench)
    optimizer = Adam(model.named_parameters(), lr=0.5)
    moments = optimizer.state_dict()
    for bad in (np.nan, np.inf):
        bench.context = f"a gradient with {bad}"
        for n, parameter in enumerate(model.parameters()):
            host = bench.draw.normal(*parameter.shape).host.copy()
            host.reshape(-1)[-1] = bad if n == 1 else 1.0
            parameter.grad = tensor(host)
        bench.refuses(NonFiniteError, lambda: optimizer.step())
        bench.require(optimizer.steps == 0, "a refused step was counted")
        _same_state(bench, "parameter", model.state_dict(), state)
        _same_state(bench, "moment", optimizer.state_dict(), moments)
