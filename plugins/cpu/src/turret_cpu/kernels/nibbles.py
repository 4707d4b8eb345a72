"""What AVX2 has for weights of four bits: tables of sixteen float32 looked up 32 at a time, byte by byte."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, codegen, config
from numba.extending import intrinsic

from turret.spi import NF4_LEVELS

CHUNK = 64  # weights in one register of codes
ABREAST = 4  # rows of x that share the looked-up weights of a chunk

_BYTE, _I16, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_BYTES, _WORDS, _FLOATS = ir.VectorType(_BYTE, 32), ir.VectorType(_I16, 16), ir.VectorType(_F32, 8)
_HALF = ir.VectorType(_F32, 4)
_NOTHING = ir.Constant(_FLOATS, ir.Undefined)
_PLACES = ir.VectorType(_I32, 8)
_HALVES = ir.Constant(_PLACES, [*range(4), *range(12, 16)])


def _compiled_for(feature: str) -> bool:
    """Whether Numba compiles for processors that have it: this one, unless its settings say otherwise."""
    features = codegen.get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return f"+{feature}" in features.split(",")


AVX2 = _compiled_for("avx2")


def order() -> list[int]:
    """Where the weight at each place of a looked-up chunk stands among its 64: first the high nibbles, then the low."""
    places = np.arange(CHUNK).reshape(2, 4, 4, 2)  # half of the register, vector, element, nibble
    return [int(place) for place in places.transpose(3, 1, 0, 2).reshape(-1)]


def _number(value: int) -> Any:
    return ir.Constant(_I64, value)


def _all(value: float, kind: Any) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _interleaved(count: int, high: bool) -> Any:
    """The lower or upper halves of each 128 bits of two vectors, in turns: one instruction."""
    half = count // 4
    first = half if high else 0
    places = [side * count + lane * 2 * half + first + i for lane in (0, 1) for i in range(half) for side in (0, 1)]
    return ir.Constant(ir.VectorType(_I32, count), places)


class _Chunk:
    """Emits the lookup of 64 weights from their 32 bytes."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        lookup = ir.FunctionType(_BYTES, [_BYTES] * 2)
        self._lookup = cgutils.get_or_insert_function(builder.module, lookup, "llvm.x86.avx2.pshuf.b")
        fused = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        self._fma = cgutils.get_or_insert_function(builder.module, fused, "llvm.fmuladd.v8f32")
        planes = np.array(NF4_LEVELS, np.float32).view(np.uint8).reshape(16, 4).T
        self._tables = [ir.Constant(_BYTES, [int(x) for x in plane] * 2) for plane in planes]

    def nibbles(self, codes: Any) -> tuple[Any, Any]:
        """The high and the low nibbles of 32 bytes."""
        builder = self.builder
        both = builder.load(builder.bitcast(codes, _BYTES.as_pointer()), align=1)
        down = builder.bitcast(builder.lshr(builder.bitcast(both, _WORDS), _all(4, _WORDS)), _BYTES)
        return builder.and_(down, _all(15, _BYTES)), builder.and_(both, _all(15, _BYTES))

    def turns(self, a: Any, b: Any, kind: Any) -> tuple[Any, Any]:
        """Elements of a and b in turns: of the lower halves of each 128 bits, and of the upper ones."""
        a, b = (self.builder.bitcast(x, kind) for x in (a, b))
        low, high = (self.builder.shuffle_vector(a, b, _interleaved(kind.count, side)) for side in (False, True))
        return low, high

    def levels(self, nibbles: Any) -> list[Any]:
        """Four vectors; the i-th holds the levels of nibbles 4 i to 4 i + 3 of each half."""
        planes = [self.builder.call(self._lookup, [table, nibbles]) for table in self._tables]
        lower, upper = self.turns(planes[0], planes[1], _BYTES), self.turns(planes[2], planes[3], _BYTES)
        pairs = [self.turns(a, b, _WORDS) for a, b in zip(lower, upper, strict=True)]
        return [self.builder.bitcast(x, _FLOATS) for pair in pairs for x in pair]

    def scales(self, scales: Any, element: Any, shift: Any, count: int) -> list[Any]:
        """The scale of the 32 weights from `element` on, in all places; for two, also that of the 32 behind them."""
        builder, found = self.builder, []
        for i in range(count):
            block = builder.ashr(builder.add(element, _number(i * CHUNK // 2)), shift)
            value = builder.load(builder.gep(scales, [block]), align=4)
            lone = builder.insert_element(_NOTHING, value, ir.Constant(_I32, 0))
            found.append(builder.shuffle_vector(lone, _NOTHING, _all(0, _PLACES)))
        return found

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.call(self._fma, [a, b, c])

    def vector(self, place: Any) -> Any:
        """Eight float32 from memory."""
        return self.builder.load(self.builder.bitcast(place, _FLOATS.as_pointer()), align=4)


def _emit_dots(builder: Any, rows: int, args: tuple[Any, ...]) -> None:
    """Two loops: a chunk in blocks of 32 has two scales, any other has one."""
    shared = builder.icmp_signed(">=", args[3], _number(CHUNK.bit_length() - 1))
    with builder.if_else(shared) as branches:
        for scales, branch in zip((1, 2), branches, strict=True):
            with branch:
                _emit_loop(builder, rows, scales, args)


def _emit_loop(builder: Any, rows: int, scales_each: int, args: tuple[Any, ...]) -> None:
    codes, scales, first, shift, chunks, x, ldx, y, ldy = args
    codes = builder.inttoptr(codes, _BYTE.as_pointer())
    scales, x, y = (builder.inttoptr(a, _F32.as_pointer()) for a in (scales, x, y))
    # a sum for each half of the scales: mixing two scales in one register takes the units that look levels up
    sums = [[cgutils.alloca_once_value(builder, _all(0.0, _FLOATS)) for _ in range(scales_each)] for _ in range(rows)]
    lines = [builder.gep(x, [builder.mul(_number(m), ldx)]) for m in range(rows)]
    with cgutils.for_range(builder, chunks, intp=_I64) as loop:
        chunk = _Chunk(builder)
        start = builder.mul(loop.index, _number(CHUNK))
        dots: list[list[Any]] = [[] for _ in range(rows)]
        halves = chunk.nibbles(builder.gep(codes, [builder.mul(loop.index, _number(CHUNK // 2))]))
        for n, nibbles in enumerate(halves):
            for i, level in enumerate(chunk.levels(nibbles)):
                at = builder.add(start, _number(32 * n + 8 * i))
                for dot, line in zip(dots, lines, strict=True):
                    values = chunk.vector(builder.gep(line, [at]))
                    if i == 0 and (n == 0 or rows == 1):  # one row alone has registers for two sums at once
                        dot.append(builder.fmul(level, values))
                    else:
                        dot[-1] = chunk.fma(level, values, dot[-1])
        found = chunk.scales(scales, builder.add(first, start), shift, scales_each)
        for dot, totals in zip(dots, sums, strict=True):
            whole = dot[0] if len(dot) == 1 else builder.fadd(*dot)
            for scale, total in zip(found, totals, strict=True):
                builder.store(chunk.fma(whole, scale, builder.load(total)), total)
    for m, totals in enumerate(sums):
        place = builder.gep(y, [builder.mul(_number(m), ldy)])
        ends = [builder.load(total) for total in totals]
        whole = ends[0] if scales_each == 1 else builder.shuffle_vector(*ends, _HALVES)
        builder.store(builder.fadd(builder.load(place, align=4), _sum(builder, whole)), place, align=4)


def _sum(builder: Any, vector: Any) -> Any:
    for half in (4, 2, 1):
        places = ir.Constant(ir.VectorType(_I32, 8), [(i + half) % 8 for i in range(8)])
        vector = builder.fadd(vector, builder.shuffle_vector(vector, _NOTHING, places))
    return builder.extract_element(vector, ir.Constant(_I32, 0))


def _emit_spread(builder: Any, args: tuple[Any, ...]) -> None:
    codes, scales, first, shift, chunks, to = args
    codes = builder.inttoptr(codes, _BYTE.as_pointer())
    scales, to = (builder.inttoptr(a, _F32.as_pointer()) for a in (scales, to))
    with cgutils.for_range(builder, chunks, intp=_I64) as loop:
        chunk = _Chunk(builder)
        start = builder.mul(loop.index, _number(CHUNK))
        scale = builder.shuffle_vector(*chunk.scales(scales, builder.add(first, start), shift, 2), _HALVES)
        halves = chunk.nibbles(builder.gep(codes, [builder.mul(loop.index, _number(CHUNK // 2))]))
        for n, nibbles in enumerate(chunk.turns(*halves, _BYTES)):
            for i, level in enumerate(chunk.levels(nibbles)):
                value = builder.fmul(level, scale)
                for lane in (0, 1):
                    lanes = ir.Constant(ir.VectorType(_I32, 4), [4 * lane + j for j in range(4)])
                    at = builder.add(start, _number(16 * n + 4 * i + 32 * lane))
                    place = builder.bitcast(builder.gep(to, [at]), _HALF.as_pointer())
                    builder.store(builder.shuffle_vector(value, _NOTHING, lanes), place, align=4)


def _routine(name: str, count: int, emit: Any) -> Any:
    """A function of `count` int64 words in the module, emitted once; empty where there is no AVX2 to run it."""
    shape = ir.FunctionType(ir.VoidType(), [_I64] * count)

    def generate(context: Any, builder: Any, signature: Any, args: tuple[Any, ...]) -> Any:
        function = cgutils.get_or_insert_function(builder.module, shape, name)
        if function.is_declaration:
            function.linkage = "internal"
            function.attributes.add("noinline")
            inner = ir.IRBuilder(function.append_basic_block("entry"))
            if AVX2:
                emit(inner, function.args)
            inner.ret_void()
        builder.call(function, args)
        return context.get_dummy_value()

    return types.void(*[types.int64] * count), generate


def _dots(rows: int) -> Any:
    def dots(
        typing: Any, codes: Any, scales: Any, first: Any, shift: Any, chunks: Any, x: Any, ldx: Any, y: Any, ldy: Any
    ) -> Any:
        return _routine(f"turret_nf4_dots{rows}", 9, lambda builder, args: _emit_dots(builder, rows, args))

    return intrinsic(dots)


# dotsN(codes, scales, first, shift, chunks, x, ldx, y, ldy): adds the products of whole chunks of one line of weights
# with N rows of x, which lie in the `order` of a chunk, to y[0], y[ldy] ... The weight at codes has the number `first`,
# a multiple of 32; the scale of weight i is scales[i >> shift].
dots1, dots2, dots3, dots4 = _dots(1), _dots(2), _dots(3), _dots(4)


@intrinsic  # type: ignore[untyped-decorator]
def spread(typing: Any, codes: Any, scales: Any, first: Any, shift: Any, chunks: Any, to: Any) -> Any:
    """Writes the weights of whole chunks, one after the other; arguments as above."""
    return _routine("turret_nf4_spread", 6, _emit_spread)


@intrinsic  # type: ignore[untyped-decorator]
def _octets_at(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: tuple[Any, ...]) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.uint8)(types.int64), generate


@numba.njit  # type: ignore[untyped-decorator]
def octets(address: Any, *shape: Any) -> Any:
    """The uint8 array at an address."""
    return numba.carray(_octets_at(address), shape)
