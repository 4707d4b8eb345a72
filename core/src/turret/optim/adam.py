"""Adam with decoupled weight decay over named parameters, committed whole or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from turret.registry import OpenBackend
from turret.spi import Adapted, BackendMismatch, CaptureError, ConfigError, GraphError, Host, NonFiniteError, ShapeError
from turret.tensor import Gradients, Parameter, Tensor
from turret.tensor.graph import Native
from turret.tensor.state import check_host
from turret.tensor.tracing import explaining, giving, stepping, user_line

from .moments import Moments

OVERFLOW = (
    "the gradients are finite but the update is not (an overflow in a moment or a parameter); nothing was changed: "
    "clip gradients with max_norm or lower the learning rate"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters that share a decay rate."""

    parameters: tuple[tuple[str, Parameter], ...]
    weight_decay: float = 0.0


def decay_groups(named: Iterable[tuple[str, Parameter]], weight_decay: float) -> tuple[ParameterGroup, ParameterGroup]:
    """Two groups: matrices and tables decay, vectors (norms and biases) do not."""
    everything = tuple((name, p) for name, p in named if p.trainable)
    matrices = tuple((name, p) for name, p in everything if p.ndim >= 2)
    vectors = tuple((name, p) for name, p in everything if p.ndim < 2)
    return ParameterGroup(parameters=matrices, weight_decay=weight_decay), ParameterGroup(parameters=vectors)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamStats:
    """One committed step: its number from 1, and the norm of all gradients together, float32 of rank 0."""

    step: int
    norm: Tensor
    max_norm: float

    @property
    def gradient_norm(self) -> float:
        """The norm before clipping; waits for the device."""
        return float(self.norm.item())

    @property
    def clip_scale(self) -> float:
        """What the gradients were multiplied by; waits for the device."""
        norm = self.gradient_norm
        return 1.0 if norm <= self.max_norm else self.max_norm / norm


