"""Packed weights against the published construction, and what others shipped wrong."""

from __future__ import annotations

import hashlib
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.derived.quantized_linear import dynamic_levels, linear_levels
from turret.quant import PackedWeight
from turret.registry import OpenBackend, use_backend
from turret.spi import (
    NF4_LEVELS,
    BackendMismatch,
    CaptureError,
    ConfigError,
    DTypeError,
    NonFiniteError,
    ScaleCode,
    ShapeError,
)
from turret.tensor import capture, no_grad, tensor

BLOCKS = [32, 64, 128, 256, 512, 1024, 2048, 4096]
CODES: list[ScaleCode] = ["float32", "dynamic", "linear"]
MAP = "e732639a65f497b4ad684bb166a4467708255edd5207757de8b8f0c7e1fda89c"  # of the float32 map in its own checkpoints
PACKED = "0000001111111112222233333444455555667778899aabbbcccdddeeeeeeffffeeeeeffffff7"
Normal = Callable[..., Any]


def as_bytes(weight: PackedWeight) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in weight.arrays().items()}


def test_the_levels_are_the_published_constants(published: Any) -> None:
    assert np.array(NF4_LEVELS, np.float32).tobytes() == published.levels.tobytes()
    assert (len(NF4_LEVELS), NF4_LEVELS[7], sum(level < 0 for level in NF4_LEVELS)) == (16, 0.0, 7)


def test_the_dynamic_map_is_the_published_one(published: Any) -> None:
    golden = published.dynamic_map()
    assert hashlib.sha256(golden.tobytes()).hexdigest() == MAP
    levels = dynamic_levels()
    assert (levels.shape, levels.dtype.name, float(levels[127]), float(levels[255])) == ((256,), "float32", 0.0, 1.0)
    np.testing.assert_allclose(levels, golden, rtol=2.0**-22, atol=0)
    for place, value in {0: -0.99296874, 20: -0.7117188, 39: -0.44453126, 64: -0.09859375, 126: -5.5e-07}.items():
        assert math.isclose(levels[place], value, rel_tol=1e-6)


def test_the_linear_map_is_centred() -> None:
    np.testing.assert_array_equal(linear_levels(), ((np.arange(256) - 128) / 127).astype(np.float32))


def test_packed_bytes_never_move(each: OpenBackend) -> None:
    packed = PackedWeight.pack(tensor(np.linspace(-2, 2, 75, dtype=np.float32)), block=32)
    assert packed.codes.numpy().tobytes().hex() == PACKED
    assert packed.scales.numpy().tolist() == [2.0, 1.4054054021835327, 2.0]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("shape", [(65, 67), (1,)], ids=str)
def test_every_block_size_gives_the_published_bytes(
    each: OpenBackend, published: Any, normal: Normal, block: int, shape: tuple[int, ...]
) -> None:
    weight = normal(*shape)
    want, packed = published.pack(weight, block), PackedWeight.pack(tensor(weight), block=block)
    assert packed.codes.numpy().tobytes() == want.codes.tobytes()
    assert packed.scales.numpy().tobytes() == want.absmax.tobytes()
    assert packed.unpack().numpy().tobytes() == want.decoded.tobytes()
    assert (packed.unpack().shape, packed.unpack().dtype) == (shape, "float32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("block", [32, 4096])
def test_every_dtype_is_packed_as_its_float32_value(
    each: OpenBackend, published: Any, normal: Normal, dtype: Any, block: int
) -> None:
    if dtype not in each.tools.storage.device().dtypes:
        pytest.skip(f"{each.spec} has no {dtype}")
    weight = normal(9, 613)
    if dtype != "float64":
        weight = weight.astype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16).astype(np.float32)
    packed = PackedWeight.pack(tensor(weight, dtype=dtype), block=block)
    assert packed.codes.numpy().tobytes() == published.pack(weight, block).codes.tobytes()


def test_views_are_packed_in_the_order_of_their_elements(each: OpenBackend, normal: Normal) -> None:
    weight = normal(66, 130)
    whole = tensor(weight)
    for view, copied in ((whole.transpose(1, 0), weight.T), (whole[::2, 1:99:3], weight[::2, 1:99:3])):
        straight = PackedWeight.pack(tensor(np.ascontiguousarray(copied)))
        assert as_bytes(PackedWeight.pack(view)) == as_bytes(straight)


