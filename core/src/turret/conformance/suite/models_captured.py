"""Cases of captured steps: a compiled program of a whole model beside the same step run call by call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from turret.kv import StaticCache
from turret.optim import Adam, decay_groups
from turret.spi import DType, Host
from turret.tensor import Tensor, backward, capture, no_grad, ops

from ..bench import Bench
from ..case import Case
from ..given import Given
from ..instrument import TRANSFERS
from ..oracle import adam as adam_oracle
from ..oracle import models as oracle
from ..shaken import spread
from .drawn import Config, check_gradients, drawn_ids, drawn_model, drawn_targets

SIZE = (2, 7)
LR, BETAS, EPS, DECAY, MAX_NORM = 1e-2, (0.9, 0.99), 1e-3, 0.1, 1.0
"""EPS is large: a gradient that is nothing but rounding must not become a step of full length."""
Batches = list[tuple[Host, Host]]
Program = Callable[..., tuple[Any, ...]]
Compile = Callable[[Program, tuple[int, ...]], Program]


def captured_cases(families: dict[str, Config]) -> Iterator[Case]:
    """Forward, gradients and training steps of each family as programs of the device."""
    for family, config in families.items():
        checks: dict[str, Callable[..., None]] = {
            "forward": _forward,
            "gradients": _gradients,
            "step-3": partial(_train, rates=[LR] * 3, also_eager=True),
            "step-20": partial(_train, rates=[LR] * 20),
            "step-changed-rate": partial(_train, rates=[LR, LR / 10, 0.0, 3 * LR]),
            "undeclared-inputs": _undeclared,
            "decode": _decode,
            "by-capture": partial(_by_capture, rates=[LR, LR / 3, 2 * LR, LR]),
        }
        for name, check in checks.items():
            body = partial(check, config=config)
            yield Case(id=f"models/captured/{family}-{name}", body=body, kind="model")


class _Lifted:
    """A model on the examined backend whose parameters come in as arrays, as a program needs them."""

    def __init__(self, bench: Bench, config: Config) -> None:
        self.opened = bench.opened
        self.model, self.weights = drawn_model(bench, config)
        self.names = [name for name, _ in self.model.named_parameters()]
        self.parameters = self.model.parameters()

    @contextmanager
    def _holding(self, values: Sequence[Any]) -> Iterator[None]:
        own = [parameter.value for parameter in self.parameters]
        try:
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.replace(value)
            yield
        finally:
            for parameter, value in zip(self.parameters, own, strict=True):
                parameter.replace(value)

    def _ids(self, native: Any) -> Tensor:
        return Tensor(native, self.opened, "int32")

    def forward(self, *arrays: Any) -> tuple[Any, ...]:
        """Parameters and ids to logits."""
        *values, ids = arrays
        with self._holding(values), no_grad():
            return (self.model(self._ids(ids)).value,)

    def gradients(self, *arrays: Any) -> tuple[Any, ...]:
        """Parameters, ids and targets to the loss and every gradient."""
        *values, ids, targets = arrays
        with self._holding(values):
            loss = ops.cross_entropy(self.model(self._ids(ids)), self._ids(targets))
            found = backward(loss)
            return loss.value, *(found[parameter].value for parameter in self.parameters)

    def step(self, *arrays: Any) -> tuple[Any, ...]:
        """Parameters, both moments, ids, targets, rate and corrections to loss, whether all is finite, new state."""
        count = len(self.parameters)
        params, first, second = (arrays[n * count : (n + 1) * count] for n in range(3))
        ids, targets, lr, correction1, correction2 = arrays[3 * count :]
        loss, *grads = self.gradients(*params, ids, targets)
        made = self.opened.tools.adam.update(
            params,
            grads,
            first,
            second,
            lr=lr,
            correction1=correction1,
            correction2=correction2,
            betas=BETAS,
            eps=EPS,
            decay=[DECAY if len(p.shape) >= 2 else 0.0 for p in params],
            max_norm=MAX_NORM,
            donate=True,
        )
        return loss, made.finite, *made.params, *made.first, *made.second


def _put(bench: Bench, host: Host, dtype: DType) -> Any:
    return bench.put(Given(np.ascontiguousarray(host).reshape(host.shape), dtype))


def _held_parameters(bench: Bench, lifted: _Lifted) -> list[Any]:
    return [_put(bench, lifted.weights[name], "float32") for name in lifted.names]


def _forward(bench: Bench, config: Config) -> None:
    """Three calls of one program; what the first one gave is still right when the last one has run."""
    lifted = _Lifted(bench, config)
    program, held = bench.tools.compile.compile(lifted.forward), _held_parameters(bench, lifted)
    ids = [drawn_ids(bench, config, SIZE) for _ in range(3)]
    outs = [program(*held, _put(bench, each, "int32")) for each in ids]
    for n, (each, out) in enumerate(zip(ids, outs, strict=True)):
        bench.require(isinstance(out, tuple) and len(out) == 1, f"call {n} gave {out!r:.80}, wanted a tuple of one")
        want, allowed = spread(partial(_logits, config, each), lifted.weights, bench.draw.rng)
        bench.within(f"logits of call {n}", bench.get(out[0]), want[""], allowed[""])


def _logits(config: Config, ids: Host, weights: Mapping[str, Host]) -> dict[str, Host]:
    return {"": oracle.forward(config, weights, ids)}


def _gradients(bench: Bench, config: Config) -> None:
    lifted = _Lifted(bench, config)
    program, held = bench.tools.compile.compile(lifted.gradients), _held_parameters(bench, lifted)
    for _ in range(2):
        ids, targets = drawn_ids(bench, config, SIZE), drawn_targets(bench, config, SIZE)
        loss, *found = program(*held, _put(bench, ids, "int32"), _put(bench, targets, "int32"))
        check_gradients(bench, config, lifted.weights, ids, targets, loss, dict(zip(lifted.names, found, strict=True)))


class _Moves:
    """Notes every array that the function itself moves between host and device."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def before(self, slot: str, method: str, arguments: Any, options: Any) -> None:
        if slot == "storage" and method in TRANSFERS:
            self.seen.add(f"storage.{method}")

    def after(self, result: Any) -> None:
        """Results say nothing."""


