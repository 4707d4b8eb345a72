"""The six slots every backend fills; everything else can be composed from them.

Rules for all of them:

- Operands are positional-only, options keyword-only.
- Array operands of one call have one dtype; there is no promotion, core casts.
- A Python scalar may stand for one operand and takes the array's dtype; a float never meets an integer array.
- Index arrays are int32, in range and never negative: that is the caller's promise, not checked on the device.
- No input is written unless that operand is donated; a backend may ignore a donation. A donated array may be a view:
  a slice, a transposed one, or a broadcast one whose elements share memory; look before writing in place.
- Results share no memory with inputs or with each other, except where a method says that it may alias.
- Halves are computed in float32 or better and rounded once, at the end.
- Shapes and dtypes were checked by core before a call arrives.
- Every result may be asynchronous: only `Storage.to_host` and `Storage.synchronize` wait. A slot may read values of its
  inputs on the host, at the price of waiting, but not inside a function that the backend itself compiles.
- An opened backend works from any thread. In a child that is forked after it was used it works or raises
  BackendUnavailable (`turret.spi.process.OpenedHere` says when); it never hangs and never gives wrong values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .arrays import A, DType, Host, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One opened device: what it calls itself, its kind ("cpu", "cuda:1"), and which dtypes it computes in.

    storage_only: those among them that it has no arithmetic for and converts around every operation: computing in them
    is right, and slower than in float32. Training in such a format is refused.
    """

    name: str
    kind: str
    dtypes: frozenset[DType]
    storage_only: frozenset[DType] = frozenset()
    flushes_subnormals: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Device memory in bytes: in use now, the highest use since opening, and what the device has."""

    used_bytes: int
    peak_bytes: int
    total_bytes: int


class Storage(Protocol[A]):
    """Moving values between host and device, making new arrays, and asking about them."""

    def from_host(self, host: Host, /, *, dtype: DType | None = None) -> A:
        """A private copy of `host` on the device, cast to `dtype` (default: the host array's own).

        `host` may be strided, reversed, read-only or empty; its dtype is one of the neutral names. Later writes to it
        do not arrive.
        Raises: DTypeError for a dtype the device lacks, never a silent narrowing.
        """
        ...

    def to_host(self, x: A, /) -> Host:
        """Waits for `x`; an owned, writable, C-ordered NumPy array; bfloat16 arrives widened to float32."""
        ...

    def full(self, shape: Shape, value: float, /, *, dtype: DType) -> A:
        """A fresh buffer at every call, so that two results may be donated together."""
        ...

    def arange(self, stop: int, /) -> A:
        """int32 `0..stop-1` made on the device: legal while capturing, where `from_host` is not."""
        ...

    def cast(self, x: A, dtype: DType, /) -> A:
        """`x` in another dtype; may alias `x` where the dtype is the same.

        Float to integer truncates; values out of range are unspecified. To bool: nonzero is True.
        """
        ...

    def copy(self, x: A, /) -> A:
        """A fresh array of equal values."""
        ...

    def dtype_of(self, x: A, /) -> DType:
        """The neutral dtype name of `x`."""
        ...

    def synchronize(self, *arrays: A) -> None:
        """Returns when these arrays are computed; a lazy library computes them now. No arguments: no effect."""
        ...

    def memory(self) -> Memory | None:
        """Device memory, or None where the library does not tell."""
        ...

    def device(self) -> Device:
        """The opened device."""
        ...


class Matmul(Protocol[A]):
    """The matrix product."""

    def matmul(self, a: A, b: A, /, *, transpose_a: bool = False, transpose_b: bool = False) -> A:
        """`op(a) @ op(b)` over the last two axes; `op` swaps them where its flag is set.

        a and b have equal rank >= 2 and equal leading axes (no broadcasting), one float dtype. An empty contraction
        gives zeros. Halves accumulate in float32 or better.
        """
        ...

    def accumulation(self, dtype: DType, /) -> str:
        """In what products of `dtype` are summed: float32, float64, tf32, bfloat16, float16, or unstated."""
        ...


class Elementwise(Protocol[A]):
    """One result per element, NumPy broadcasting. NaN and infinities propagate; subnormals may flush to zero."""

    def add(self, a: A | float, b: A | float, /) -> A: ...
    def subtract(self, a: A | float, b: A | float, /) -> A: ...
    def multiply(self, a: A | float, b: A | float, /) -> A: ...
    def divide(self, a: A | float, b: A | float, /) -> A:
        """Floats only."""
        ...

    def maximum(self, a: A | float, b: A | float, /) -> A:
        """NaN wins over any number."""
        ...

    def minimum(self, a: A | float, b: A | float, /) -> A:
        """NaN wins over any number."""
        ...

    def negative(self, x: A, /) -> A: ...
    def exp(self, x: A, /) -> A: ...
    def log(self, x: A, /) -> A:
        """-inf at 0, NaN below."""
        ...

    def sqrt(self, x: A, /) -> A:
        """NaN below 0."""
        ...

    def rsqrt(self, x: A, /) -> A:
        """1 / sqrt(x): inf at 0, NaN below."""
        ...

    def tanh(self, x: A, /) -> A: ...
    def erf(self, x: A, /) -> A:
        """The error function. Source: Abramowitz and Stegun 1964, eq. 7.1.1."""
        ...

    def isfinite(self, x: A, /) -> A:
        """bool: neither infinite nor NaN."""
        ...

    def equal(self, a: A | float, b: A | float, /) -> A:
        """bool; NaN equals nothing."""
        ...

    def less(self, a: A | float, b: A | float, /) -> A:
        """bool: a < b; False where either is NaN."""
        ...

    def less_equal(self, a: A | float, b: A | float, /) -> A:
        """bool: a <= b; False where either is NaN."""
        ...

    def logical_and(self, a: A, b: A, /) -> A:
        """bool operands, bool result."""
        ...

    def where(self, condition: A, a: A | float, b: A | float, /) -> A:
        """a where the bool `condition` holds, else b; at least one of a and b is an array.

        The value that is not chosen never matters, not even NaN.
        """
        ...


class Reduction(Protocol[A]):
    """Folding axes away. The dtype of `x` is kept; axes may be negative; halves accumulate in float32 or better.

    A result of rank 0 is an array, not a host scalar.
    """

    def sum(self, x: A, /, *, axis: int | tuple[int, ...], keepdims: bool = False) -> A:
        """Floats and int32 (which wraps); 0 over an empty axis."""
        ...

    def mean(self, x: A, /, *, axis: int | tuple[int, ...], keepdims: bool = False) -> A:
        """Floats; NaN over an empty axis."""
        ...

    def max(self, x: A, /, *, axis: int | tuple[int, ...], keepdims: bool = False) -> A:
        """Floats and int32; NaN wins.

        Raises: ShapeError where a reduced axis has size 0.
        """
        ...

    def argmax(self, x: A, /, *, axis: int, keepdims: bool = False) -> A:
        """int32 position of the first of the greatest; floats and int32."""
        ...


class Layout(Protocol[A]):
    """Rearranging without arithmetic. Results may alias the input; any dtype."""

    def reshape(self, x: A, shape: Shape, /) -> A:
        """Row-major order kept; equal element count; no -1."""
        ...

    def transpose(self, x: A, axes: tuple[int, ...], /) -> A:
        """Axis i of the result is axis `axes[i]` of x."""
        ...

    def slice(self, x: A, start: Shape, stop: Shape, /, *, step: Shape | None = None) -> A:
        """Static bounds, one per axis, 0 <= start <= stop <= size, step >= 1. Dynamic starts are `gather_rows`."""
        ...

    def concatenate(self, xs: Sequence[A], /, *, axis: int) -> A:
        """At least one array; equal dtypes; equal shapes outside `axis` >= 0."""
        ...

    def pad(self, x: A, widths: Sequence[tuple[int, int]], /, *, value: float = 0.0) -> A:
        """`value` added (before, after) each axis."""
        ...

    def broadcast_to(self, x: A, shape: Shape, /) -> A:
        """NumPy's broadcasting rule."""
        ...


class Indexing(Protocol[A]):
    """Reading and writing rows by int32 indices."""

    def gather_rows(self, table: A, ids: A, /) -> A:
        """table: (R, ...), ids: int32 of any shape; returns ids.shape + table.shape[1:]."""
        ...

    def gather_last(self, x: A, ids: A, /) -> A:
        """x: (..., N), ids: int32 (...); returns (...): x[..., ids]."""
        ...

    def scatter_add_rows(self, base: A, ids: A, rows: A, /, *, donate: bool = False) -> A:
        """base: (R, ...), ids: int32 (M,), rows: (M, ...); returns base with rows added; repeated ids add up.

        The same bits at every run; halves accumulate in float32. `donate` allows writing into `base`.
        """
        ...

    def set_rows(self, base: A, ids: A, rows: A, /, *, donate: bool = False) -> A:
        """Like `scatter_add_rows` but replaces; for repeated ids one of the rows wins, whole."""
        ...