@pytest.mark.parametrize("scales", CODES)
@pytest.mark.parametrize("shape", [(99, 101), (130, 65)], ids=str)
def test_tail_blocks_and_odd_sizes_keep_to_the_weight(
    each: OpenBackend, normal: Normal, shape: tuple[int, ...], scales: ScaleCode
) -> None:
    weight = normal(*shape)
    packed = PackedWeight.pack(tensor(weight), scales=scales)
    error = np.abs(packed.unpack().numpy() - weight).mean()
    assert 0.07 < error < 0.075
    last = packed.codes.numpy()[-1] & 15
    assert weight.size % 2 == 0 or last == 7


@pytest.mark.parametrize("scales", CODES)
def test_blocks_of_zeros_stay_zeros(each: OpenBackend, normal: Normal, scales: ScaleCode) -> None:
    assert (
        PackedWeight.pack(tensor(np.zeros((5, 77), np.float32)), scales=scales).unpack().numpy().tolist()
        == [[0] * 77] * 5
    )
    weight = normal(4, 64)
    weight[1] = 0
    unpacked = PackedWeight.pack(tensor(weight), scales=scales).unpack().numpy()
    assert np.isfinite(unpacked).all()
    assert unpacked[1].tolist() == [0] * 64


def test_bytes_do_not_depend_on_the_backend(every: list[OpenBackend], normal: Normal) -> None:
    weight = normal(300, 129)
    found = [as_bytes(PackedWeight.pack(tensor(weight, backend=backend))) for backend in every]
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("scales", CODES)
def test_the_same_bytes_are_the_same_weight_everywhere(
    every: list[OpenBackend], normal: Normal, scales: ScaleCode
) -> None:
    packed = PackedWeight.pack(tensor(normal(300, 129), backend=every[0]), block=32, scales=scales)
    want = packed.unpack().numpy()
    for backend in every:
        np.testing.assert_array_equal(packed.to(backend).unpack().numpy(), want, err_msg=backend.spec)


@pytest.mark.parametrize("scales", CODES)
def test_a_second_move_changes_nothing(every: list[OpenBackend], normal: Normal, scales: ScaleCode) -> None:
    packed = PackedWeight.pack(tensor(normal(33, 65), backend=every[0]), scales=scales)
    before = as_bytes(packed)
    for backend in every:
        moved = packed.to(backend)
        assert moved.backend is backend
        assert moved.to(backend) is moved
        assert moved.to(backend.spec).to(every[0]).backend is every[0]
        assert as_bytes(moved) == as_bytes(moved.to(every[0])) == before
        assert (moved.shape, moved.block, moved.scale_code) == (packed.shape, packed.block, packed.scale_code)


def test_a_weight_takes_four_and_a_half_bits_and_a_little_over_four(backend: OpenBackend, normal: Normal) -> None:
    weight = tensor(normal(1024, 1024))
    plain = PackedWeight.pack(weight)
    assert plain.bytes == sum(array.nbytes for array in plain.arrays().values()) == 2**20 * 9 // 16
    assert plain.bits_per_weight == 4.5
    for scales in CODES[1:]:
        coded = PackedWeight.pack(weight, scales=scales)
        assert coded.bytes == sum(array.nbytes for array in coded.arrays().values())
        assert round(coded.bits_per_weight, 3) == 4.127


@pytest.mark.parametrize("scales", CODES)
def test_arrays_make_the_weight_again(each: OpenBackend, normal: Normal, scales: ScaleCode) -> None:
    packed = PackedWeight.pack(tensor(normal(33, 65)), block=32, scales=scales)
    again = PackedWeight.from_arrays(packed.arrays(), shape=[33, 65], block=32, scale_code=scales)
    assert as_bytes(again) == as_bytes(packed)
    assert again.unpack().numpy().tobytes() == packed.unpack().numpy().tobytes()


@settings(deadline=None, max_examples=40)
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    block=st.sampled_from(BLOCKS),
    scales=st.sampled_from(CODES),
    spread=st.sampled_from([1e-30, 1e-3, 1.0, 1e30]),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_value_is_further_from_its_level_than_half_the_widest_gap(
    shape: list[int], block: int, scales: ScaleCode, spread: float, seed: int
) -> None:
    weight = (np.random.default_rng(seed).normal(size=shape) * spread).astype(np.float32)
    with use_backend("cpu"):
        packed = PackedWeight.pack(tensor(weight), block=block, scales=scales)
        error = np.abs(packed.unpack().numpy().astype(float) - weight).reshape(-1)
    flat = np.pad(np.abs(weight.astype(float).reshape(-1)), (0, -weight.size % block)).reshape(-1, block)
    scale = np.repeat(flat.max(1), block)[: weight.size]
    coding = 0.0 if scales == "float32" else 0.02 * np.ptp(flat.max(1)) + 1e-6 * scale
    assert (error <= (1 - 0.69619) / 2 * scale * (1 + 1e-6) + coding).all()


