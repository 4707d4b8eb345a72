"""The public seams of the graph: results with a gradient of their own, and recomputation instead of storage."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Sequence

from turret.spi import FLOATS, BackendMismatch, DTypeError, GraphError, ShapeError

from .backward import backward
from .graph import Native, Node, enable_grad, is_recording, next_serial, no_grad
from .random import Tape
from .tracing import capturing
from .value import Parameter, Tensor, record, same_backend


def custom_gradient(
    output: Tensor,
    inputs: Sequence[Tensor],
    vjp: Callable[[Tensor], Sequence[Tensor]],
    *,
    name: str = "custom_gradient",
) -> Tensor:
    """`output` as a function of `inputs` whose gradient is `vjp`.

    vjp: gradient of the output -> one gradient per input, same shape, dtype and backend as that input. The value of
    `output` is taken as it is; a graph behind it is ignored. What `vjp` raises reaches the caller of backward.

    Raises: BackendMismatch at once; GraphError, ShapeError, DTypeError from backward where `vjp` breaks its promise.
    """
    wanted = tuple(inputs)
    if not wanted:
        raise GraphError(f"{name} needs at least one input; a constant has no gradient")
    backend = same_backend(name, output, *wanted)
    shapes = [(t.shape, t.dtype) for t in wanted]
    dtype = output.dtype

    def pull(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        with no_grad():
            answer = vjp(Tensor(dy, backend, dtype))
        if isinstance(answer, Tensor):
            raise GraphError(f"the vjp of {name} gave one Tensor; wanted a sequence of {len(shapes)}, one per input")
        made = tuple(answer)
        if len(made) != len(shapes):
            raise GraphError(f"the vjp of {name} gave {len(made)} gradients; wanted {len(shapes)}, one per input")
        for i, (gradient, (shape, kind)) in enumerate(zip(made, shapes, strict=True)):
            if same_backend(f"the vjp of {name}, gradient {i},", gradient) is not backend:
                raise BackendMismatch(
                    f"the vjp of {name} gave gradient {i} on {gradient.backend.spec}; wanted {backend.spec}"
                )
            if gradient.shape != shape:
                raise ShapeError(f"the vjp of {name} gave gradient {i} of shape {gradient.shape}; wanted {shape}")
            if gradient.dtype != kind:
                raise DTypeError(f"the vjp of {name} gave gradient {i} of dtype {gradient.dtype}; wanted {kind}")
        return tuple(g.value if need else None for g, need in zip(made, needs, strict=True))

    return record(name, output.value, output, wanted, pull)


def checkpoint(fn: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`fn(*inputs)` whose inside graph is dropped and rebuilt during backward: one more forward for less memory.

    fn must be deterministic and may use parameters freely; any other tensor with a graph must come in as an input. What
    it draws from a RandomStream in its own thread is drawn again, and it sees the context variables of the first run.
    In a captured step the float inputs of the second run wait for the gradient, so that a compiler cannot merge it with
    the first. Source: Chen et al. 2016, section 4.

    Raises: GraphError where fn closes over a tensor of the outer graph, or where the rebuilt graph differs.
    """
    if not callable(fn):
        raise GraphError(f"checkpoint got {type(fn).__name__}; wanted a function of the tensors that follow")
    if inputs:
        same_backend("checkpoint", *inputs)
    if not is_recording():
        return _require_tensor(fn(*inputs))
    tape, context = Tape(), contextvars.copy_context()
    with tape.recording():
        inside, leaves = _run(fn, inputs)
    first, made = inside.output, (inside.output.shape, inside.output.dtype)
    for mine, theirs in zip(inside.inputs, inputs, strict=True):
        if first is mine:
            return theirs
    if first.node is None:
        return first

    def pull(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        given = inputs if capturing() is None else tuple(_after(dy, t) for t in inputs)
        again, found = context.copy().run(_replay, tape, fn, given)
        if [id(p) for p in found] != [id(p) for p in leaves]:
            raise GraphError("checkpoint: fn used other parameters when it ran again; it must be deterministic")
        if again.output.node is None:
            raise GraphError("checkpoint: fn gave a tensor without a graph when it ran again; it must be deterministic")
        if (again.output.shape, again.output.dtype) != made:
            shape, dtype = again.output.shape, again.output.dtype
            raise GraphError(
                f"checkpoint: fn gave shape {shape}, {dtype} when it ran again and {made[0]}, {made[1]} at first"
            )
        gradients = backward(again.output, Tensor(dy, again.output.backend, again.output.dtype))
        pairs = zip((*again.inputs, *leaves), needs, strict=True)
        return tuple(gradients.native(leaf) if need else None for leaf, need in pairs)

    return record("checkpoint", first.value, first, (*inputs, *leaves), pull)


def _replay(tape: Tape, fn: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[_Inside, tuple[Parameter, ...]]:
    with tape.playing():
        return _run(fn, inputs)


def _after(dy: Native, x: Tensor) -> Tensor:
    """x, as a value that depends on the gradient: a number made of it equals itself, which no compiler relies on."""
    if x.dtype not in FLOATS or 0 in dy.shape:
        return x
    tools = x.backend.tools
    first = tools.layout.reshape(tools.layout.slice(dy, (0,) * len(dy.shape), (1,) * len(dy.shape)), ())
    choose, equal = tools.elementwise.where, tools.elementwise.equal
    number = choose(equal(first, first), first, 0.0)  # NaN or not, this is none
    tied = choose(equal(number, number), x.value, math.nan)
    return Tensor(tied, x.backend, x.dtype, requires_grad=x.requires_grad)


def _require_tensor(output: object) -> Tensor:
    if not isinstance(output, Tensor):
        raise GraphError(f"checkpoint: fn returned {type(output).__name__}; wanted one Tensor")
    return output


class _Inside:
    """One run of the function on inputs cut off from the outer graph."""

    __slots__ = ("inputs", "output")

    def __init__(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.inputs, self.output = inputs, output


def _run(fn: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[_Inside, tuple[Parameter, ...]]:
    mark = next_serial()
    cut = tuple(Tensor(t.value, t.backend, t.dtype, requires_grad=t.requires_grad) for t in inputs)
    with enable_grad():
        output = _require_tensor(fn(*cut))
    known = {id(t) for t in cut}
    return _Inside(cut, output), _leaves(output, known, mark)


def _leaves(output: Tensor, known: set[int], mark: int) -> tuple[Parameter, ...]:
    """The parameters behind `output`, in the order they are met."""
    found: dict[int, Parameter] = {}
    stack: list[Node | Tensor] = [output.node if output.node is not None else output]
    seen: set[int] = set()
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Node):
            if item.serial < mark:
                raise GraphError(
                    f"checkpoint: fn closes over the result of '{item.name}' from outside; pass that tensor as an input"
                )
            stack.extend(p for p in reversed(item.parents) if p is not None)
        elif isinstance(item, Parameter):
            found[id(item)] = item
        elif id(item) not in known and item.requires_grad:
            raise GraphError("checkpoint: fn closes over a tensor that requires a gradient; pass it as an input")
    return tuple(found.values())