def _train(bench: Bench, config: Config, rates: list[float], also_eager: bool = False) -> None:
    """The compiled step, its state donated and fed back, and the same step call by call: both follow the truth.

    Neither moves an array between host and device, in capture or in a call.
    """
    lifted = _Lifted(bench, config)
    batches = [(drawn_ids(bench, config, SIZE), drawn_targets(bench, config, SIZE)) for _ in rates]
    truth = partial(_trajectory, config, batches, rates)
    want, allowed = spread(truth, lifted.weights, bench.draw.rng)
    state = tuple(range(3 * len(lifted.names)))
    programs = {"captured": bench.tools.compile.compile(lifted.step, donate=state)}
    if also_eager:
        programs["call by call"] = lifted.step
    for label, program in programs.items():
        for name, value in _run(bench, lifted, program, batches, rates).items():
            bench.within(f"{label}: {name}", value, want[name], len(rates) * allowed[name])


def _run(bench: Bench, lifted: _Lifted, program: Program, batches: Batches, rates: list[float]) -> dict[str, Host]:
    state, found, moves, counts = _state(bench, lifted), {}, _Moves(), bench.subject.counts
    before = sum(counts.transfers.values())
    for n, ((ids, targets), rate) in enumerate(zip(batches, rates, strict=True), start=1):
        inputs = _step_inputs(bench, ids, targets, rate, n)
        counts.observer = moves
        try:
            loss, finite, *state = program(*state, *inputs)
        finally:
            counts.observer = None
        bench.require(bool(bench.get(finite)), f"step {n} says that something is not finite")
        found[f"loss of step {n}"] = bench.get(loss)
    bench.require(not moves.seen, f"the step went through the host: {', '.join(sorted(moves.seen))}")
    inside = sum(counts.transfers.values()) - before
    bench.require(not inside, f"slots moved {inside} arrays through the host: {', '.join(sorted(counts.transfers))}")
    for name, native in zip(lifted.names, state, strict=False):
        found[name] = bench.get(native)
    return found


def _state(bench: Bench, lifted: _Lifted) -> list[Any]:
    """Parameters and zero moments in buffers of their own, which a program may reuse."""
    storage = bench.subject.table.required.storage
    params = [storage.from_host(lifted.weights[name]) for name in lifted.names]
    return params + [storage.full(p.shape, 0.0, dtype="float32") for _ in range(2) for p in params]


def _step_inputs(bench: Bench, ids: Host, targets: Host, rate: float, step: int) -> list[Any]:
    scalars = (rate, 1 - BETAS[0] ** step, 1 - BETAS[1] ** step)
    return [
        _put(bench, ids, "int32"),
        _put(bench, targets, "int32"),
        *(_put(bench, np.asarray(value, np.float32), "float32") for value in scalars),
    ]