def test_a_packed_weight_is_no_part_of_a_graph(backend: OpenBackend, normal: Normal) -> None:
    weight = tensor(normal(8, 8), requires_grad=True)
    packed = PackedWeight.pack(weight * 2.0)
    assert not packed.unpack().requires_grad
    with no_grad():
        assert as_bytes(PackedWeight.pack(weight * 2.0)) == as_bytes(packed)


def test_packing_keeps_no_float_copy(plain: OpenBackend, normal: Normal) -> None:
    weight = tensor(normal(1024, 1024))
    tracemalloc.start()
    packed = PackedWeight.pack(weight)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert packed.bytes <= kept < 1.1 * packed.bytes


@pytest.mark.parametrize(
    "block", [0, 1, 16, 63, 96, 8192, -64, 64.0, True, "64", None, pytest.param(10**5000, id="long")]
)
def test_other_block_sizes_are_refused(backend: OpenBackend, block: Any) -> None:
    with pytest.raises(ConfigError, match=r"blocks of .*; wanted one of 32, 64, .*4096"):
        PackedWeight.pack(tensor(np.ones((4, 64), np.float32)), block=block)


@pytest.mark.parametrize("scales", ["double", "", None, True, "Float32"])
def test_other_scale_codes_are_refused(backend: OpenBackend, scales: Any) -> None:
    with pytest.raises(ConfigError, match=r"wanted one of float32, dynamic, linear"):
        PackedWeight.pack(tensor(np.ones((4, 64), np.float32)), scales=scales)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_counted_and_the_first_is_named(
    each: OpenBackend, normal: Normal, bad: float
) -> None:
    weight = normal(6, 70)
    weight[2, 5] = weight[2, 6] = weight[5, 69] = bad
    with pytest.raises(NonFiniteError, match=r"\(6, 70\) with 3 NaN or infinite .*first at \(2, 5\)"):
        PackedWeight.pack(tensor(weight))


def test_what_overflows_float32_is_refused(backend: OpenBackend) -> None:
    with pytest.raises(NonFiniteError, match=r"1 NaN or infinite in float32, the first at \(1,\)"):
        PackedWeight.pack(tensor(np.array([1.0, 1e300])))


@pytest.mark.parametrize("scales", ["dynamic", "linear"])
def test_scales_whose_mean_overflows_are_refused(each: OpenBackend, scales: ScaleCode) -> None:
    """Two of the largest float32 numbers have a float32 mean, and no float32 sum."""
    huge = tensor(np.full((5, 64), 3e38, np.float32))
    with pytest.raises(
        NonFiniteError, match=rf"a weight \(5, 64\) .*with {scales} scales its .*offset.* overflow float32; use scales="
    ):
        PackedWeight.pack(huge, scales=scales)
    np.testing.assert_array_equal(PackedWeight.pack(huge).unpack().numpy(), np.float32(3e38))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_integers_are_refused(backend: OpenBackend, dtype: Any) -> None:
    with pytest.raises(DTypeError, match=rf"got dtype {dtype}; wanted a Tensor of .*float32"):
        PackedWeight.pack(tensor(np.ones((4, 64)), dtype=dtype))
    with pytest.raises(DTypeError, match=r"got ndarray"):
        PackedWeight.pack(np.ones((4, 64), np.float32))  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_weights_without_elements_are_refused(backend: OpenBackend, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="wanted 1 to 8 whole numbers above 0"):
        PackedWeight.pack(tensor(np.zeros(shape, np.float32)))


