"""What Numba has no word for: the register tile of a matrix product, float bits and atomic words."""

from __future__ import annotations

import platform
from typing import Any

import numba
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16 if binding.get_host_cpu_features().get("avx512f", False) else 8
PANEL = 2 * LANES
UNROLL = 4

_F32, _BYTE, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_F32, LANES)


def _number(value: int) -> Any:
    return ir.Constant(_I64, value)


def _fetch(builder: Any, place: Any, *, writing: bool) -> None:
    """Emits the fetch of a cache line into the first-level cache."""
    shape = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0")
    keep, data = (ir.Constant(_I32, value) for value in (3, 1))
    builder.call(function, [place, ir.Constant(_I32, int(writing)), keep, data])


class _Tile:
    """Emits c = init + a b for `rows` rows and one panel of columns, all of it held in registers."""

    def __init__(self, builder: Any, rows: int, args: tuple[Any, ...]) -> None:
        c, self.ldc, init, self.ldi, a, self.rs, self.cs, b, self.depth = args
        self.builder, self.rows = builder, rows
        self.c, self.init, self.a, self.b = (builder.inttoptr(x, _F32.as_pointer()) for x in (c, init, a, b))
        fused = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        self.fma = cgutils.get_or_insert_function(builder.module, fused, f"llvm.fmuladd.v{LANES}f32")
        self.sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(2)] for _ in range(rows)]

    def emit(self) -> None:
        builder = self.builder
        for pair in self.sums:
            for cell in pair:
                builder.store(ir.Constant(_VECTOR, [0.0] * LANES), cell)
        for i in range(self.rows):
            self._prefetch(i)
        self.lines = [builder.gep(self.a, [builder.mul(_number(i), self.rs)]) for i in range(self.rows)]
        whole = builder.sdiv(self.depth, _number(UNROLL))
        with cgutils.for_range(builder, whole, intp=_I64) as loop:
            first = builder.mul(loop.index, _number(UNROLL))
            for i in range(UNROLL):
                self._rank_one(builder.add(first, _number(i)))
        done = builder.mul(whole, _number(UNROLL))
        with cgutils.for_range(builder, builder.sub(self.depth, done), intp=_I64) as loop:
            self._rank_one(builder.add(done, loop.index))
        for i, pair in enumerate(self.sums):
            for j, cell in enumerate(pair):
                start = builder.load(self._place(self.init, self.ldi, i, j), align=4)
                total = builder.fadd(start, builder.load(cell))
                builder.store(total, self._place(self.c, self.ldc, i, j), align=4)

    def _prefetch(self, i: int) -> None:
        """Fetches the cache line that row i of c lies in, while the sums are taken."""
        line = self.builder.gep(self.c, [self.builder.mul(_number(i), self.ldc)])
        _fetch(self.builder, self.builder.bitcast(line, _BYTE.as_pointer()), writing=True)

    def _place(self, base: Any, stride: Any, i: int, j: int) -> Any:
        line = self.builder.gep(base, [self.builder.mul(_number(i), stride)])
        return self.builder.bitcast(self.builder.gep(line, [_number(LANES * j)]), _VECTOR.as_pointer())

    def _rank_one(self, k: Any) -> None:
        builder = self.builder
        column = builder.mul(k, self.cs)
        line = builder.gep(self.b, [builder.mul(k, _number(PANEL))])
        halves = [builder.bitcast(builder.gep(line, [_number(LANES * j)]), _VECTOR.as_pointer()) for j in range(2)]
        vectors = [builder.load(half, align=4) for half in halves]
        for start, pair in zip(self.lines, self.sums, strict=True):
            lone = builder.load(builder.gep(start, [column]), align=4)
            blank = ir.Constant(_VECTOR, ir.Undefined)
            lone = builder.insert_element(blank, lone, ir.Constant(_I32, 0))
            lone = builder.shuffle_vector(lone, blank, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))
            for vector, cell in zip(vectors, pair, strict=True):
                builder.store(builder.call(self.fma, [lone, vector, builder.load(cell)]), cell)


