"""Arrays: a shape and strides over memory that they keep alive."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from .cuda.device import Device
from .cuda.memory import MemoryPointer, MemoryPool

Index = int | slice | None
_pool = MemoryPool()
MOST_AXES = 64


class _Flags:
    __slots__ = ("c_contiguous",)

    def __init__(self, c_contiguous: bool) -> None:
        self.c_contiguous = c_contiguous


class ndarray:
    """An array on the device; nothing here computes, copies or looks at values."""

    __slots__ = ("__weakref__", "_c_contiguous", "data", "dtype", "shape", "size", "strides")

    # NumPy's operators must not try to treat this as a sequence.
    __array_ufunc__ = None

    def __init__(
        self,
        shape: int | Iterable[int],
        dtype: npt.DTypeLike = float,
        memptr: MemoryPointer | None = None,
        strides: Iterable[int] | None = None,
        order: str = "C",
    ) -> None:
        self.shape: tuple[int, ...] = (shape,) if isinstance(shape, int) else tuple(map(int, shape))
        if len(self.shape) > MOST_AXES:
            raise ValueError(f"maximum supported dimension for an ndarray is {MOST_AXES}, found {len(self.shape)}")
        if min(self.shape, default=0) < 0:
            raise ValueError("Negative dimensions are not allowed")
        if order not in ("C", "F"):
            raise ValueError(f"order must be C or F, got {order!r}")
        self.dtype: np.dtype[np.generic] = np.dtype(dtype)
        self.size = math.prod(self.shape)
        if strides is not None:
            if memptr is None:
                raise NotImplementedError("the emulator takes strides only together with memptr")
            self.strides = tuple(int(stride) for stride in strides)
        elif order == "C":
            self.strides = _packed(self.shape, self.dtype.itemsize)
        else:
            self.strides = _packed(self.shape[::-1], self.dtype.itemsize)[::-1]
        if len(self.strides) != len(self.shape):
            raise ValueError(f"{len(self.shape)} axes do not go with strides {self.strides}")
        self.data = _pool.malloc(self.nbytes) if memptr is None else memptr
        self._c_contiguous = (strides is None and order == "C") or _is_packed(
            self.shape, self.strides, self.dtype.itemsize, self.size
        )

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def flags(self) -> _Flags:
        return _Flags(self._c_contiguous)

    @property
    def device(self) -> Device:
        return self.data.device

    def reshape(self, *shape: int | Iterable[int]) -> ndarray:
        """The same items under another shape.

        Raises: ValueError when the sizes differ, NotImplementedError where CuPy might copy.
        """
        wanted = _sizes(shape)
        if wanted.count(-1) == 1:
            known = math.prod(size for size in wanted if size != -1)
            if known == 0 or self.size % known:
                raise ValueError(f"cannot reshape array of size {self.size} into shape {wanted}")
            wanted = tuple(self.size // known if size == -1 else size for size in wanted)
        if math.prod(wanted) != self.size or min(wanted, default=0) < 0:
            raise ValueError(f"cannot reshape array of size {self.size} into shape {wanted}")
        if not self._c_contiguous:
            raise NotImplementedError(
                f"reshape of an array with shape {self.shape} and strides {self.strides}: CuPy would copy it with "
                f"kernels of its own; make it contiguous first"
            )
        return self._view(wanted, _packed(wanted, self.dtype.itemsize))

    def transpose(self, *axes: int | Iterable[int] | None) -> ndarray:
        """The same memory with its axes in another order, reversed when none are named."""
        if not axes or axes == (None,):
            order: tuple[int, ...] = tuple(range(self.ndim))[::-1]
        else:
            order = _sizes(axes)
        if len(order) != self.ndim:
            raise ValueError("axes don't match array")
        if any(not -self.ndim <= axis < self.ndim for axis in order):
            raise np.exceptions.AxisError(f"axes {order} are out of bounds for array of dimension {self.ndim}")
        order = tuple(axis % self.ndim for axis in order)
        if len(set(order)) != self.ndim:
            raise ValueError("repeated axis in transpose")
        return self._view(tuple(self.shape[axis] for axis in order), tuple(self.strides[axis] for axis in order))

    def swapaxes(self, axis1: int, axis2: int) -> ndarray:
        if not (-self.ndim <= axis1 < self.ndim and -self.ndim <= axis2 < self.ndim):
            raise ValueError("Axis out of range")
        order = list(range(self.ndim))
        order[axis1], order[axis2] = order[axis2], order[axis1]
        return self.transpose(order)

    def __getitem__(self, index: object) -> ndarray:
        """A view by integers, slices, None and an ellipsis. Raises: IndexError, TypeError for anything else."""
        shape: list[int] = []
        strides: list[int] = []
        offset = 0
        axes = iter(zip(self.shape, self.strides, strict=True))
        for each in self._complete(index if isinstance(index, tuple) else (index,)):
            if each is None:
                shape.append(1)
                strides.append(0)
                continue
            size, stride = next(axes)
            if isinstance(each, slice):
                start, stop, step = each.indices(size)
                length = len(range(start, stop, step))
                offset += max(start, 0) * stride
                shape.append(length)
                strides.append(stride * step if length else stride)
            else:
                at = each + size if each < 0 else each
                if not 0 <= at < size:
                    raise IndexError(f"Index {each} is out of bounds for axis with size {size}")
                offset += at * stride
        return self._view(tuple(shape), tuple(strides), offset)

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed: copy the memory to the host and synchronize"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("the emulator does not compute on arrays, nor look at their values: use a kernel")

    __bool__ = __int__ = __float__ = __complex__ = __index__ = __iter__ = __contains__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<cupy.ndarray shape={self.shape} dtype={self.dtype} strides={self.strides} at 0x{self.data.ptr:x}>"

    def _view(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> ndarray:
        made = ndarray.__new__(ndarray)
        made.shape = shape
        made.dtype = self.dtype
        made.size = math.prod(shape)
        made.strides = strides
        made.data = self.data + offset if offset and self.size else self.data
        made._c_contiguous = _is_packed(shape, strides, self.dtype.itemsize, made.size)
        return made

    def _complete(self, index: tuple[object, ...]) -> list[Index]:
        """The index with as many whole slices as the ellipsis, or its end, stands for."""
        named = 0
        at: int | None = None
        entries: list[Index] = []
        for each in index:
            if each is Ellipsis:
                if at is not None:
                    raise IndexError("an index can only have a single ellipsis ('...')")
                at = len(entries)
            elif each is None or isinstance(each, slice):
                entries.append(each)
            elif isinstance(each, (int, np.integer)) and not isinstance(each, bool):
                entries.append(int(each))
            else:
                raise TypeError(f"the emulator indexes by int, slice, None and Ellipsis, got {each!r}")
            named += each is not None and each is not Ellipsis
        if named > self.ndim:
            raise IndexError(f"too many indices for array: array is {self.ndim}-dimensional, but {named} were indexed")
        at = len(entries) if at is None else at
        return [*entries[:at], *[slice(None)] * (self.ndim - named), *entries[at:]]


def broadcast_to(array: ndarray, shape: int | Iterable[int]) -> ndarray:
    """A view of `array` that repeats along axes of size 1 and new leading axes."""
    wanted = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
    missing = len(wanted) - array.ndim
    if missing < 0:
        raise ValueError("input operand has more dimensions than allowed by the axis remapping")
    strides = [0] * missing
    for size, stride, want in zip(array.shape, array.strides, wanted[missing:], strict=True):
        if size != want and size != 1:
            raise ValueError(
                f"operands could not be broadcast together with shape {array.shape} and requested shape {wanted}"
            )
        strides.append(stride if size == want else 0)
    return array._view(wanted, tuple(strides))


def _sizes(values: tuple[int | Iterable[int] | None, ...]) -> tuple[int, ...]:
    first = values[0] if len(values) == 1 else None
    listed = values if first is None or isinstance(first, (int, np.integer)) else tuple(first)
    return tuple(int(value) for value in listed)  # type: ignore[arg-type]


def _packed(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides: list[int] = []
    step = itemsize
    for size in shape[::-1]:
        strides.append(step)
        step *= size or 1
    return tuple(strides[::-1])


def _is_packed(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, size: int) -> bool:
    if size == 0:
        return True
    step = itemsize
    for length, stride in zip(shape[::-1], strides[::-1], strict=True):
        if length != 1:
            if stride != step:
                return False
            step *= length
    return True
