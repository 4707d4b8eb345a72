"""Tensor: a native array, its backend and, while recording, its place in the graph; Parameter: a tensor that learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from turret.registry import OpenBackend, current
from turret.spi import FLOATS, BackendMismatch, DType, DTypeError, GraphError, Host, Shape, ShapeError

from .graph import Native, Node, Parts, Vjp, _recording
from .pending import Pending
from .tracing import capturing, refuse_host

Number = int | float

RANGES: dict[DType, tuple[int, int]] = {
    "int32": (-(2**31), 2**31 - 1),
    "uint8": (0, 255),
    "int64": (-(2**63), 2**63 - 1),
}


class Tensor:
    """An immutable value on one backend. Operators and methods are the functions of `turret.tensor.ops`."""

    __slots__ = ("__weakref__", "backend", "dtype", "node", "requires_grad", "value")

    # NumPy must hand `array + tensor` to __radd__ instead of building an object array.
    __array_ufunc__ = None

    def __init__(
        self, value: Native, backend: OpenBackend, dtype: DType, node: Node | None = None, requires_grad: bool = False
    ) -> None:
        self.value = value
        self.backend = backend
        self.dtype: DType = dtype
        self.node = node
        self.requires_grad = requires_grad or node is not None

    @property
    def shape(self) -> Shape:
        return tuple(self.value.shape)

    @property
    def ndim(self) -> int:
        return len(self.value.shape)

    def numpy(self) -> Host:
        """An owned host copy; waits for the device. bfloat16 arrives as float32. Raises: CaptureError in a capture."""
        refuse_host("a tensor is read on the host", "return it from the step and read it after the call")
        return self.backend.tools.storage.to_host(self.value)

    def item(self) -> float | int | bool:
        """The value of a one-element tensor as a Python number; waits for the device."""
        host = self.numpy()
        if host.size != 1:
            raise ShapeError(f"item() of a tensor of shape {self.shape}; wanted one element: index or reduce it first")
        result: float | int | bool = host.reshape(()).item()
        return result

    def detach(self) -> Tensor:
        """The same value outside the graph."""
        _require_captured("detach", self)
        return Tensor(self.value, self.backend, self.dtype)

    def backward(self, seed: Tensor | None = None, *, retain: bool = False) -> None:
        """Adds the gradients of every reachable parameter to its `grad`, or changes nothing if anything fails."""
        from .backward import add_gradients

        add_gradients(self, seed, retain=retain)

    def __bool__(self) -> bool:
        refuse_host("a branch asks for the truth of a tensor", "choose by element with ops.where")
        raise GraphError("a tensor has no truth value; compare .item(), or use ops.where to choose by element")

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("len() of a tensor of rank 0; use .item() for its value")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise DTypeError(f"NumPy got {self!r}; wanted an array: use .numpy(), which waits for the device and copies")

    def __repr__(self) -> str:
        grad = ", requires_grad" if self.requires_grad else ""
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}, backend={self.backend.spec}{grad})"

    def __add__(self, other: Tensor | Number) -> Tensor:
        return _ops.add(self, other)

    def __radd__(self, other: Number) -> Tensor:
        return _ops.add(other, self)

    def __sub__(self, other: Tensor | Number) -> Tensor:
        return _ops.subtract(self, other)

    def __rsub__(self, other: Number) -> Tensor:
        return _ops.subtract(other, self)

    def __mul__(self, other: Tensor | Number) -> Tensor:
        return _ops.multiply(self, other)

    def __rmul__(self, other: Number) -> Tensor:
        return _ops.multiply(other, self)

    def __truediv__(self, other: Tensor | Number) -> Tensor:
        return _ops.divide(self, other)

    def __rtruediv__(self, other: Number) -> Tensor:
        return _ops.divide(other, self)

    def __neg__(self) -> Tensor:
        return _ops.negative(self)

    def __matmul__(self, other: Tensor) -> Tensor:
        return _ops.matmul(self, other)

    def __rmatmul__(self, other: Tensor) -> Tensor:
        return _ops.matmul(other, self)

    def __getitem__(self, index: Any) -> Tensor:
        return _ops.index(self, index)

    def reshape(self, *shape: int) -> Tensor:
        return _ops.reshape(self, shape)

    def transpose(self, *axes: int) -> Tensor:
        return _ops.transpose(self, axes)

    def sum(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        return _ops.sum(self, axis, keepdims=keepdims)

    def mean(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        return _ops.mean(self, axis, keepdims=keepdims)

    def max(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        return _ops.max(self, axis, keepdims=keepdims)

    def cast(self, dtype: DType) -> Tensor:
        return _ops.cast(self, dtype)


class Parameter(Tensor):
    """A tensor that modules register and optimizers change.

    `grad` is what `backward()` added up, None before. `version` counts changes of the value, so that a graph recorded
    before a change is refused. `trainable=False` freezes it: it gets no gradient and costs none. `owned` is set by the
    module that registers it. Made from a Pending it is float32 and waits for its value.
    """

    __slots__ = ("grad", "owned", "version")

    def __init__(self, host: Host | Pending, *, backend: OpenBackend | None = None, trainable: bool = True) -> None:
        opened = backend or current()
        if isinstance(host, Pending):
            super().__init__(host, opened, "float32", requires_grad=trainable)
        else:
            dtype = _float_dtype(host)
            super().__init__(opened.tools.storage.from_host(host), opened, dtype, requires_grad=trainable)
        self.grad: Tensor | None = None
        self.version = 0
        self.owned = False

    @property
    def trainable(self) -> bool:
        return self.requires_grad

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self.requires_grad = value

    def assign(self, value: Native) -> None:
        """Replaces the value by a native array of the same shape and dtype and bumps the version.

        Raises: ShapeError, DTypeError; the parameter is unchanged then.
        """
        shape, dtype = tuple(value.shape), self.backend.tools.storage.dtype_of(value)
        if shape != self.shape:
            raise ShapeError(f"a parameter of shape {self.shape} was given a value of shape {shape}")
        if dtype != self.dtype:
            raise DTypeError(f"a parameter of dtype {self.dtype} was given a value of dtype {dtype}; cast it first")
        self.replace(value)

    def replace(self, value: Native) -> None:
        """`assign` without the checks, for results that a slot made from this parameter."""
        self.value = value
        self.version += 1

    def move(self, value: Native, backend: OpenBackend, grad: Tensor | None) -> None:
        """Changes backend; `Module.to` prepares the values."""
        self.value, self.backend, self.grad = value, backend, grad
        self.version += 1


def _float_dtype(host: Host) -> DType:
    if not isinstance(host, np.ndarray):
        raise DTypeError(
            f"a parameter got {type(host).__name__}; wanted a NumPy array: use numpy.asarray(..., numpy.float32)"
        )
    name: DType = host.dtype.name  # type: ignore[assignment]  # NumPy spells our dtype names; others are refused here
    if name not in FLOATS:
        raise DTypeError(f"a parameter of dtype {host.dtype.name}; wanted one of {', '.join(sorted(FLOATS))}")
    return name


def tensor(
    data: Any,
    *,
    dtype: DType | None = None,
    backend: OpenBackend | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor with a private copy of `data`: nested lists, a number, or a NumPy array.

    Python floats become float32, ints int32, bools bool; a NumPy array keeps its dtype unless `dtype` is given.
    Raises: ShapeError for ragged lists, DTypeError for what the device does not have, CaptureError in a capture.
    """
    refuse_host("a tensor is made from host data", "the program would keep its value: pass it as an argument")
    if isinstance(data, Tensor):
        raise DTypeError(
            f"tensor() of {data!r}; use it as it is, .detach() to leave the graph, .cast() for another dtype"
        )
    try:
        host = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"tensor() needs lists of equal length, or an array: {error}") from error
    except TypeError as error:  # of a library whose arrays lie on a device and are not copied unasked
        raise DTypeError(
            f"tensor() of {type(data).__name__}: {error}; wanted numbers, lists or a NumPy array: copy it to the host "
            f"first"
        ) from error
    if host.dtype == object or host.dtype.kind not in "biuf":
        raise DTypeError(f"tensor() of {type(data).__name__} with NumPy dtype {host.dtype}; wanted numbers or bools")
    want = dtype or _default_dtype(data, host)
    if requires_grad and want not in FLOATS:
        raise DTypeError(
            f"a tensor of dtype {want} cannot require a gradient; wanted one of {', '.join(sorted(FLOATS))}"
        )
    if host.dtype.kind in "iu" and want in RANGES and host.dtype != want and host.size:
        for extreme in (int(host.min()), int(host.max())):
            require_range("tensor()", extreme, want)
    opened = backend or current()
    return Tensor(opened.tools.storage.from_host(host, dtype=want), opened, want, requires_grad=requires_grad)


