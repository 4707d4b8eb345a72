"""Checkpoints of bitsandbytes: built here from the published construction, read and written bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from turret.quant import PackedWeight, bitsandbytes
from turret.registry import OpenBackend
from turret.spi import CheckpointError, ConfigError, ScaleCode, Unsupported
from turret.tensor import tensor

NAME = "model.layers.0.mlp.up_proj.weight"
STATE = f"{NAME}.quant_state.bitsandbytes__nf4"
Normal = Callable[..., Any]
Arrays = dict[str, Any]

# Blocks of scales beyond one group, a tail block and an odd number of values.
SHAPES = [(300, 129), (33, 65), (1, 1)]


def with_state(arrays: Arrays, **changes: Any) -> None:
    """Changes the JSON; None takes a key out."""
    state = json.loads(arrays[STATE].tobytes()) | changes
    arrays[STATE] = as_text(json.dumps({key: value for key, value in state.items() if value is not None}))


def store_as_bfloat16(path: Path, name: str) -> None:
    """Gives the bytes of an array another dtype."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    begin, end = header[name]["data_offsets"]
    header[name] |= {"dtype": "BF16", "shape": [(end - begin) // 2, 1]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])


def as_text(text: str) -> Any:
    return np.frombuffer(text.encode(), np.uint8)


@pytest.mark.parametrize("nesting", [None, "dynamic_map", "exact_dynamic_map"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("block", [32, 64, 4096])
def test_a_file_is_read_bit_for_bit(
    each: OpenBackend, published: Any, normal: Normal, tmp_path: Path, nesting: str | None, shape: Any, block: int
) -> None:
    nested = None if nesting is None else getattr(published, nesting)()
    arrays, decoded = published.checkpoint(NAME, normal(*shape), block, nested=nested)
    save_file({**arrays, "model.norm.weight": np.ones(3, np.float32)}, tmp_path / "model.safetensors")
    weights = bitsandbytes.load(tmp_path / "model.safetensors")
    assert list(weights) == [NAME]
    assert weights[NAME].unpack().numpy().tobytes() == decoded.tobytes()
    assert (weights[NAME].shape, weights[NAME].block) == (shape, block)


def test_a_nested_checkpoint_of_our_own_map_stays_nested(backend: OpenBackend, published: Any, normal: Normal) -> None:
    own = PackedWeight.pack(tensor(normal(33, 65)), scales="dynamic")
    arrays = bitsandbytes.write_weight(NAME, own)
    assert bitsandbytes.read_weight(arrays, NAME).scale_code == "dynamic"
    other = next(
        made
        for made in (published.dynamic_map(), published.exact_dynamic_map())
        if made.tobytes() != arrays[f"{NAME}.nested_quant_map"].tobytes()
    )
    arrays[f"{NAME}.nested_quant_map"] = other
    assert bitsandbytes.read_weight(arrays, NAME).scale_code == "float32"


def test_a_file_that_bitsandbytes_wrote_is_read_bit_for_bit(each: OpenBackend) -> None:
    """Weights that bitsandbytes 0.50.2 packed with `quantize_4bit`, beside what its `dequantize_4bit` made of them."""
    path = Path(__file__).parent / "data" / "bitsandbytes-0.50.2.safetensors"
    weights, arrays = bitsandbytes.load(path), load_file(path)
    codes = {name: weight.scale_code for name, weight in weights.items()}
    assert codes == {
        "plain.weight": "float32", "nested.weight": "dynamic", "wide.blocks.weight": "dynamic",
        "two.groups.weight": "dynamic",
    }  # fmt: skip
    for name, weight in weights.items():
        assert weight.unpack().numpy().tobytes() == arrays[name.replace("weight", "unpacked")].tobytes(), name
        again = bitsandbytes.write_weight(name, weight)
        for key, array in again.items():
            if not key.endswith("nf4"):
                assert array.tobytes() == arrays[key].tobytes(), key


@pytest.mark.parametrize("scales", ["float32", "dynamic"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_writing_and_reading_changes_no_bit(
    backend: OpenBackend, normal: Normal, tmp_path: Path, scales: ScaleCode, shape: Any
) -> None:
    packed = PackedWeight.pack(tensor(normal(*shape)), scales=scales)
    bitsandbytes.save(tmp_path / "x.safetensors", {NAME: packed, "b.weight": packed}, dtype="bfloat16")
    again = bitsandbytes.load(tmp_path / "x.safetensors")
    assert list(again) == ["b.weight", NAME] or list(again) == [NAME, "b.weight"]
    for weight in again.values():
        assert weight.scale_code == scales
        assert {k: v.tobytes() for k, v in weight.arrays().items()} == {
            k: v.tobytes() for k, v in packed.arrays().items()
        }


def test_what_is_written_has_the_published_names_and_dtypes(
    backend: OpenBackend, published: Any, normal: Normal
) -> None:
    weight = normal(33, 65)
    cases: list[tuple[ScaleCode, Any]] = [("float32", None), ("dynamic", published.dynamic_map())]
    for scales, nested in cases:
        want, _ = published.checkpoint(NAME, weight, 64, nested=nested)
        got = bitsandbytes.write_weight(NAME, PackedWeight.pack(tensor(weight), scales=scales), dtype="float16")
        assert got.keys() == want.keys()
        assert {k: (v.shape, v.dtype) for k, v in got.items() if k != STATE} == {
            k: (v.shape, v.dtype) for k, v in want.items() if k != STATE
        }
        states = [json.loads(each[STATE].tobytes()) for each in (got, want)]
        offsets = [state.pop("nested_offset", 0.0) for state in states]
        assert states[0] == states[1]
        assert offsets[0] == pytest.approx(offsets[1], rel=1e-6)
        assert got[NAME].tobytes() == want[NAME].tobytes()


@pytest.mark.parametrize("storage", [np.int8, np.float16, np.float32, ml_dtypes.bfloat16])
def test_bytes_stored_as_another_dtype_are_the_same_bytes(
    backend: OpenBackend, published: Any, normal: Normal, storage: Any
) -> None:
    arrays, decoded = published.checkpoint(NAME, normal(16, 64), 64)
    arrays[NAME] = arrays[NAME].reshape(-1).view(storage).reshape(-1, 1)
    assert bitsandbytes.read_weight(arrays, NAME).unpack().numpy().tobytes() == decoded.tobytes()


def test_a_file_may_store_the_bytes_as_bfloat16(
    backend: OpenBackend, published: Any, normal: Normal, tmp_path: Path
) -> None:
    arrays, decoded = published.checkpoint(NAME, normal(16, 64), 64)
    save_file(arrays, tmp_path / "x.safetensors")
    store_as_bfloat16(tmp_path / "x.safetensors", NAME)
    assert bitsandbytes.load(tmp_path / "x.safetensors")[NAME].unpack().numpy().tobytes() == decoded.tobytes()


@pytest.mark.parametrize(
    "part", ["absmax", "quant_map", "nested_absmax", "nested_quant_map", "quant_state.bitsandbytes__nf4"]
)
def test_no_other_part_may_be_bfloat16(
    plain: OpenBackend, published: Any, normal: Normal, tmp_path: Path, part: str
) -> None:
    """Thirty-four codes of scales are the bytes of seventeen bfloat16 numbers, and mean something else."""
    arrays, _ = published.checkpoint(NAME, normal(33, 65), 64, nested=published.dynamic_map())
    arrays[STATE] = as_text(arrays[STATE].tobytes().decode().ljust(300))
    save_file(arrays, tmp_path / "x.safetensors")
    store_as_bfloat16(tmp_path / "x.safetensors", f"{NAME}.{part}")
    with pytest.raises(CheckpointError, match=rf"x.safetensors: array '{NAME}.{part}' has dtype BF16; wanted"):
        bitsandbytes.load(tmp_path / "x.safetensors")


def test_what_an_odd_number_leaves_in_the_last_nibble_does_not_matter(
    backend: OpenBackend, published: Any, normal: Normal
) -> None:
    arrays, decoded = published.checkpoint(NAME, normal(33, 65), 64)
    for nibble in (0, 7, 15):
        arrays[NAME][-1] = arrays[NAME][-1] // 16 * 16 + nibble
        given = arrays[NAME].tobytes()
        assert bitsandbytes.read_weight(arrays, NAME).unpack().numpy().tobytes() == decoded.tobytes()
        assert arrays[NAME].tobytes() == given


def test_linear_scales_and_other_dtypes_are_not_written(backend: OpenBackend, normal: Normal) -> None:
    with pytest.raises(Unsupported, match=r"bitsandbytes has no 'linear' scales; pack with scales='dynamic'"):
        bitsandbytes.write_weight(NAME, PackedWeight.pack(tensor(normal(4, 64)), scales="linear"))
    with pytest.raises(ConfigError, match=r"got dtype 'int8'; wanted one of float32, float16, bfloat16"):
        bitsandbytes.write_weight(NAME, PackedWeight.pack(tensor(normal(4, 64))), dtype="int8")  # type: ignore[arg-type]


def drop(*parts: str) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        for part in parts:
            del arrays[f"{NAME}.{part}" if part else NAME]

    return change


def put(part: str, value: Any) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({f"{NAME}.{part}" if part else NAME: value})


def state(**changes: Any) -> Callable[[Arrays], None]:
    return lambda arrays: with_state(arrays, **changes)


def edit(part: str, place: int, value: float) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[f"{NAME}.{part}"] = arrays[f"{NAME}.{part}"].copy()
        arrays[f"{NAME}.{part}"][place] = value

    return change


def rename_kind(arrays: Arrays) -> None:
    arrays[STATE.replace("nf4", "fp4")] = arrays.pop(STATE)


BROKEN: dict[str, tuple[Callable[[Arrays], Any], type[Exception], str]] = {
    "fp4 by name": (rename_kind, Unsupported, "of kind 'fp4'; wanted nf4"),
    "fp4 by state": (state(quant_type="fp4"), Unsupported, "of kind 'fp4'; wanted nf4"),
    "no state": (drop("quant_state.bitsandbytes__nf4"), CheckpointError, "no array .*quant_state.bitsandbytes__nf4"),
    "no bytes": (drop(""), CheckpointError, f"no array '{NAME}'"),
    "no absmax": (drop("absmax"), CheckpointError, "no array .*absmax"),
    "no map": (drop("quant_map"), CheckpointError, "no array .*quant_map"),
    "no nested absmax": (drop("nested_absmax"), CheckpointError, "no .*nested_absmax; wanted all or none"),
    "no nested map": (drop("nested_quant_map"), CheckpointError, "no .*nested_quant_map; wanted all or none"),
    "no nested arrays": (drop("nested_absmax", "nested_quant_map"), CheckpointError, "wanted all or none"),
    "no nested offset": (state(nested_offset=None), CheckpointError, "no nested_offset; wanted all or none"),
    "another map": (edit("quant_map", 3, -0.3949), Unsupported, r"quant_map\[3\] is -0.39.*another map"),
    "a short map": (put("quant_map", np.zeros(15, np.float32)), CheckpointError, "15 values of float32; wanted 16"),
    "NaN in the map": (edit("quant_map", 3, np.nan), Unsupported, r"quant_map\[3\] is nan"),
    "a linear nested map": (
        put("nested_quant_map", np.linspace(-1, 1, 256, dtype=np.float32)),
        Unsupported,
        r"nested_quant_map\[0\] is -1.0; wanted -0.9929",
    ),
    "a nested map off by 2^-20": (edit("nested_quant_map", 9, -0.866407), Unsupported, r"nested_quant_map\[9\]"),
    "float64 map": (put("quant_map", np.zeros(16)), CheckpointError, "16 values of float64; wanted 16 of float32"),
    "too few bytes": (put("", np.zeros(1072, np.uint8)), CheckpointError, "1072 bytes for 2145 values; wanted 1073"),
    "too many bytes": (put("", np.zeros((1074, 1), np.uint8)), CheckpointError, "1074 bytes for 2145 values"),
    "too few scales": (put("absmax", np.zeros(33, np.uint8)), CheckpointError, r"got shape \(33,\); wanted \(34,\)"),
    "float scales": (put("absmax", np.zeros(34, np.float32)), CheckpointError, "float32"),
    "too many groups": (put("nested_absmax", np.ones(2, np.float32)), CheckpointError, "2"),
    "an endless group": (
        lambda arrays: (
            put("nested_absmax", np.full(1, np.inf, np.float32))(arrays),
            put("absmax", np.full(34, 127, np.uint8))(arrays),
        ),
        CheckpointError,
        "NaN or infinite",
    ),
    "scales of bfloat16": (put("absmax", np.zeros(34, ml_dtypes.bfloat16)), CheckpointError, "bfloat16"),
    "NaN group": (put("nested_absmax", np.full(1, np.nan, np.float32)), CheckpointError, "NaN or infinite"),
    "a list": (put("absmax", [1, 2]), CheckpointError, "is list; wanted a NumPy array"),
    "another shape": (state(shape=[33, 66]), CheckpointError, "1073 bytes for 2178 values; wanted 1089"),
    "no shape": (state(shape=None), CheckpointError, "'shape' of its quant state is None; wanted list"),
    "a negative shape": (state(shape=[-33, -65]), CheckpointError, "wanted 1 to 8 whole numbers above 0"),
    "an empty shape": (state(shape=[]), CheckpointError, "wanted 1 to 8 whole numbers above 0"),
    "a shape of floats": (state(shape=[33.0, 65]), CheckpointError, "wanted 1 to 8 whole numbers above 0"),
    "an endless shape": (state(shape=[10**4000, 10**4000]), CheckpointError, r"product is below 2\^63"),
    "a shape just too large": (state(shape=[2**32, 2**31]), CheckpointError, r"product is below 2\^63"),
    "too many axes": (state(shape=[2] * 10**5), CheckpointError, "wanted 1 to 8 whole numbers"),
    "a number of 5000 digits": (
        put("quant_state.bitsandbytes__nf4", as_text('{"blocksize": ' + "1" * 5000 + "}")),
        CheckpointError,
        "not valid JSON",
    ),
    "a negative block": (state(blocksize=-64), CheckpointError, "blocks of -64; wanted one of 32"),
    "a long block": (state(blocksize=10**4000), CheckpointError, "blocks of 10+; wanted one of 32"),
    "a negative nested block": (state(nested_blocksize=-256), Unsupported, "nested blocks of -256; wanted 256"),
    "a long offset": (state(nested_offset=10**4000), CheckpointError, "nested_offset 10+; wanted a number that"),
    "another block": (state(blocksize=63), CheckpointError, "blocks of 63; wanted one of 32"),
    "a block of text": (state(blocksize="64"), CheckpointError, "'blocksize' of its quant state is '64'; wanted int"),
    "another nested block": (state(nested_blocksize=128), Unsupported, "nested blocks of 128; wanted 256"),
    "another nested dtype": (state(nested_dtype="float16"), Unsupported, "nested dtype 'float16'; wanted float32"),
    "an offset of text": (state(nested_offset="1"), CheckpointError, "nested_offset '1'; wanted a number"),
    "an endless offset": (state(nested_offset=1e300), CheckpointError, "nested_offset 1e.300; wanted a number that"),
    "a float state": (put("quant_state.bitsandbytes__nf4", np.ones(3)), CheckpointError, "stored as float64"),
    "no JSON": (put("quant_state.bitsandbytes__nf4", as_text("{")), CheckpointError, "not valid JSON"),
    "no text": (put("quant_state.bitsandbytes__nf4", np.full(3, 255, np.uint8)), CheckpointError, "not valid JSON"),
    "JSON with NaN": (put("quant_state.bitsandbytes__nf4", as_text('{"a": NaN}')), CheckpointError, "NaN is not JSON"),
    "a JSON list": (put("quant_state.bitsandbytes__nf4", as_text("[]")), CheckpointError, "is list; wanted a mapping"),
    "deep JSON": (put("quant_state.bitsandbytes__nf4", as_text("[" * 10**5)), CheckpointError, "not valid JSON"),
}


@pytest.mark.parametrize("nested", ["dynamic_map", "exact_dynamic_map"])
@pytest.mark.parametrize("what", BROKEN)
def test_what_is_missing_or_does_not_fit_is_refused(
    plain: OpenBackend, published: Any, normal: Normal, what: str, nested: str
) -> None:
    change, error, message = BROKEN[what]
    arrays, _ = published.checkpoint(NAME, normal(33, 65), 64, nested=getattr(published, nested)())
    change(arrays)
    with pytest.raises(error, match=message) as caught:
        bitsandbytes.read_weight(arrays, NAME)
    assert str(caught.value).startswith(NAME)
    assert len(str(caught.value)) < 400


def test_scales_that_overflow_are_refused_without_a_warning(plain: OpenBackend, published: Any, normal: Normal) -> None:
    """In the map of another rounding, whose scales are multiplied out; the largest level and offset are too much."""
    arrays, _ = published.checkpoint(NAME, normal(33, 65), 64, nested=published.exact_dynamic_map())
    assert bitsandbytes.read_weight(arrays, NAME).scale_code == "float32"
    arrays[f"{NAME}.absmax"] = np.full(34, 255, np.uint8)
    arrays[f"{NAME}.nested_absmax"] = np.full(1, 3.4e38, np.float32)
    with_state(arrays, nested_offset=3.4e38)
    with pytest.raises(CheckpointError, match=f"{NAME}: scales .*got 34 NaN or infinite"):
        bitsandbytes.read_weight(arrays, NAME)


def test_an_error_in_a_file_names_the_file(plain: OpenBackend, published: Any, normal: Normal, tmp_path: Path) -> None:
    arrays, _ = published.checkpoint(NAME, normal(33, 65), 64)
    with_state(arrays, quant_type="fp4")
    save_file(arrays, tmp_path / "x.safetensors")
    with pytest.raises(Unsupported, match=rf"x.safetensors: {NAME}: .*fp4"):
        bitsandbytes.load(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"none.safetensors is not there"):
        bitsandbytes.load(tmp_path / "none.safetensors")


def test_a_file_is_replaced_whole_or_not_at_all(backend: OpenBackend, normal: Normal, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    packed = PackedWeight.pack(tensor(normal(4, 64)))
    bitsandbytes.save(path, {"a.weight": packed})
    before = path.read_bytes()
    with pytest.raises(Unsupported):
        bitsandbytes.save(path, {"a.weight": packed, "b.weight": PackedWeight.pack(packed.unpack(), scales="linear")})
    assert (path.read_bytes(), [each.name for each in tmp_path.iterdir()]) == (before, [path.name])
    assert sorted(load_file(path)) == sorted(bitsandbytes.write_weight("a.weight", packed))


@pytest.mark.parametrize(
    "name",
    ["", 5, None, "__metadata__", "a\ud800", "a.quant_state.bitsandbytes__nf4", "a.quant_state.bitsandbytes__.b"],
)
def test_a_name_that_could_not_be_read_again_is_refused(
    plain: OpenBackend, normal: Normal, tmp_path: Path, name: Any
) -> None:
    packed = PackedWeight.pack(tensor(normal(4, 64)))
    with pytest.raises(ConfigError, match="wanted text that is not empty"):
        bitsandbytes.save(tmp_path / "x.safetensors", {"w": packed, name: packed})
    with pytest.raises(ConfigError, match="wanted text that is not empty"):
        bitsandbytes.write_weight(name, packed)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["absmax", "quant_map", "nested_absmax", "nested_quant_map"])
@pytest.mark.parametrize("swapped", [False, True])
def test_weights_that_need_one_name_are_refused(
    plain: OpenBackend, normal: Normal, tmp_path: Path, part: str, swapped: bool
) -> None:
    packed = PackedWeight.pack(tensor(normal(4, 64)))
    names = [f"a.{part}", "a"] if swapped else ["a", f"a.{part}"]
    with pytest.raises(ConfigError, match=rf"weights a and a.{part}: .*rename one"):
        bitsandbytes.save(tmp_path / "x.safetensors", dict.fromkeys(names, packed))
    assert list(tmp_path.iterdir()) == []
    beside = {f"b.{part}": packed, "a": packed, "a.b": packed}
    bitsandbytes.save(tmp_path / "x.safetensors", beside)
    assert bitsandbytes.load(tmp_path / "x.safetensors").keys() == beside.keys()


def test_what_is_no_packed_weight_is_refused(plain: OpenBackend, normal: Normal, tmp_path: Path) -> None:
    values: list[Any] = [None, np.zeros(3), PackedWeight.pack(tensor(normal(4, 64))).packed]
    for value in values:
        with pytest.raises(ConfigError, match=f"w to save is {type(value).__name__}; wanted a PackedWeight"):
            bitsandbytes.save(tmp_path / "x.safetensors", {"w": value})
    with pytest.raises(ConfigError, match="to save are list; wanted a mapping"):
        bitsandbytes.save(tmp_path / "x.safetensors", values)  # type: ignore[arg-type]
