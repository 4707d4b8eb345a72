"""One step, one program: a Python step as a pure function over arrays, compiled by the backend."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from turret.registry import OpenBackend, current
from turret.spi import BackendMismatch, CaptureError, DType, OutOfMemory, Shape

from .arguments import Arguments, Results, Signature
from .graph import Native, is_recording
from .random import Draw
from .tracing import Stateful, ambient, explanation, line_of, tracing
from .value import Parameter, Tensor

P = ParamSpec("P")
R = TypeVar("R")

HANDFUL = 8
"""Programs of one step from which on every doubling is a recompile storm."""

_RUNNING = threading.RLock()  # a captured call swaps and gives away arrays of tensors that others may hold as well
_inside: ContextVar[bool] = ContextVar("turret_inside_a_captured_step", default=False)
_log = logging.getLogger("turret.capture")


class CaptureWarning(UserWarning):
    """A captured step is compiled again and again."""


def capture(step: Callable[P, R], *, state: Sequence[Stateful] = (), enabled: bool = True) -> Captured[P, R]:
    """`step` as one program of the device wherever the backend compiles; elsewhere it simply runs.

    step: takes and returns Tensors, in tuples, lists and dicts as it likes; numbers and strings among its arguments
    are part of the program, each new value compiles anew, as does another context (`dropping`, `computing`); what else
    it reads of Python, such as the rates of a model, stays as it was at the first call. state: the modules, optimizers
    and caches whose tensors it reads or changes. Their arrays become inputs and outputs of the program, those that it
    replaces are given to the device: arrays taken from them before a call must not be used after it. What comes out
    has no graph.
    enabled=False runs the step operation by operation.

    The step must not read values on the host, branch on them, or keep tensors: CaptureError names the line.
    Raises: CaptureError for a state that is not Stateful.
    """
    for each in state:
        if not isinstance(each, Stateful):
            raise CaptureError(
                f"capture got {type(each).__name__} in state=; wanted modules, optimizers, caches: what has "
                f"held_tensors, replaced_tensors, before_step and after_step"
            )
    return Captured(step, tuple(state), enabled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a program was made for: arguments, the state's tensors, which arguments are among these, where, in what."""

    arguments: Signature
    state: Signature
    links: tuple[int | None, ...]
    backend: OpenBackend
    ambient: tuple[object, ...]