def require_range(name: str, number: int, dtype: DType) -> None:
    """Raises: DTypeError for a whole number that an integer dtype cannot hold."""
    low, high = RANGES[dtype]
    if not low <= number <= high:
        raise DTypeError(f"{name} got {number}; wanted {low} to {high} for dtype {dtype}: choose a wider dtype")


def _default_dtype(data: Any, host: Host) -> DType:
    if isinstance(data, (np.ndarray, np.generic)):
        name: DType = host.dtype.name  # type: ignore[assignment]  # storage refuses what it does not know
        return name
    kinds: dict[str, DType] = {"b": "bool", "i": "int32", "u": "int32", "f": "float32"}
    return kinds[host.dtype.kind]


def record(name: str, value: Native, like: Tensor, inputs: tuple[Tensor, ...], vjp: Vjp) -> Tensor:
    """The result of a differentiable operation: with a node where recording and where any input wants a gradient."""
    if not _recording.get():
        return Tensor(value, like.backend, like.dtype)
    parents: list[Node | Tensor | None] = []
    needs: list[bool] = []
    watched: list[tuple[Parameter, int]] = []
    for t in inputs:
        parent = t.node or (t if t.requires_grad else None)
        parents.append(parent)
        needs.append(parent is not None)
        if isinstance(t, Parameter):
            watched.append((t, t.version))
    if True not in needs:
        return Tensor(value, like.backend, like.dtype)
    return Tensor(value, like.backend, like.dtype, Node(name, parents, tuple(needs), vjp, watched))