class Adam:
    """Source: Kingma and Ba 2015, algorithm 1; decay as in Loshchilov and Hutter 2019, algorithm 2.

    Gradients are scaled down together where their norm passes `max_norm` (None: never). Moments are float32, one pair
    per parameter, or split into pages of `page_elements`: allocation changes, results do not. A step that would store a
    value that is not finite raises NonFiniteError and leaves parameters, moments and the step count as they were.
    Arrays taken from a parameter before a step (views, captured values) must not be used after it. `lr` may be changed
    between steps. `stats` is of the last step, None before. In a captured step the old values are kept on the device
    where the new ones are not finite, and the call raises.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Parameter]] | Sequence[ParameterGroup],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        max_norm: float | None = 1.0,
        page_elements: int | None = None,
    ) -> None:
        groups = _as_groups(parameters)
        _check_hyper(lr, betas, eps, max_norm, groups)
        self._names = [name for group in groups for name, _ in group.parameters]
        self._parameters = [p for group in groups for _, p in group.parameters]
        self._decay = [group.weight_decay for group in groups for _ in group.parameters]
        self._backend = _check_parameters(self._names, self._parameters)
        self.lr, self._betas, self._eps = lr, betas, eps
        self._max_norm = math.inf if max_norm is None else max_norm
        self.steps = 0
        self.stats: AdamStats | None = None
        self._moments = Moments(self._backend, [p.shape for p in self._parameters], page_elements)
        full = self._backend.tools.storage.full
        self._settings = Tensor(full((3,), 1.0, dtype="float32"), self._backend, "float32")
        self._norm = Tensor(full((), 0.0, dtype="float32"), self._backend, "float32")
        self._finite = Tensor(full((), 1.0, dtype="bool"), self._backend, "bool")

    @property
    def betas(self) -> tuple[float, float]:
        """Fixed, like `eps` and `max_norm`: captured programs contain them."""
        return self._betas

    @property
    def eps(self) -> float:
        return self._eps

    @property
    def max_norm(self) -> float:
        return self._max_norm

    def step(
        self, gradients: Gradients | None = None, *, lr: float | None = None, loss: Tensor | None = None
    ) -> AdamStats:
        """Applies `gradients`, or every parameter's `grad`, which it clears.

        loss: float32 of rank 0; the step is refused as well where it is not finite.
        Raises: GraphError for a parameter without a gradient, BackendMismatch for one that has moved, NonFiniteError;
        nothing is changed then. CaptureError for `lr` in a captured step: set the attribute before the call.
        """
        for name, p in zip(self._names, self._parameters, strict=True):
            if p.backend is not self._backend:
                raise BackendMismatch(
                    f"'{name}' moved to {p.backend.spec} after its optimizer was made on {self._backend.spec}; "
                    f"make a new optimizer after module.to(...)"
                )
        grads = [self._gradient(name, p, gradients) for name, p in zip(self._names, self._parameters, strict=True)]
        if explaining():
            stats = self._explained_step(grads, loss)
        elif stepping(self, "optimizer.step", self._finite):
            stats = self._captured_step(grads, lr, loss)
        else:
            self._require_finite(loss)
            stats = self._committed_step(grads, self.lr if lr is None else lr)
        if gradients is None:
            for p in self._parameters:
                p.grad = None
        return stats

    def _committed_step(self, grads: list[Native], rate: float) -> AdamStats:
        storage = self._backend.tools.storage
        step = self.steps + 1
        made = self.compute(grads, *(storage.from_host(x) for x in self._scalars(rate)), donate=True)
        finite = bool(storage.to_host(made.finite))
        self._store(made)  # the old values, bit for bit, where not finite: their own arrays may be donated and gone
        if not finite:
            raise NonFiniteError(self._first_bad(grads, step) or f"step {step}: {OVERFLOW}")
        self.steps = step
        self.stats = AdamStats(step=step, norm=Tensor(made.norm, self._backend, "float32"), max_norm=self.max_norm)
        return self.stats

    def _require_finite(self, loss: Tensor | None) -> None:
        if loss is not None and not math.isfinite(value := float(loss.item())):
            raise NonFiniteError(
                f"step {self.steps + 1}: the loss is {value}; nothing was changed: lower the learning rate or check "
                f"the data"
            )

    def _explained_step(self, grads: list[Native], loss: Tensor | None) -> AdamStats:
        """Stores nothing. Raises: NonFiniteError where the loss or a gradient is the cause."""
        self._require_finite(loss)
        if bad := self._first_bad(grads, self.steps + 1):
            raise NonFiniteError(bad)
        return AdamStats(step=self.steps + 1, norm=self._norm.detach(), max_norm=self.max_norm)

    def _captured_step(self, grads: list[Native], lr: float | None, loss: Tensor | None) -> AdamStats:
        if lr is not None:
            raise CaptureError(
                f"optimizer.step got lr={lr} at {user_line()}, which the program would keep for ever; set optimizer.lr "
                f"before the call"
            )
        layout = self._backend.tools.layout
        rows = [layout.slice(self._settings.value, (i,), (i + 1,)) for i in range(3)]
        rate, *corrections = (layout.reshape(row, ()) for row in rows)
        if loss is not None:  # an update by a rate that is no number is refused
            elementwise = self._backend.tools.elementwise
            rate = elementwise.where(elementwise.isfinite(loss.value), rate, math.nan)
        made = self.compute(grads, rate, *corrections, donate=giving())
        self._store(made)
        self._norm.value, self._finite.value = made.norm, made.finite
        return AdamStats(step=self.steps + 1, norm=self._norm.detach(), max_norm=self.max_norm)

    def _scalars(self, rate: float) -> list[Host]:
        """The rate, 1 - b1^t and 1 - b2^t of the next step, rank 0."""
        if not (rate >= 0 and math.isfinite(rate)):
            raise ConfigError(f"learning rate {rate}; wanted a finite number >= 0")
        t = self.steps + 1
        return [np.array(x, np.float32) for x in (rate, 1.0 - self.betas[0] ** t, 1.0 - self.betas[1] ** t)]

    def held_tensors(self) -> Iterator[Tensor]:
        """The parameters, the moments, and the few numbers that a step takes and gives."""
        yield from self.replaced_tensors()
        yield from (self._settings, self._norm, self._finite)

    def replaced_tensors(self) -> Iterator[Tensor]:
        """Parameters and moments; the norm of a step stays readable after the next one."""
        yield from self._parameters
        yield from self._moments.first
        yield from self._moments.second

    def before_step(self) -> None:
        """Puts the learning rate and both bias corrections of the next step on the device."""
        self._settings.value = self._backend.tools.storage.from_host(np.stack(self._scalars(self.lr)))

    def after_step(self, again: Callable[[], object]) -> None:
        """Counts the step. Raises: NonFiniteError where the device kept the old values, naming the first bad tensor."""
        if not self._finite.item():
            again()
            raise NonFiniteError(f"step {self.steps + 1}: {OVERFLOW}")
        self.steps += 1
        self.stats = AdamStats(step=self.steps, norm=self._norm.detach(), max_norm=self.max_norm)

    def compute(
        self, grads: Sequence[Native], lr: Native, correction1: Native, correction2: Native, *, donate: bool
    ) -> Adapted[Native]:
        """The update as a pure function of arrays: reads parameters and moments, stores nothing.

        lr, correction1 = 1 - b1^t, correction2 = 1 - b2^t: float32 of rank 0. With `donate` the old arrays may be
        reused: what is made must be stored.
        """
        params = [p.value for p in self._parameters]
        moments = self._moments
        made = self._backend.tools.adam.update(
            moments.split(params),
            moments.split(grads),
            [t.value for t in moments.first],
            [t.value for t in moments.second],
            lr=lr,
            correction1=correction1,
            correction2=correction2,
            betas=self.betas,
            eps=self.eps,
            decay=moments.spread(self._decay),
            max_norm=self.max_norm,
            donate=donate,
        )
        return made._replace(params=tuple(moments.join(made.params)))

    def _store(self, made: Adapted[Native]) -> None:
        for p, value in zip(self._parameters, made.params, strict=True):
            p.replace(value)
        self._moments.store(made.first, made.second)

    def _gradient(self, name: str, parameter: Parameter, gradients: Gradients | None) -> Native:
        found = parameter.grad if gradients is None else gradients.get(parameter)
        if found is None:
            raise GraphError(f"'{name}' has no gradient: run backward first, or leave it out of the optimizer")
        if found.backend is not self._backend:
            raise BackendMismatch(
                f"the gradient of '{name}' is on {found.backend.spec} and its optimizer on {self._backend.spec}; run "
                f"the forward again after module.to(...)"
            )
        if found.shape != parameter.shape or found.dtype != parameter.dtype:
            raise ShapeError(f"the gradient of '{name}' is {found!r}; wanted {parameter.shape}, {parameter.dtype}")
        return found.value

    def _first_bad(self, grads: Sequence[Native], step: int) -> str:
        """What to say of the first gradient that is not finite, or ""."""
        to_host = self._backend.tools.storage.to_host
        for name, grad in zip(self._names, grads, strict=True):
            host = to_host(grad)
            if not np.isfinite(host).all():
                bad = host.size - int(np.isfinite(host).sum())
                return (
                    f"step {step}: the gradient of '{name}' has {bad} of {host.size} values that are not finite; "
                    f"nothing was changed: lower the learning rate or check the data"
                )
        return ""

    def state_dict(self) -> dict[str, Host]:
        """Host copies of the moments: "first.<name>" and "second.<name>", in the parameters' shapes even when paged."""
        first, second = self._moments.to_host()
        named = {f"first.{n}": value for n, value in zip(self._names, first, strict=True)}
        return named | {f"second.{n}": value for n, value in zip(self._names, second, strict=True)}

    def load_state_dict(self, state: Mapping[str, Host], *, steps: int) -> None:
        """Takes moments by name and the number of steps behind them.

        Raises: ConfigError for missing and unknown names or a negative count, ShapeError, DTypeError; nothing is
        changed then.
        """
        if steps < 0:
            raise ConfigError(f"an optimizer after {steps} steps; wanted a count >= 0")
        wanted = [f"{kind}.{name}" for kind in ("first", "second") for name in self._names]
        missing, unknown = sorted(set(wanted) - state.keys()), sorted(state.keys() - set(wanted))
        if missing or unknown:
            raise ConfigError(f"optimizer state does not fit: missing {missing}, unknown {unknown}")
        for kind in ("first", "second"):
            for name, p in zip(self._names, self._parameters, strict=True):
                check_host(f"moment '{kind}.{name}'", state[f"{kind}.{name}"], p.shape)
        self._moments.load([state[f"first.{n}"] for n in self._names], [state[f"second.{n}"] for n in self._names])
        self.steps = steps


