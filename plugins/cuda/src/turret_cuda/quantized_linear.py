"""The slot of 4-bit NormalFloat weights."""

from __future__ import annotations

from collections.abc import Iterator

import cupy
import numpy as np

from turret.derived.quantized_linear import dynamic_levels, linear_levels
from turret.spi import NF4_LEVELS, Packed, ScaleCode

from .arrays import FLOAT32, FLOAT64, NATIVE, Host, Native, suffix
from .cublas import Operand
from .library import X
from .place import MOST_BLOCKS, THREADS, Place
from .products import clear, rows, steps

# As in kernels/quantized_linear.cu.
WARPS, GROUP, OUTPUTS, OF_LANE, ALIGNED = 8, 256, 8, 32, 16
TABLES = np.dtype(
    [
        *((name, np.float32, 16) for name in ("levels", "middles")),
        *((name, np.float32, 256) for name in ("scale_levels", "scale_middles")),
        ("least", np.float32),
    ]
)
FEW_ROWS = (1, 2, 4, 8)  # for so many rows of x a weight is unpacked where it is used
SCRATCH_BYTES = 32 * 2**20  # the most that is unpacked at once for more rows
MEAN_THREADS = 1024


class CudaQuantizedLinear:
    """Few rows meet the weight in one kernel that unpacks it on the way; more meet it in cuBLAS, a part at a time.

    Such a part has the dtype of x: under halves its values are rounded to them, so that tensor cores take part.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        dynamic, linear = _tables(dynamic_levels(), -np.inf), _tables(linear_levels(), 0.0)
        self._tables: dict[ScaleCode, Host] = {"float32": dynamic, "dynamic": dynamic, "linear": linear}

    def pack(self, weight: X, /, *, block: int, scales: ScaleCode) -> Packed[X]:
        place, x, count = self._place, self._place.dense(weight), weight.size
        blocks = -(-count // block)
        codes, largest = place.empty((-(-count // 2),), NATIVE["uint8"]), place.empty((blocks,), FLOAT32)
        if count:
            grid = min(-(-blocks // WARPS), MOST_BLOCKS)
            operands = self._tables[scales], x, codes, largest, count, block
            place.launch("quantized_linear", f"pack_{suffix(x)}", grid, 32 * WARPS, *operands)
        if scales == "float32":
            return Packed(codes, largest, None, None, weight.shape, block, scales)
        return Packed(codes, *self._pack_scales(largest, scales), weight.shape, block, scales)

    def unpack(self, packed: Packed[X], /) -> X:
        out = self._place.empty(packed.shape, FLOAT32)
        self._unpack(packed, out, row=0, rows=1, column=0, columns=out.size, width=out.size)
        return out

    def linear(self, x: X, packed: Packed[X], bias: X | None, /) -> X:
        place, (outputs, width) = self._place, packed.shape
        folded = rows(place, x)
        y = place.empty((folded.shape[0], outputs), x.dtype)
        if y.size and self._suits_few_rows(folded, packed):
            self._few_rows(place.dense(folded), packed, bias, y)
        elif y.size:
            if bias is not None:
                place.copy_into(y, cupy.broadcast_to(bias, y.shape))
            elif not width:
                clear(place, y)
            if width:
                self._by_outputs(folded, packed, y, add=bias is not None)
        return y.reshape((*x.shape[:-1], outputs))

    def linear_vjp_input(self, dy: X, packed: Packed[X], /) -> X:
        place, (outputs, width) = self._place, packed.shape
        folded = rows(place, dy)
        dx = place.empty((folded.shape[0], width), dy.dtype)
        if dx.size and outputs:
            self._by_inputs(folded, packed, dx)
        elif dx.size:
            clear(place, dx)
        return dx.reshape((*dy.shape[:-1], width))

    def _pack_scales(self, scales: X, code: ScaleCode) -> tuple[X, X, X]:
        """Codes of the scales less their mean, the scale of each group of them, and the mean."""
        place, count = self._place, scales.size
        groups = -(-count // GROUP)
        offset, codes = place.empty((), FLOAT32), place.empty((count,), NATIVE["uint8"])
        group_scales = place.empty((groups,), FLOAT32)
        place.launch("quantized_linear", "mean", 1, MEAN_THREADS, scales, offset, count)
        if groups:
            operands = self._tables[code], scales, offset, codes, group_scales, count
            place.launch("quantized_linear", "pack_scales", min(groups, MOST_BLOCKS), GROUP, *operands)
        return codes, group_scales, offset

    def _suits_few_rows(self, x: X, packed: Packed[X]) -> bool:
        """Whether the kernel for few rows takes these: it reads words of codes, each within a block of values."""
        (count, width), codes = x.shape, packed.codes
        readable = codes.flags.c_contiguous and codes.data.ptr % ALIGNED == 0
        return bool(count <= FEW_ROWS[-1] and width > 0 and width % OF_LANE == 0 and x.dtype != FLOAT64 and readable)

    def _few_rows(self, x: X, packed: Packed[X], bias: X | None, y: X) -> None:
        count, outputs = y.shape
        name = f"linear_{suffix(x)}_{next(most for most in FEW_ROWS if count <= most)}"
        bias = None if bias is None else self._place.dense(bias)
        operands = self._tables[packed.scale_code], *self._parts(packed), x, bias, y, count, outputs, x.shape[1]
        self._place.launch("quantized_linear", name, -(-outputs // OUTPUTS), 32 * OUTPUTS, *operands)

    def _by_outputs(self, x: X, packed: Packed[X], y: X, *, add: bool) -> None:
        """Writes x weight^T to y, or adds it: some rows of the weight at a time."""
        outputs, width = packed.shape
        x, left = self._readable(x)
        for start, count, part in self._portions(outputs, width, x.dtype):
            self._unpack(packed, part, row=start, rows=1, column=0, columns=count * width, width=width)
            right = Operand(part.data.ptr, width, transposed=True)
            result = Operand(y.data.ptr + start * y.itemsize, outputs)
            self._multiply((1, y.shape[0], count, width), x, left, part, right, y, result, add=add)

    def _by_inputs(self, dy: X, packed: Packed[X], dx: X) -> None:
        """Writes dy weight to dx: some columns of the weight at a time, so that every sum is rounded once."""
        outputs, width = packed.shape
        dy, left = self._readable(dy)
        for start, count, part in self._portions(width, outputs, dy.dtype):
            self._unpack(packed, part, row=0, rows=outputs, column=start, columns=count, width=width)
            right, result = Operand(part.data.ptr, count), Operand(dx.data.ptr + start * dx.itemsize, width)
            self._multiply((1, dx.shape[0], count, outputs), dy, left, part, right, dx, result, add=False)

    def _multiply(
        self,
        sizes: tuple[int, int, int, int],
        x: X,
        left: Operand,
        part: X,
        right: Operand,
        out: X,
        result: Operand,
        *,
        add: bool,
    ) -> None:
        self._place.multiply(lambda blas: blas.strided(x.dtype, sizes, left, right, result, add=add), x, part, out)

    def _readable(self, x: X) -> tuple[X, Operand]:
        """x: (N, C), or a copy of it, as cuBLAS takes it."""
        (count, width), (down, across) = x.shape, steps(x)
        if (width > 1 and across != 1) or (count > 1 and down < width):
            return self._readable(self._place.copied(x))
        return x, Operand(x.data.ptr, width if count == 1 else down)

    def _portions(self, count: int, size: int, dtype: Native) -> Iterator[tuple[int, int, X]]:
        """First and number of `count` rows or columns of `size` elements, and memory for them, used again and again."""
        most = min(count, max(1, SCRATCH_BYTES // (size * dtype.itemsize)))
        scratch = self._place.empty((most * size,), dtype)
        for start in range(0, count, most):
            yield start, min(most, count - start), scratch

    def _unpack(self, packed: Packed[X], out: X, *, row: int, rows: int, column: int, columns: int, width: int) -> None:
        """Writes a part of a weight of `width` columns to the beginning of `out`, in its dtype."""
        place, name = self._place, f"unpack_{suffix(out)}"
        words = rows * -(-columns // max(1, 16 // out.itemsize))
        if words:
            operands = self._tables[packed.scale_code], *self._parts(packed), out, row, rows, column, columns, width
            place.launch("quantized_linear", name, min(-(-words // THREADS), MOST_BLOCKS), THREADS, *operands)

    def _parts(self, packed: Packed[X]) -> tuple[X | int | None, ...]:
        """The arrays of a packed weight and the logarithm of its block, as kernels take them."""
        arrays = packed.codes, packed.scales, packed.group_scales, packed.offset
        dense = (None if x is None else self._place.dense(x) for x in arrays)
        return *dense, packed.block.bit_length() - 1


def _tables(scale_levels: Host, least: float) -> Host:
    made = np.zeros((), TABLES)
    made["least"] = least
    for name, middles, levels in (
        ("levels", "middles", np.array(NF4_LEVELS, np.float32)),
        ("scale_levels", "scale_middles", scale_levels),
    ):
        made[name] = levels
        made[middles] = np.append((levels[:-1].astype(np.float64) + levels[1:]) / 2, np.inf)
    return made