class Captured(Generic[P, R]):
    """A step that compiles once for every new combination of shapes. `compiles` counts the programs."""

    def __init__(self, step: Callable[P, R], state: tuple[Stateful, ...], enabled: bool) -> None:
        self.step, self.state, self.enabled = step, state, enabled
        self._programs: dict[Key, _Program] = {}

    @property
    def compiles(self) -> int:
        """Programs compiled so far."""
        return len(self._programs)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the step. Raises: CaptureError, BackendMismatch, OutOfMemory, and what the step raises."""
        if _inside.get():
            return self.step(*args, **kwargs)  # part of the outer step
        token = _inside.set(True)
        try:
            whole: R = self._whole(args, kwargs)
            return whole
        finally:
            _inside.reset(token)

    def _whole(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        arguments = Arguments(args, options)
        with _RUNNING:
            held = _unique(t for each in self.state for t in each.held_tensors())
            backend = _one_backend([*held, *arguments.tensors])
            if self.enabled and "compile" in backend.tools.native:
                return self._run(backend, arguments, held)
        return Results(self.step(*args, **options)).detached()

    def _run(self, backend: OpenBackend, arguments: Arguments, held: list[Tensor]) -> Any:
        _require_no_gradients(held)
        for each in self.state:
            each.before_step()
        state = tuple((id(t), t.shape, t.dtype, t.requires_grad) for t in held)
        places = {id(t): i for i, t in enumerate(held)}
        links = tuple(places.get(id(t)) for t in arguments.tensors)
        where = (is_recording(), *ambient())
        key = Key(arguments=arguments.signature, state=state, links=links, backend=backend, ambient=where)
        program = self._programs.get(key)
        made = program is None
        if program is None:
            program = _Program(self, backend, held, links)
        began = time.perf_counter()
        result = program(arguments, held)
        if made:
            self._programs[key] = program
            self._tell(key, time.perf_counter() - began)
        for each in program.stepped:
            each.after_step(lambda: self._again(arguments, held, program.rewound))
        return result

    def _again(
        self, arguments: Arguments, held: list[Tensor], rewound: Callable[[], AbstractContextManager[None]]
    ) -> object:
        """The step on copies of its state, for its error alone: everything is as it was afterwards."""
        args, options = arguments.rebuilt(arguments.tensors)
        copy = current().tools.storage.copy if not held else held[0].backend.tools.storage.copy
        with _standing_in(held, [copy(t.value) for t in held]), explanation(), rewound():
            return self.step(*args, **options)

    def _tell(self, key: Key, seconds: float) -> None:
        count, name = self.compiles, getattr(self.step, "__qualname__", type(self.step).__name__)
        _log.info("compiled %s in %.1f s (program %d)", name, seconds, count)
        if count > HANDFUL and (count - 1) % HANDFUL == 0 and ((count - 1) // HANDFUL).bit_count() == 1:
            warnings.warn(
                f"{name} was compiled {count} times, the last time in {seconds:.1f} s: {_cause([*self._programs])}",
                CaptureWarning,
                stacklevel=4,
            )


class _MoreDraws(Exception):
    """No error: the first tracing found random numbers that the program needs as inputs."""

    def __init__(self, draws: list[Draw]) -> None:
        super().__init__()
        self.draws = draws


class _KeepsOld(Exception):
    """No error: the first tracing found that the program has to choose between the old state and the new one."""


class _Program:
    """The compiled step for one combination of shapes, and what its one tracing found out."""

    def __init__(
        self,
        captured: Captured[Any, Any],
        backend: OpenBackend,
        held: list[Tensor],
        links: tuple[int | None, ...],
    ) -> None:
        self._captured, self._backend = captured, backend
        self._arguments: Arguments | None = None
        self._held, self._links = held, links
        replaced = {id(t) for each in captured.state for t in each.replaced_tensors()}
        self._given = [i for i, t in enumerate(held) if id(t) in replaced]
        self._written: list[int] = []
        self._results: Results | None = None
        self._draws: list[Draw] = []
        self._giving = True
        self.stepped: list[Stateful] = []
        self._compiled = self._compile()

    def _compile(self) -> Callable[..., tuple[Native, ...]]:
        return self._backend.tools.compile.compile(self._trace, donate=tuple(self._given))

    def __call__(self, arguments: Arguments, held: list[Tensor]) -> Any:
        inputs = [*(t.value for t in held), *(t.value for t in arguments.tensors)]
        self._separate(inputs)
        counters = [draw.stream.counter for draw in self._draws]
        inputs += [draw.make() for draw in self._draws]
        self._arguments = arguments  # a compiler may want to see the step again
        try:
            outputs = iter(self._compiled(*inputs))
        except _MoreDraws as more:
            self._draws, self._compiled = more.draws, self._compile()
            return self(arguments, held)
        except _KeepsOld:
            self._giving, self._compiled = False, self._compile()
            return self(arguments, held)
        except CaptureError as error:
            for draw, counter in zip(reversed(self._draws), reversed(counters), strict=True):
                draw.stream.counter = counter
            raise _with_line(error, self._captured.step) from error
        except OutOfMemory as error:
            if self._traced and self._given:
                raise OutOfMemory(
                    f"{error}; what the step changes had been given to the device and is lost: load the last checkpoint"
                ) from error
            raise
        finally:
            self._arguments = None
        for i in self._written:
            _put(held[i], next(outputs))
        assert self._results is not None
        return self._results.rebuilt(outputs)

    @contextlib.contextmanager
    def rewound(self) -> Iterator[None]:
        """Random numbers inside are those of the last call."""
        streams = {id(draw.stream): draw.stream for draw in self._draws}.values()
        kept = [stream.counter for stream in streams]
        for draw in self._draws:
            draw.stream.counter -= 1
        try:
            yield
        finally:
            for stream, counter in zip(streams, kept, strict=True):
                stream.counter = counter

    @property
    def _traced(self) -> bool:
        return self._results is not None

    def _separate(self, inputs: list[Native]) -> None:
        """No array may be given away twice, nor given away and read beside it."""
        if len({id(x) for x in inputs}) == len(inputs):
            return
        seen: set[int] = set()
        for i in self._given:
            others = (x for j, x in enumerate(inputs) if j != i)
            if id(inputs[i]) in seen or any(inputs[i] is x for x in others):
                inputs[i] = self._backend.tools.storage.copy(inputs[i])
            seen.add(id(inputs[i]))

    def _trace(self, *arrays: Native) -> tuple[Native, ...]:
        """The pure function: runs the step on tensors that hold these arrays, and leaves everything as it was."""
        assert self._arguments is not None
        held, count = self._held, len(self._held)
        last = count + len(self._links)
        tensors = [
            Tensor(x, self._backend, t.dtype, requires_grad=t.requires_grad) if link is None else held[link]
            for x, t, link in zip(arrays[count:last], self._arguments.tensors, self._links, strict=True)
        ]
        args, options = self._arguments.rebuilt(tensors)
        before = [(t.shape, t.dtype) for t in held]
        with _standing_in(held, arrays[:count]):
            with tracing(self._captured.state, held, arrays[last:], giving=self._giving) as inside:
                results = Results(self._captured.step(*args, **options))
                _check_results(results, inside.held)
            if len(inside.draws) > len(self._draws):
                raise _MoreDraws(inside.draws)
            _check_state(held, before)
            written = {i for i, t in enumerate(held) if t.value is not arrays[i]}
            self.stepped = inside.stepped
            self._judge(inside.verdicts, arrays, written)
            self._written = sorted(written | {*self._given})
            outputs = (*(held[i].value for i in self._written), *(t.value for t in results.tensors))
        results.forget()
        self._results = results
        return outputs

    def _judge(self, verdicts: list[Tensor], arrays: Sequence[Native], written: set[int]) -> None:
        """Keeps all of the state where one verdict is False; an optimizer alone has done so for what is its own."""
        own = {id(t) for each in self.stepped for t in each.held_tensors()}
        if not verdicts or (len(verdicts) == 1 and all(id(self._held[i]) in own for i in written)):
            return
        if self._giving:
            raise _KeepsOld
        elementwise = self._backend.tools.elementwise
        whole = verdicts[0].value
        for t in verdicts[1:]:
            whole = elementwise.logical_and(whole, t.value)
        for i in written:
            t = self._held[i]
            t.value = whole if t in verdicts else elementwise.where(whole, t.value, arrays[i])


@contextlib.contextmanager
def _standing_in(held: list[Tensor], values: Sequence[Native]) -> Iterator[None]:
    """The tensors hold other values inside, and afterwards what they held: value, version and no gradient."""
    kept = [(t.value, t.version if isinstance(t, Parameter) else 0) for t in held]
    try:
        for t, value in zip(held, values, strict=True):
            t.value = value
        yield
    finally:
        for t, (value, version) in zip(held, kept, strict=True):
            t.value = value
            if isinstance(t, Parameter):
                t.version, t.grad = version, None


def _check_results(results: Results, held: set[int]) -> None:
    for t in results.tensors:
        if isinstance(t, Parameter) and id(t) not in held:
            raise CaptureError(
                f"the captured step returned a parameter of shape {t.shape} that is not part of its state; pass its "
                f"module in capture(..., state=[...])"
            )


def _check_state(held: list[Tensor], before: list[tuple[Shape, DType]]) -> None:
    for t, (shape, dtype) in zip(held, before, strict=True):
        found = t.backend.tools.storage.dtype_of(t.value)
        if (t.shape, found) != (shape, dtype):
            raise CaptureError(
                f"the captured step changed a tensor of its state from shape {shape} to {t.shape} and from {dtype} to "
                f"{found}: every call would be another program; keep one shape and write into it"
            )
        if isinstance(t, Parameter) and t.grad is not None:
            raise CaptureError(
                f"the captured step left a gradient on a parameter of shape {t.shape}; finish with optimizer.step(), "
                f"or use turret.backward(loss) and return what you need"
            )


def _require_no_gradients(held: list[Tensor]) -> None:
    for t in held:
        if isinstance(t, Parameter) and t.grad is not None:
            raise CaptureError(
                f"a parameter of shape {t.shape} has a gradient from before, which a captured step would not add to; "
                f"call optimizer.step() or set parameter.grad = None first"
            )


def _put(tensor: Tensor, value: Native) -> None:
    if isinstance(tensor, Parameter):
        tensor.replace(value)
    else:
        tensor.value = value


def _unique(tensors: Any) -> list[Tensor]:
    return list({id(t): t for t in tensors}.values())


def _one_backend(tensors: list[Tensor]) -> OpenBackend:
    if not tensors:
        return current()
    first = tensors[0].backend
    for t in tensors:
        if t.backend is not first:
            raise BackendMismatch(
                f"a captured step got tensors on {first.spec} and {t.backend.spec}; wanted one backend: move them with "
                f"module.to(...) or turret.tensor(x.numpy(), backend=...)"
            )
    return first


def _with_line(error: CaptureError, step: Callable[..., object]) -> CaptureError:
    """The error with the user's line, or with where the step begins if it is about the step as a whole."""
    if " at " in str(error):
        return error
    if error.__cause__ is not None:
        return CaptureError(f"{error} (at {line_of(error)})")
    code = getattr(step, "__code__", None)
    return error if code is None else CaptureError(f"{error} (in the step at {code.co_filename}:{code.co_firstlineno})")


def _cause(keys: list[Key]) -> str:
    """Which part of the calls differs, in words."""
    if len({key.arguments for key in keys}) == 1:
        if len({key.ambient for key in keys}) == len(keys):
            return "its context (such as the stream of `dropping`) changes from call to call; keep one"
        return "the tensors of its state change from call to call; keep modules, optimizers and caches as they are"
    columns: dict[object, dict[object, None]] = {}  # a dict keeps the order of the calls
    for key in keys:
        for place in key.arguments:
            assert isinstance(place, tuple)
            columns.setdefault(place[0], {})[place[1:]] = None
    place, variants = max(columns.items(), key=lambda item: len(item[1]))
    some = [_said(v) for v in [*variants][:3]]
    advice = (
        "pass it as a Tensor"
        if all(isinstance(v, tuple) and v[0] == "value" for v in variants)
        else "pad it to a few shapes"
    )
    return f"{place} came in {len(variants)} forms ({', '.join(some)}, ...); {advice}"


def _said(variant: object) -> str:
    assert isinstance(variant, tuple)
    if variant[0] == "tensor":
        return f"{variant[2]} {variant[1]}"
    return str(variant[1])