def test_packing_in_a_captured_step_names_the_line(normal: Normal) -> None:
    with use_backend("tpu:cpu"):
        step = capture(lambda x: PackedWeight.pack(x).unpack())
        with pytest.raises(CaptureError, match=r"a weight is packed at .*test_weight.py"):
            step(tensor(normal(4, 64)))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda a: a.pop("scales"), ConfigError, r"missing \['scales'\]"),
        (lambda a: a.pop("offset"), ConfigError, r"missing \['offset'\]"),
        (lambda a: a.update(extra=a["codes"]), ConfigError, r"unknown \['extra'\]"),
        (lambda a: a.update(codes=a["codes"][:-1]), ShapeError, r"codes .*got shape \(1072,\); wanted \(1073,\)"),
        (lambda a: a.update(codes=a["codes"][:, None]), ShapeError, r"codes .*got shape \(1073, 1\)"),
        (lambda a: a.update(scales=a["scales"][:-1]), ShapeError, r"scales .*got shape \(33,\); wanted \(34,\)"),
        (lambda a: a.update(group_scales=np.ones(2, np.float32)), ShapeError, r"got shape \(2,\); wanted \(1,\)"),
        (lambda a: a.update(offset=np.ones(1, np.float32)), ShapeError, r"offset .*got shape \(1,\); wanted \(\)"),
        (lambda a: a.update(codes=a["codes"].astype(np.int32)), DTypeError, r"codes .*got dtype int32; wanted uint8"),
        (lambda a: a.update(scales=np.ones(34, np.float32)), DTypeError, r"got dtype float32; wanted uint8"),
        (lambda a: a.update(group_scales=[1.0]), DTypeError, r"got list; wanted a NumPy array of float32"),
        (lambda a: a.update(offset=np.array(np.nan, np.float32)), NonFiniteError, r"offset .*got 1 NaN"),
        (lambda a: a["codes"].__setitem__(-1, 0x70), ConfigError, r"odd number of values and 0 in the nibble after"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    backend: OpenBackend, normal: Normal, change: Callable[[dict[str, Any]], Any], error: type[Exception], message: str
) -> None:
    arrays = PackedWeight.pack(tensor(normal(33, 65)), scales="dynamic").arrays()
    change(arrays)
    with pytest.raises(error, match=message):
        PackedWeight.from_arrays(arrays, shape=(33, 65), block=64, scale_code="dynamic")


@pytest.mark.parametrize(
    "shape",
    [
        *(None, "33", 2145, 10**5000, (33.0, 65), (33, -65), (33, 0), (True, 2145)),
        *((1,) * 9, [2] * 10**5, (10**5000,), [10**4000, 10**4000], (2**32, 2**31)),
    ],
    ids=lambda shape: f"{type(shape).__name__}{len(shape) if isinstance(shape, (tuple, list)) else ''}",
)
def test_shapes_that_are_none_are_refused(backend: OpenBackend, normal: Normal, shape: Any) -> None:
    arrays = PackedWeight.pack(tensor(normal(33, 65))).arrays()
    with pytest.raises(ShapeError, match=r"an NF4 weight got shape .*wanted 1 to 8 whole numbers above 0") as caught:
        PackedWeight.from_arrays(arrays, shape=shape, block=64, scale_code="float32")
    assert len(str(caught.value)) < 250


def test_tensors_that_do_not_fit_are_refused(every: list[OpenBackend], normal: Normal) -> None:
    packed = PackedWeight.pack(tensor(normal(4, 64), backend=every[0]), scales="linear")
    facts: dict[str, Any] = {"shape": (4, 64), "block": 64}
    with pytest.raises(DTypeError, match=r"got scales uint8 \(4,\); wanted a Tensor of float32 \(4,\)"):
        PackedWeight(codes=packed.codes, scales=packed.scales, scale_code="float32", **facts)
    with pytest.raises(DTypeError, match=r"got group_scales NoneType; wanted a Tensor of float32 \(1,\)"):
        PackedWeight(codes=packed.codes, scales=packed.scales, scale_code="linear", **facts)
    with pytest.raises(ShapeError, match=r"got group_scales float32 \(1,\); wanted none"):
        plain = PackedWeight.pack(tensor(normal(4, 64), backend=every[0]))
        PackedWeight(
            codes=plain.codes, scales=plain.scales, group_scales=packed.group_scales, scale_code="float32", **facts
        )
    moved = PackedWeight.pack(tensor(normal(4, 64), backend=every[1]))
    with pytest.raises(BackendMismatch, match=r"wanted one backend"):
        PackedWeight(codes=moved.codes, scales=plain.scales, scale_code="float32", **facts)


def test_a_shape_is_kept_as_a_tuple(backend: OpenBackend, normal: Normal) -> None:
    plain = PackedWeight.pack(tensor(normal(5, 7)))
    facts: dict[str, Any] = {"codes": plain.codes, "scales": plain.scales, "block": 64, "scale_code": "float32"}
    sizes = [5, 7]
    made = PackedWeight(**facts, shape=sizes)  # type: ignore[arg-type]
    sizes.append(3)
    assert (type(made.shape), made.shape, made.packed.shape) == (tuple, (5, 7), (5, 7))
    for shape in ([5.0, 7], np.array([5, 7]), "57", None, 35):
        with pytest.raises(ShapeError, match="an NF4 weight got shape"):
            PackedWeight(**facts, shape=shape)  # type: ignore[arg-type]
