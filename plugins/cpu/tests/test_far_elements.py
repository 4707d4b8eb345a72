"""Elements beyond the 2^31st: arrays in sparse files, and the share of a kernel's work that lies at their end."""

from __future__ import annotations

import ctypes
import dataclasses
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nf4_formulas import CODES, Draw, X, close, decoded, in_blocks, made, nearest, published, scale_levels

from turret.spi import Packed, ScaleCode
from turret_cpu.backend import CpuBackend
from turret_cpu.kernels import nf4
from turret_cpu.kernels.intrinsics import PANEL
from turret_cpu.kernels.product import panels_of
from turret_cpu.quantized_linear import CpuQuantizedLinear, _words
from turret_cpu.threads import _word

pytestmark = pytest.mark.skipif(platform.system() == "Windows", reason="files are not sparse by themselves there")

Sparse = Callable[..., X]
BLOCK, WIDTH, ROWS = 64, 1024, 16  # 16 rows are 256 blocks: one group of scales
FAR = 2**31


@pytest.fixture
def sparse(tmp_path: Path) -> Sparse:
    """Makes arrays of zeros that take the room of those pages only that are written."""

    def make(*shape: int, dtype: Any = np.float32) -> X:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        return np.asarray(np.memmap(path, dtype=dtype, mode="w+", shape=shape))

    return make


@pytest.fixture
def slot(backend: CpuBackend) -> CpuQuantizedLinear:
    found = backend.capabilities().quantized_linear
    assert isinstance(found, CpuQuantizedLinear)
    return found


def run_last(kernel: Any, shares: int, *operands: Any, scratch: int = 0, count: int = 1) -> None:
    """The last shares of a call cut into so many, as the pool would run them; scratch is that of the last one."""
    words = [_word(each) for each in operands]
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(kernel.address)
    for part in range(shares - count, shares):
        room = np.full(scratch, np.nan, np.float32)
        mine = [*words, room.ctypes.data - 4 * scratch * part, scratch] if scratch else words
        call(np.array(mine, np.int64).ctypes.data, part, shares)