def record_many(
    name: str,
    values: Sequence[Native],
    like: Tensor,
    inputs: tuple[Tensor, ...],
    vjp: Callable[[list[Native | None], tuple[bool, ...]], tuple[Native | None, ...]],
) -> tuple[Tensor, ...]:
    """`record` for several outputs: `vjp` takes one gradient per output, None for those that nobody used."""
    whole = record(name, None, like, inputs, lambda parts, needs: vjp(parts.gradients, needs))
    if whole.node is None:
        return tuple(Tensor(value, like.backend, like.dtype) for value in values)

    def port(index: int) -> Node:
        return Node(name, (whole.node,), (True,), lambda dy, _: (Parts(len(values), index, dy),), ())

    return tuple(Tensor(value, like.backend, like.dtype, port(i)) for i, value in enumerate(values))


def _require_captured(name: str, *operands: Tensor) -> None:
    """Raises: CaptureError for a parameter outside the state of the step that is being captured."""
    if (tracing := capturing()) is not None:
        for t in operands:
            if isinstance(t, Parameter):
                tracing.check(name, t)


def same_backend(name: str, first: Tensor, *others: Tensor) -> OpenBackend:
    """The one backend of all operands.

    Raises: BackendMismatch; DTypeError for an operand that is no Tensor; CaptureError for a parameter outside the state
    of the step that is being captured.
    """
    _require_captured(name, first, *others)
    if isinstance(first, Tensor):
        backend = first.backend
        for other in others:
            if not isinstance(other, Tensor) or other.backend is not backend:
                break
        else:
            return backend
    _refuse(name, (first, *others))


def _refuse(name: str, operands: tuple[Tensor, ...]) -> NoReturn:
    for t in operands:
        if not isinstance(t, Tensor):
            raise DTypeError(f"{name} got {type(t).__name__}; wanted a Tensor: wrap host data with turret.tensor(...)")
    specs = ", ".join(t.backend.spec for t in operands)
    raise BackendMismatch(
        f"{name} got operands on {specs}; wanted one backend: move them with turret.tensor(x.numpy(), backend=...) or "
        f"module.to(...)"
    )


def same_floats(name: str, first: Tensor, *others: Tensor) -> OpenBackend:
    """The one backend of operands of one floating-point dtype.

    Raises: BackendMismatch, DTypeError, CaptureError.
    """
    _require_captured(name, first, *others)
    if isinstance(first, Tensor) and first.dtype in FLOATS:
        backend, dtype = first.backend, first.dtype
        for other in others:
            if not isinstance(other, Tensor) or other.backend is not backend or other.dtype != dtype:
                break
        else:
            return backend
    same_backend(name, first, *others)
    same_dtype(name, first, *others)
    require_float(name, first)
    raise AssertionError("one of the three had something to refuse")


def same_dtype(name: str, first: Tensor, *others: Tensor) -> None:
    """Raises: DTypeError where dtypes differ; there is no promotion."""
    for other in others:
        if other.dtype != first.dtype:
            raise DTypeError(f"{name} got dtypes {first.dtype} and {other.dtype}; cast one of them with .cast(...)")


def require_float(name: str, *tensors: Tensor) -> None:
    """Raises: DTypeError for an operand that is not floating point."""
    for t in tensors:
        if t.dtype not in FLOATS:
            raise DTypeError(f"{name} got dtype {t.dtype}; wanted one of {', '.join(sorted(FLOATS))}")


def require_indices(name: str, ids: Tensor) -> None:
    """Raises: DTypeError unless the indices are int32."""
    if ids.dtype != "int32":
        raise DTypeError(f"{name} got indices of dtype {ids.dtype}; wanted int32: use .cast('int32')")


from . import ops as _ops  # noqa: E402  # the operators above need the operations, which need Tensor