def _trajectory(config: Config, batches: Batches, rates: list[float], weights: Mapping[str, Host]) -> dict[str, Host]:
    """The truth of `_run`."""
    params: tuple[Host, ...] = tuple(weights[name].astype(np.float64) for name in weights)
    first: tuple[Host, ...] = tuple(np.zeros(p.shape) for p in params)
    second = first
    found: dict[str, Host] = {}
    for n, ((ids, targets), rate) in enumerate(zip(batches, rates, strict=True), start=1):
        here = dict(zip(weights, params, strict=True))
        loss, gradients = oracle.loss_and_gradients(config, here, ids, targets)
        found[f"loss of step {n}"] = np.asarray(loss)
        params, first, second, _, _ = adam_oracle.update(
            params,
            [gradients[name] for name in weights],
            first,
            second,
            lr=np.asarray(rate),
            correction1=np.asarray(1 - BETAS[0] ** n),
            correction2=np.asarray(1 - BETAS[1] ** n),
            betas=BETAS,
            eps=EPS,
            decay=[DECAY if p.ndim >= 2 else 0.0 for p in params],
            max_norm=MAX_NORM,
        )
    return {**found, **dict(zip(weights, params, strict=True))}


def _by_capture(bench: Bench, config: Config, rates: list[float]) -> None:
    """The same training as users write it: `turret.capture` over a model and its optimizer, one program for all."""
    model, weights = drawn_model(bench, config)
    optimizer = Adam(decay_groups(model.named_parameters(), DECAY), betas=BETAS, eps=EPS, max_norm=MAX_NORM)

    def step(ids: Tensor, targets: Tensor) -> Tensor:
        loss = ops.cross_entropy(model(ids), targets)
        optimizer.step(backward(loss))
        return loss

    captured = capture(step, state=[model, optimizer])
    batches = [(drawn_ids(bench, config, SIZE), drawn_targets(bench, config, SIZE)) for _ in rates]
    found = {}
    for n, (batch, rate) in enumerate(zip(batches, rates, strict=True), start=1):
        optimizer.lr = rate
        ids, targets = (Tensor(_put(bench, each, "int32"), bench.opened, "int32") for each in batch)
        found[f"loss of step {n}"] = captured(ids, targets).numpy()
    found |= model.state_dict()
    want, allowed = spread(partial(_trajectory, config, batches, rates), weights, bench.draw.rng)
    for name, value in found.items():
        bench.within(name, value, want[name], len(rates) * allowed[name])
    bench.require(optimizer.steps == len(rates), f"the optimizer counts {optimizer.steps} steps, wanted {len(rates)}")
    wanted = int("compile" in bench.tools.native)
    bench.require(captured.compiles == wanted, f"{captured.compiles} programs were compiled, wanted {wanted}")


def _decode(bench: Bench, config: Config) -> None:
    """A prompt and then token by token through one captured step a count: the rows of the full forward."""
    model, weights = drawn_model(bench, config)
    cache = StaticCache(
        bench.opened,
        layers=model.blocks_count,
        batch=2,
        capacity=model.context,
        kv_heads=model.kv_heads,
        head_size=model.head_size,
    )
    captured = capture(lambda rows: model(rows, cache), state=[model, cache])
    ids = drawn_ids(bench, config, (2, config.context))
    want, allowed = spread(partial(_logits, config, ids), weights, bench.draw.rng)
    start = 0
    for count in (config.context - 4, 1, 1, 1, 1):
        cache.begin(count)
        with no_grad():
            piece = Tensor(_put(bench, ids[:, start : start + count], "int32"), bench.opened, "int32")
            logits = captured(piece).numpy()
        bench.within(f"positions from {start}", logits, want[""][:, start : start + count], allowed[""])
        start += count
    wanted = 2 if "compile" in bench.tools.native else 0
    bench.require(captured.compiles == wanted, f"{captured.compiles} programs were compiled, wanted {wanted}")


def _undeclared(bench: Bench, config: Config) -> None:
    """A program without donated arguments may write none, however its function reuses what it made itself."""
    lifted = _Lifted(bench, config)

    def step(*arrays: Any) -> tuple[Any, ...]:
        copy, count = bench.tools.storage.copy, 3 * len(lifted.names)
        return lifted.step(*map(copy, arrays[:count]), *arrays[count:])

    program = bench.tools.compile.compile(step)
    state = [_put(bench, bench.get(native), "float32") for native in _state(bench, lifted)]
    ids, targets = drawn_ids(bench, config, SIZE), drawn_targets(bench, config, SIZE)
    inputs = _step_inputs(bench, ids, targets, LR, 1)
    first, again = ([bench.get(out) for out in program(*state, *inputs)] for _ in range(2))
    bench.within("the loss of a second call", again[0], first[0].astype(np.float64), 1e-5)
    bench.untouched()