def at_the_end(small: Packed[X], rows: int, columns: int, sparse: Sparse) -> Packed[X]:
    """A weight of so many rows and columns whose last values are those of `small`; the others are zeros."""

    def behind(part: X | None, size: int) -> Any:
        if part is None:
            return None
        far = sparse(size, dtype=part.dtype)
        far[-part.size :] = part
        return far

    count = rows * columns
    return dataclasses.replace(
        small,
        codes=behind(small.codes, count // 2),
        scales=behind(small.scales, count // BLOCK),
        group_scales=behind(small.group_scales, count // (256 * BLOCK)),
        shape=(rows, columns),
    )


def test_the_last_blocks_of_a_weight_are_packed(sparse: Sparse, draw: Draw) -> None:
    count, few = FAR + 33, made(draw, 33)
    weight, codes, scales = sparse(count), sparse((count + 1) // 2, dtype=np.uint8), sparse(count // 32 + 1)
    weight[-33:] = few
    run_last(nf4.pack_weights, scales.size, weight, codes, scales, count, 5, count=2)
    want, tops = published(few, 32)
    assert np.array_equal(codes[-17:], want) and np.array_equal(scales[-2:], tops)
    assert not scales[:4096].any() and not codes[:4096].any()


@pytest.mark.parametrize("code", CODES[1:])
def test_the_last_group_of_scales_is_coded(sparse: Sparse, draw: Draw, code: ScaleCode) -> None:
    count, few = FAR + 5, made(draw, 5)
    centred, codes, groups = sparse(count), sparse(count, dtype=np.uint8), sparse(count // 256 + 1)
    centred[-5:] = few
    run_last(nf4.pack_scales, groups.size, centred, codes, groups, count, nf4.TABLES[code])
    units, tops = in_blocks(few, 256)
    assert np.array_equal(codes[-5:], nearest(units, scale_levels(code))) and groups[-1] == tops[0]
    assert not groups[:4096].any() and not codes[:4096].any()


@pytest.mark.parametrize("code", CODES)
def test_the_last_weights_are_unpacked(slot: CpuQuantizedLinear, sparse: Sparse, draw: Draw, code: ScaleCode) -> None:
    small = slot.pack(made(draw, ROWS, WIDTH), block=BLOCK, scales=code)
    packed = at_the_end(small, FAR // WIDTH + ROWS, WIDTH, sparse)
    out = sparse(*packed.shape)
    operands = *_words(packed), out, out.size
    run_last(nf4.unpack_weights, out.size // nf4.TILE, *operands, scratch=nf4.ROOM, count=ROWS * WIDTH // nf4.TILE)
    assert np.array_equal(out[-ROWS:], slot.unpack(small))


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("rows", [1, 9])  # with levels looked up in registers where there is AVX2, and without
def test_few_rows_meet_the_last_outputs(
    slot: CpuQuantizedLinear, sparse: Sparse, draw: Draw, rows: int, code: ScaleCode
) -> None:
    small, x = slot.pack(made(draw, ROWS, WIDTH), block=BLOCK, scales=code), made(draw, rows, WIDTH)
    packed = at_the_end(small, FAR // WIDTH + ROWS, WIDTH, sparse)
    outs = packed.shape[0]
    y = sparse(rows, outs)
    operands = *_words(packed), x, 0, y, rows, outs, WIDTH
    run_last(nf4.few_rows, outs // 4, *operands, scratch=nf4.FEW_SCRATCH, count=ROWS // 4)
    close(y[:, -ROWS:], x, decoded(small).T)


@pytest.mark.parametrize("code", CODES)
def test_many_rows_meet_the_last_outputs(slot: CpuQuantizedLinear, sparse: Sparse, draw: Draw, code: ScaleCode) -> None:
    small, x = slot.pack(made(draw, ROWS, WIDTH), block=BLOCK, scales=code), made(draw, 6, WIDTH)
    packed = at_the_end(small, FAR // WIDTH + ROWS, WIDTH, sparse)
    outs = packed.shape[0]
    y = sparse(6, outs)
    operands = *_words(packed), x, 1, sparse(outs), y, 6, outs, WIDTH
    run_last(nf4.product, int(panels_of(outs)), *operands, scratch=nf4.PRODUCT_SCRATCH)
    close(y[:, -PANEL:], x, decoded(small)[-PANEL:].T)


@pytest.mark.parametrize("code", CODES)
def test_the_gradient_of_the_last_inputs(slot: CpuQuantizedLinear, sparse: Sparse, draw: Draw, code: ScaleCode) -> None:
    outs, ins = 3, 2**30 + 2**14  # the last row begins beyond 2^31, and only its end is not zero
    small, dy = slot.pack(made(draw, ROWS, WIDTH), block=BLOCK, scales=code), made(draw, 6, outs)
    packed = at_the_end(small, outs, ins, sparse)
    dx = sparse(6, ins)
    operands = *_words(packed), dy, 0, sparse(ins), dx, 6, ins, outs
    run_last(nf4.product, int(panels_of(ins)), *operands, scratch=nf4.PRODUCT_SCRATCH)
    weight = np.full((outs, PANEL), 0.0 if small.offset is None else -float(small.offset))  # bytes and scales of 0
    weight[-1] = decoded(small).reshape(-1)[-PANEL:]
    close(dx[:, -PANEL:], dy, weight)


@pytest.mark.parametrize("axis", ["batch", "token"])
def test_attention_follows_steps_beyond_two_to_the_31(
    backend: CpuBackend, sparse: Sparse, draw: Draw, axis: str
) -> None:
    slot, step = backend.capabilities().flash_attention, FAR + 2**16
    assert slot is not None
    near = made(draw, 2, 2, 2, 4)
    lie = {"batch": 16, "token": 8, axis: step}
    memory = sparse(step + 32)
    far = np.lib.stride_tricks.as_strided(memory, near.shape, (4 * lie["batch"], 4 * lie["token"], 16, 4))
    far[...] = near
    calls = backend.derived_calls.total()
    got, want = (slot.attend(x, x, x, scale=0.4, offset=0) for x in (far, near))
    slopes, rights = (slot.attend_vjp(near, x, x, x, want, scale=0.4, offset=0) for x in (far, near))
    assert backend.derived_calls.total() == calls
    for ours, theirs in zip((*got, *slopes), (*want, *rights), strict=True):
        assert np.array_equal(ours, theirs)