def _tile(rows: int) -> Any:
    """The tile as a function of its own in the module: emitted once, called from everywhere."""
    shape = ir.FunctionType(ir.VoidType(), [_I64] * 9)

    def emitted(module: Any) -> Any:
        function = cgutils.get_or_insert_function(module, shape, f"turret_tile_{rows}x{PANEL}")
        if function.is_declaration:
            function.linkage = "internal"
            function.attributes.add("noinline")
            builder = ir.IRBuilder(function.append_basic_block("entry"))
            _Tile(builder, rows, function.args).emit()
            builder.ret_void()
        return function

    def tile(typing: Any, c: Any, ldc: Any, init: Any, ldi: Any, a: Any, rs: Any, cs: Any, b: Any, depth: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: tuple[Any, ...]) -> Any:
            builder.call(emitted(builder.module), args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return intrinsic(tile)


# tileN(c, ldc, init, ldi, a, rs, cs, b, depth): N rows of c = init + a b over one panel. The letters c, init, a, b are
# addresses of float32; ldc, ldi, rs, cs count elements; b is packed (depth, PANEL). ldi = 0 gives all rows one init.
tile6, tile2, tile1 = _tile(6), _tile(2), _tile(1)


def _move(count: int) -> Any:
    kind = ir.VectorType(_F32, count).as_pointer()

    def move(typing: Any, to: Any, source: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: tuple[Any, ...]) -> Any:
            value = builder.load(builder.inttoptr(args[1], kind), align=4)
            builder.store(value, builder.inttoptr(args[0], kind), align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return intrinsic(move)


# moveN(to, source): N neighbouring float32 in as few instructions as there are.
move6, move_panel = _move(6), _move(PANEL)


TURN = 8  # rows and columns of the square that `turn` transposes


@intrinsic  # type: ignore[untyped-decorator]
def turn(typing: Any, source: Any, ld: Any, to: Any, ldt: Any) -> Any:
    """to[j * ldt + i] = source[i * ld + j] for a square of float32, in vectors only."""
    half, whole = ir.VectorType(_F32, TURN // 2).as_pointer(), ir.VectorType(_F32, TURN).as_pointer()

    def chosen(builder: Any, a: Any, b: Any, places: list[int]) -> Any:
        return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(places)), places))

    def pairs(builder: Any, a: Any, b: Any, singles: bool) -> tuple[Any, Any]:
        """Single elements, or pairs of them, of a and b in turns: the lower of each four, and the upper."""
        low = [0, TURN, 1, TURN + 1] if singles else [0, 1, TURN, TURN + 1]
        both = [[four + up + place for four in (0, 4) for place in low] for up in (0, 2)]
        return chosen(builder, a, b, both[0]), chosen(builder, a, b, both[1])

    def generate(context: Any, builder: Any, signature: Any, args: tuple[Any, ...]) -> Any:
        source, to = (builder.inttoptr(args[i], _F32.as_pointer()) for i in (0, 2))

        def four(row: int, column: int) -> Any:
            at = builder.add(builder.mul(_number(row), args[1]), _number(column))
            return builder.load(builder.bitcast(builder.gep(source, [at]), half), align=4)

        for column in (0, 4):
            rows = [chosen(builder, four(i, column), four(i + 4, column), [*range(TURN)]) for i in range(4)]
            upper, lower = pairs(builder, rows[0], rows[1], True), pairs(builder, rows[2], rows[3], True)
            turned = [x for a, b in zip(upper, lower, strict=True) for x in pairs(builder, a, b, False)]
            for i, line in enumerate(turned):
                place = builder.gep(to, [builder.mul(_number(column + i), args[3])])
                builder.store(line, builder.bitcast(place, whole), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic  # type: ignore[untyped-decorator]
def fetch(typing: Any, address: Any) -> Any:
    """Asks for the cache line at an address, which may lie behind the end of what is there."""

    def generate(context: Any, builder: Any, signature: Any, args: tuple[Any, ...]) -> Any:
        _fetch(builder, builder.inttoptr(args[0], _BYTE.as_pointer()), writing=False)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def float_bits(typing: Any, x: Any) -> Any:
    """The 32 bits of a float32 as int32."""
    return types.int32(types.float32), lambda context, builder, signature, args: builder.bitcast(args[0], _I32)


@intrinsic  # type: ignore[untyped-decorator]
def bits_float(typing: Any, x: Any) -> Any:
    """The float32 with these 32 bits."""
    return types.float32(types.int32), lambda context, builder, signature, args: builder.bitcast(args[0], _F32)


@intrinsic  # type: ignore[untyped-decorator]
def word_float(typing: Any, x: Any) -> Any:
    """The float64 with the bits of an int64."""
    double = ir.DoubleType()
    return types.float64(types.int64), lambda context, builder, signature, args: builder.bitcast(args[0], double)


@intrinsic  # type: ignore[untyped-decorator]
def shifted(typing: Any, x: Any, by: Any) -> Any:
    """x - by of equal types, kept apart from the sums around it: (x - top) - l must not become x - (top + l)."""
    # an instruction with a flag of its own gets no others, and so no licence to be reordered
    return x(x, x), lambda context, builder, signature, args: builder.fsub(*args, flags=("nsz",))


def _pointer(kind: Any) -> Any:
    def pointer(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: tuple[Any, ...]) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return intrinsic(pointer)


_f32_at, _f64_at, _i32_at, _i64_at = map(_pointer, (types.float32, types.float64, types.int32, types.int64))


@intrinsic  # type: ignore[untyped-decorator]
def load_word(typing: Any, address: Any) -> Any:
    """The int64 at an address that another thread writes; what it wrote before is visible afterwards."""

    def generate(context: Any, builder: Any, signature: Any, args: tuple[Any, ...]) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_word(typing: Any, address: Any, value: Any) -> Any:
    """Publishes an int64, and all that was written before, to the threads that look at this address."""

    def generate(context: Any, builder: Any, signature: Any, args: tuple[Any, ...]) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], _I64.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def take_word(typing: Any, address: Any) -> Any:
    """Adds 1 to an int64 that other threads add to as well; returns what it was."""

    def generate(context: Any, builder: Any, signature: Any, args: tuple[Any, ...]) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _I64.as_pointer()), _number(1), "acq_rel")

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def swap_word(typing: Any, address: Any, old: Any, new: Any) -> Any:
    """Puts `new` where `old` is; whether `old` was there."""

    def generate(context: Any, builder: Any, signature: Any, args: tuple[Any, ...]) -> Any:
        place = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.extract_value(builder.cmpxchg(place, args[1], args[2], "acq_rel", "acquire"), 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def invoke(typing: Any, address: Any, words: Any, part: Any, parts: Any) -> Any:
    """Calls the kernel at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: tuple[Any, ...]) -> Any:
        shape = ir.FunctionType(ir.VoidType(), [_I64.as_pointer(), _I64, _I64])
        function = builder.inttoptr(args[0], shape.as_pointer())
        builder.call(function, [builder.inttoptr(args[1], _I64.as_pointer()), args[2], args[3]])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic  # type: ignore[untyped-decorator]
def breathe(typing: Any) -> Any:
    """A hint, inside a waiting loop, that the core's other thread may go first."""

    def generate(context: Any, builder: Any, signature: Any, args: tuple[Any, ...]) -> Any:
        if platform.machine().lower() in ("x86_64", "amd64"):
            pause = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, pause, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@numba.njit  # type: ignore[untyped-decorator]
def floats(address: Any, *shape: Any) -> Any:
    """The float32 array at an address."""
    return numba.carray(_f32_at(address), shape)


@numba.njit  # type: ignore[untyped-decorator]
def doubles(address: Any, *shape: Any) -> Any:
    """The float64 array at an address."""
    return numba.carray(_f64_at(address), shape)


@numba.njit  # type: ignore[untyped-decorator]
def integers(address: Any, *shape: Any) -> Any:
    """The int32 array at an address."""
    return numba.carray(_i32_at(address), shape)


@numba.njit  # type: ignore[untyped-decorator]
def longs(address: Any, *shape: Any) -> Any:
    """The int64 array at an address."""
    return numba.carray(_i64_at(address), shape)


@numba.njit  # type: ignore[untyped-decorator]
def words_of(pointer: Any) -> Any:
    """A kernel's operands as an array."""
    return numba.carray(pointer, (64,))
