"""Packed weights at the edges of the format: zeros, NaN, empty arrays, parts that do not fit, sizes beyond 2^31."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nf4_formulas import CODES, Draw, close, decoded, made

from turret.spi import DTypeError, ScaleCode, ShapeError, Unsupported
from turret_cpu.backend import CpuBackend
from turret_cpu.kernels import nf4, nibbles
from turret_cpu.quantized_linear import CpuQuantizedLinear

RunCode = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def slot(backend: CpuBackend) -> CpuQuantizedLinear:
    return native(backend)


def native(backend: CpuBackend) -> CpuQuantizedLinear:
    found = backend.capabilities().quantized_linear
    assert isinstance(found, CpuQuantizedLinear)
    return found


@pytest.mark.parametrize("code", CODES)
def test_a_block_of_zeros_comes_back_as_zeros(slot: CpuQuantizedLinear, draw: Draw, code: ScaleCode) -> None:
    weight = made(draw, 6, 64)
    weight[2], weight[4] = 0.0, -0.0
    plain = slot.unpack(slot.pack(weight, block=64, scales="float32"))
    assert not plain[[2, 4]].any()
    nothing = slot.pack(np.zeros((5, 33), np.float32), block=32, scales=code)
    assert set(nothing.codes.tolist()) == {0x77}
    assert not slot.unpack(nothing).any()
    assert not slot.linear(made(draw, 3, 33), nothing, None).any()


def test_a_weight_that_is_no_number_spoils_its_block_and_is_never_hidden(slot: CpuQuantizedLinear, draw: Draw) -> None:
    weight = made(draw, 4, 64)
    clean = slot.unpack(slot.pack(weight, block=64, scales="float32"))
    weight[1, 40] = np.nan
    packed = slot.pack(weight, block=64, scales="float32")
    back = slot.unpack(packed)
    assert np.isnan(back[1]).all()
    assert np.array_equal(back[[0, 2, 3]], clean[[0, 2, 3]])
    y = slot.linear(made(draw, 2, 64), packed, None)
    assert np.isnan(y[:, 1]).all() and np.isfinite(y[:, [0, 2, 3]]).all()
    for code in CODES[1:]:  # their mean is no number either
        assert np.isnan(slot.unpack(slot.pack(weight, block=64, scales=code))).all()


def test_a_scale_below_zero_is_zero_under_the_linear_code_only(slot: CpuQuantizedLinear, draw: Draw) -> None:
    packed = slot.pack(made(draw, 3, 64), block=64, scales="linear")
    shaky = dataclasses.replace(packed, offset=np.array(0.5, np.float32), group_scales=np.ones(1, np.float32))
    codes = np.array([1, 128, 255], np.uint8)
    linear = dataclasses.replace(shaky, scales=codes)
    dynamic = dataclasses.replace(shaky, scales=codes, scale_code="dynamic")
    for each in (linear, dynamic):
        weight, x, dy = slot.unpack(each), made(draw, 2, 64), made(draw, 2, 3)
        assert np.allclose(weight, decoded(each), rtol=1e-6)
        close(slot.linear(x, each, None), x, decoded(each).T)
        close(slot.linear_vjp_input(dy, each), dy, decoded(each))
    assert not slot.unpack(linear)[0].any() and slot.unpack(dynamic)[0].any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("rows", [1, 5, 60])
def test_infinities_and_nan_in_x_reach_the_result(
    slot: CpuQuantizedLinear, draw: Draw, rows: int, value: float
) -> None:
    packed, x = slot.pack(made(draw, 9, 128), block=64, scales="float32"), made(draw, rows, 128)
    x[0, 3] = value
    with np.errstate(all="ignore"):
        want = x @ slot.unpack(packed).T
    got = slot.linear(x, packed, None)
    assert np.array_equal(np.isnan(got), np.isnan(want)) and np.array_equal(np.isposinf(got), np.isposinf(want))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_of_weights_is_free(slot: CpuQuantizedLinear, draw: Draw, scale: float) -> None:
    weight, x = (made(draw, 8, 64) * scale).astype(np.float32), made(draw, 2, 64)
    packed = slot.pack(weight, block=64, scales="float32")
    close(slot.linear(x, packed, None), x, decoded(packed).T)
    assert np.abs(slot.unpack(packed) - weight).max() <= 0.16 * np.abs(weight).max()


def test_earlier_results_stay(slot: CpuQuantizedLinear, draw: Draw) -> None:
    kept = [slot.pack(made(draw, 5, 33 + i), block=32, scales="dynamic") for i in range(4)]
    copies = [(p.codes.copy(), p.scales.copy()) for p in kept]
    for i in range(8):
        slot.unpack(slot.pack(made(draw, 7, 31 + i), block=32, scales="dynamic"))
    for packed, (codes, scales) in zip(kept, copies, strict=True):
        assert np.array_equal(packed.codes, codes) and np.array_equal(packed.scales, scales)


def test_halves_are_computed_in_float32(slot: CpuQuantizedLinear, draw: Draw) -> None:
    packed = slot.pack(made(draw, 7, 66), block=64, scales="dynamic")
    for rows in (2, 60):
        x, dy, bias = (made(draw, *shape).astype(np.float16) for shape in ((rows, 66), (rows, 7), (7,)))
        wide = slot.linear(x.astype(np.float32), packed, bias.astype(np.float32))
        assert np.array_equal(slot.linear(x, packed, bias), wide.astype(np.float16))
        back = slot.linear_vjp_input(dy.astype(np.float32), packed)
        assert np.array_equal(slot.linear_vjp_input(dy, packed), back.astype(np.float16))


def test_float64_is_composed_and_counted(draw: Draw) -> None:
    backend = CpuBackend()
    slot = native(backend)
    packed = slot.pack(made(draw, 7, 66), block=64, scales="dynamic")
    assert not backend.derived_calls
    x = draw.standard_normal((3, 66))
    got = slot.linear(x, packed, None)
    assert got.dtype == np.float64 and np.abs(got - x @ decoded(packed).T).max() < 1e-5
    assert backend.derived_calls == {"quantized_linear": 1}


def test_no_rows_give_no_rows_and_an_empty_weight_has_no_codes(slot: CpuQuantizedLinear, draw: Draw) -> None:
    packed = slot.pack(made(draw, 7, 66), block=64, scales="float32")
    assert slot.linear(np.empty((2, 0, 66), np.float32), packed, made(draw, 7)).shape == (2, 0, 7)
    assert slot.linear_vjp_input(np.empty((0, 7), np.float32), packed).shape == (0, 66)
    nothing = slot.pack(np.empty((0, 66), np.float32), block=64, scales="float32")
    assert nothing.codes.shape == nothing.scales.shape == (0,)
    assert slot.unpack(nothing).shape == (0, 66)
    assert slot.linear(made(draw, 3, 66), nothing, None).shape == (3, 0)


@pytest.mark.parametrize("block", [0, 1, 16, 48, 8192])
def test_other_block_sizes_are_refused(slot: CpuQuantizedLinear, draw: Draw, block: int) -> None:
    with pytest.raises(Unsupported, match=f"blocks of {block} weights; wanted a power of two from 32 to 4096"):
        slot.pack(made(draw, 4, 64), block=block, scales="float32")
    packed = slot.pack(made(draw, 4, 64), block=32, scales="float32")
    with pytest.raises(Unsupported, match="power of two"):
        slot.unpack(dataclasses.replace(packed, block=block))


def test_parts_that_do_not_fit_are_refused_before_memory_is_read(slot: CpuQuantizedLinear, draw: Draw) -> None:
    packed, x = slot.pack(made(draw, 40, 64), block=32, scales="dynamic"), made(draw, 2, 64)
    assert packed.group_scales is not None
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"codes": packed.codes[:-1]}, ShapeError, r"codes \(1279,\).*wanted \(1280,\)"),
        ({"scales": packed.scales[:-1]}, ShapeError, r"scales \(79,\).*wanted \(80,\)"),
        ({"group_scales": np.ones(2, np.float32)}, ShapeError, r"group_scales \(2,\).*wanted \(1,\)"),
        ({"shape": (80, 64)}, ShapeError, "codes"),
        ({"offset": None}, ShapeError, "wanted both group_scales and offset"),
        ({"scale_code": "float32", "scales": np.ones(80, np.float32)}, ShapeError, "wanted neither"),
        ({"codes": packed.codes.astype(np.int32)}, DTypeError, "wanted uint8"),
        ({"scales": packed.scales.astype(np.float32)}, DTypeError, "wanted uint8"),
        ({"scale_code": "float32", "group_scales": None, "offset": None}, DTypeError, "wanted float32"),
        ({"scale_code": "cubic"}, Unsupported, "'cubic'; wanted float32, dynamic or linear"),
    ]
    for changes, error, text in wrong:
        for call in (slot.unpack, lambda p: slot.linear(x, p, None), lambda p: slot.linear_vjp_input(x, p)):
            with pytest.raises(error, match=text):
                call(dataclasses.replace(packed, **changes))


def test_operands_of_another_width_are_refused(slot: CpuQuantizedLinear, draw: Draw) -> None:
    packed = slot.pack(made(draw, 40, 64), block=32, scales="float32")
    with pytest.raises(ShapeError, match=r"x \(2, 63\).*\(\.\.\., 64\)"):
        slot.linear(made(draw, 2, 63), packed, None)
    with pytest.raises(ShapeError, match=r"dy \(2, 64\).*\(\.\.\., 40\)"):
        slot.linear_vjp_input(made(draw, 2, 64), packed)
    with pytest.raises(ShapeError, match="wanted \\(O, I\\)"):
        slot.linear(made(draw, 2, 64), slot.pack(made(draw, 64), block=32, scales="float32"), None)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("first", [2**31 - 64, 2**33 + 4096 * 5 + 33])
def test_weights_far_beyond_2_to_the_31st_are_found(
    slot: CpuQuantizedLinear, draw: Draw, first: int, code: ScaleCode
) -> None:
    """The arrays stand for the end of a matrix whose beginning is not there."""
    block, count, aligned = 64, 1500, first - first % (64 * 256)
    packed = slot.pack(made(draw, 4096 * 5 + 1500), block=block, scales=code)
    want = slot.unpack(packed)
    width = 4 if code == "float32" else 1
    groups = 0 if packed.group_scales is None else packed.group_scales.ctypes.data - 4 * (aligned // (block * 256))
    offset = np.array(0.0 if packed.offset is None else float(packed.offset)).view(np.int64)
    words = np.array(
        [packed.codes.ctypes.data - aligned // 2, packed.scales.ctypes.data - width * (aligned // block), groups,
         int(offset), 6, 0 if code == "float32" else nf4.TABLES[code].ctypes.data], np.int64,
    )  # fmt: skip
    start, to, room = first, np.zeros(count, np.float32), np.zeros(nf4.ROOM, np.float32)
    nf4.unpacked(words, start, count, to.ctypes.data, room.ctypes.data)
    assert np.array_equal(to, want[first - aligned : first - aligned + count])


@pytest.mark.skipif(platform.system() != "Linux", reason="the peak is read from /proc")
def test_the_whole_weight_is_never_held(run_code: RunCode) -> None:
    done = run_code(
        """
        import numpy as np
        from turret.spi import Packed
        from turret_cpu.backend import CpuBackend
        def peak():
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
        slot = CpuBackend().capabilities().quantized_linear
        def products(outs, ins):
            codes = np.full(outs * ins // 2, 0x5A, np.uint8)
            packed = Packed(codes, np.ones(outs * ins // 64, np.float32), None, None, (outs, ins), 64, "float32")
            before = peak()
            for rows in (1, 6, 20, 64):
                for dtype in (np.float32, np.float16):
                    slot.linear(np.ones((rows, ins), dtype), packed, None)
                    slot.linear_vjp_input(np.ones((rows, outs), dtype), packed)
            return peak() - before
        products(64, 64)
        print(products(8192, 4096))
        """
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 4 * 8192 * 4096 // 4


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="AVX2 is of this processor family")
def test_a_processor_without_avx2_gets_the_same_results(
    slot: CpuQuantizedLinear, draw: Draw, run_code: RunCode, tmp_path: Any
) -> None:
    weight, x, dy = made(draw, 37, 192), made(draw, 60, 192), made(draw, 60, 37)
    packed = slot.pack(weight, block=32, scales="dynamic")
    np.savez(tmp_path / "in.npz", weight=weight, x=x, dy=dy)
    done = run_code(
        f"""
        import numpy as np
        from turret_cpu.backend import CpuBackend
        from turret_cpu.kernels.nibbles import AVX2
        slot, given = CpuBackend().capabilities().quantized_linear, np.load(r"{tmp_path / "in.npz"}")
        packed = slot.pack(given["weight"], block=32, scales="dynamic")
        x, dy = given["x"], given["dy"]
        np.savez(
            r"{tmp_path / "out.npz"}", codes=packed.codes, scales=packed.scales, weight=slot.unpack(packed),
            one=slot.linear(x[:1], packed, None), few=slot.linear(x[:7], packed, None),
            many=slot.linear(x, packed, None), back=slot.linear_vjp_input(dy, packed), avx2=AVX2,
        )
        """,
        NUMBA_CPU_NAME="x86-64",
        NUMBA_CPU_FEATURES="",
        NUMBA_CACHE_DIR=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    out = np.load(tmp_path / "out.npz")
    assert not out["avx2"]
    assert np.array_equal(out["codes"], packed.codes) and np.array_equal(out["scales"], packed.scales)
    assert np.array_equal(out["weight"], slot.unpack(packed))
    for name, rows in (("one", 1), ("few", 7), ("many", 60)):
        close(out[name], x[:rows], decoded(packed).T)
    close(out["back"], dy, decoded(packed))


def test_a_looked_up_chunk_holds_every_weight_once() -> None:
    assert sorted(nibbles.order()) == list(range(nibbles.CHUNK))