def _as_groups(parameters: Iterable[tuple[str, Parameter]] | Sequence[ParameterGroup]) -> list[ParameterGroup]:
    items: list[ParameterGroup | tuple[str, Parameter]] = [*parameters]
    groups = [item for item in items if isinstance(item, ParameterGroup)]
    named = tuple(item for item in items if not isinstance(item, ParameterGroup))
    if groups and named:
        raise ConfigError("an optimizer takes parameter groups or (name, parameter) pairs, not both")
    found = groups or [ParameterGroup(parameters=named)]
    for group in found:
        for pair in group.parameters:
            if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Parameter):
                raise ConfigError(f"an optimizer got {pair!r}; wanted (name, Parameter): pass model.named_parameters()")
    return found


def _check_hyper(
    lr: float, betas: tuple[float, float], eps: float, max_norm: float | None, groups: Sequence[ParameterGroup]
) -> None:
    if not (lr >= 0 and math.isfinite(lr)):
        raise ConfigError(f"lr {lr}; wanted a finite number >= 0")
    for name, beta in zip(("beta1", "beta2"), betas, strict=True):
        if not 0 <= beta < 1:
            raise ConfigError(f"{name} {beta}; wanted 0 <= {name} < 1")
    if not eps > 0:
        raise ConfigError(f"eps {eps}; wanted a positive number")
    if max_norm is not None and not max_norm > 0:
        raise ConfigError(f"max_norm {max_norm}; wanted a positive number, or None for no clipping")
    for group in groups:
        if not (group.weight_decay >= 0 and math.isfinite(group.weight_decay)):
            raise ConfigError(f"weight_decay {group.weight_decay}; wanted a finite number >= 0")


def _check_parameters(names: Sequence[str], parameters: Sequence[Parameter]) -> OpenBackend:
    if not parameters:
        raise ConfigError("an optimizer got no parameters; pass model.named_parameters()")
    if not all(names):
        raise ConfigError("an optimizer got a parameter with an empty name")
    doubles = sorted({n for n in names if names.count(n) > 1})
    if doubles or len({id(p) for p in parameters}) != len(parameters):
        raise ConfigError(f"an optimizer got parameters twice: {', '.join(doubles) or 'one parameter under two names'}")
    for name, p in zip(names, parameters, strict=True):
        if not p.trainable:
            raise ConfigError(f"'{name}' is frozen; leave it out of the optimizer or set trainable=True")
        if 0 in p.shape:
            raise ConfigError(f"'{name}' has shape {p.shape}: nothing to learn; leave it out of the optimizer")
        if p.backend is not parameters[0].backend:
            raise BackendMismatch(
                f"'{name}' is on {p.backend.spec} and '{names[0]}' on {parameters[0].backend.spec}; move them together"
            )
    return parameters[0].backend
