"""Safetensors files: what their library wrote is read bit for bit; everything malformed is refused."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from turret.models.weights.safetensors_file import SafetensorsFiles
from turret.quant import PackedWeight, bitsandbytes
from turret.registry import OpenBackend
from turret.spi import CheckpointError, Unsupported
from turret.tensor import tensor

Array = np.ndarray[Any, Any]
fuzz = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def file_bytes(header: Any, body: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def write(path: Path, header: Any, body: bytes = b"", **options: Any) -> Path:
    path.write_bytes(file_bytes(header, body, **options))
    return path


def refused(path: Path, *words: str, error: type[Exception] = CheckpointError) -> None:
    """Opening raises this error, in one line that names the file, and within little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(error) as caught:
            SafetensorsFiles(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert str(path) in text and "\n" not in text and len(text) < len(str(path)) * 3 + 500
    for word in words:
        assert word in text


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_floats_of_every_width_become_float32(tmp_path: Path, dtype: str) -> None:
    values = np.random.default_rng(7).standard_normal((5, 3, 2)).astype(dtype)
    values[0, 0] = np.inf, np.nan
    wanted = values.astype(np.float32)
    if dtype == "bfloat16":
        path = write(tmp_path / "x.safetensors", {"w": entry("BF16", (5, 3, 2), (0, 60))}, values.tobytes())
    else:
        path = tmp_path / "x.safetensors"
        save_file({"w": values}, path)
    with SafetensorsFiles(path) as files:
        got = files.read("w")
        assert files.shape("w") == (5, 3, 2)
        assert files.kind("w") == {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]
    assert got.dtype == np.float32 and got.flags.c_contiguous and got.flags.writeable and got.flags.aligned
    np.testing.assert_array_equal(got, wanted)


@given(st.binary(min_size=2, max_size=64).filter(lambda raw: len(raw) % 2 == 0))
def test_bfloat16_is_the_upper_half_of_float32(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bits.safetensors"
    write(path, {"w": entry("BF16", (len(raw) // 2,), (0, len(raw)))}, raw)
    with SafetensorsFiles(path) as files:
        bits = files.read("w").view(np.uint32)
    np.testing.assert_array_equal(bits & 0xFFFF, 0)
    np.testing.assert_array_equal((bits >> 16).astype("<u2"), np.frombuffer(raw, "<u2"))


def test_a_double_beyond_float32_becomes_infinite(tmp_path: Path) -> None:
    save_file({"w": np.array([1e300, -1e300])}, tmp_path / "x.safetensors")
    assert SafetensorsFiles(tmp_path / "x.safetensors").read("w").tolist() == [np.inf, -np.inf]


def test_a_tensor_may_lie_anywhere_be_a_scalar_or_have_no_values(tmp_path: Path) -> None:
    header = {"odd": entry("F32", (), (1, 5)), "byte": entry("U8", (1,), (0, 1)), "none": entry("F32", (0, 4), (5, 5))}
    path = write(tmp_path / "x.safetensors", header, b"\7" + np.float32(1.5).tobytes())
    with SafetensorsFiles(path) as files:
        assert files.names() == ("odd", "byte", "none")
        assert files.read("odd").shape == () and files.read("odd") == 1.5 and files.read("odd").flags.aligned
        assert files.read("none").shape == (0, 4)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64])
def test_integers_are_no_weights_and_come_raw(tmp_path: Path, dtype: Any) -> None:
    values = np.array([[np.iinfo(dtype).max, 1], [np.iinfo(dtype).min, 0]], dtype)
    save_file({"w": values, "on": np.array([True, False])}, tmp_path / "x.safetensors")
    with SafetensorsFiles(tmp_path / "x.safetensors") as files:
        for name in ("w", "on"):
            with pytest.raises(CheckpointError, match=f"'{name}'"):
                files.read(name)
        raw = files.raw("w")
        assert raw.dtype == dtype and raw.flags.writeable
        np.testing.assert_array_equal(raw, values)
        assert files.raw("on").dtype == np.bool_ and files.raw("on").tolist() == [True, False]


def test_a_boolean_that_is_neither_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"on": entry("BOOL", (2,), (0, 2))}, b"\1\2")
    with SafetensorsFiles(path) as files, pytest.raises(CheckpointError, match="'on'"):
        files.raw("on")


def test_eight_bit_floats_are_refused_as_weights(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"w": entry("F8_E4M3", (2,), (0, 2))}, b"\x38\x40")
    with SafetensorsFiles(path) as files:
        with pytest.raises(Unsupported, match="'w' is F8_E4M3"):
            files.read("w")
        assert files.raw("w").tolist() == [0x38, 0x40]


def test_the_raw_arrays_hold_what_bitsandbytes_needs(tmp_path: Path, plain: OpenBackend) -> None:
    values = np.random.default_rng(3).standard_normal((48, 65)).astype(np.float32)
    weight = PackedWeight.pack(tensor(values), scales="dynamic")
    bitsandbytes.save(tmp_path / "x.safetensors", {"layer.weight": weight})
    with SafetensorsFiles(tmp_path / "x.safetensors") as files:
        arrays = files.arrays()
        assert set(arrays) == set(files.names()) and len(arrays) == len(files.names())
        assert "layer.weight" in arrays and "other" not in arrays
        with pytest.raises(KeyError):
            arrays["other"]
        got = bitsandbytes.read_weight(arrays, "layer.weight")
    for part, array in weight.arrays().items():
        np.testing.assert_array_equal(got.arrays()[part], array)


def test_a_name_that_is_not_there_and_a_closed_file(tmp_path: Path) -> None:
    save_file({"a": np.ones((2, 3), np.float32)}, tmp_path / "x.safetensors")
    files = SafetensorsFiles(tmp_path / "x.safetensors")
    for ask in (files.read, files.raw, files.shape, files.kind):
        with pytest.raises(CheckpointError, match="no tensor 'z'"):
            ask("z")
    kept = files.read("a")
    files.close()
    files.close()
    assert kept.sum() == 6
    for ask in (files.read, files.raw):
        with pytest.raises(CheckpointError, match="closed"):
            ask("a")


HEADERS: dict[str, tuple[Any, bytes, str]] = {
    "overlap": ({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12), "'b' overlaps"),
    "same place": ({"a": entry(), "b": entry()}, bytes(8), "'b' overlaps"),
    "gap": ({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20), "'b' leaves a gap of 4"),
    "gap before all": ({"a": entry(offsets=(4, 12))}, bytes(12), "'a' leaves a gap"),
    "bytes behind": ({"a": entry()}, bytes(9), "9 follow"),
    "bytes without tensors": ({}, b"x", "1 follow"),
    "beyond the end": ({"a": entry()}, bytes(7), "7 follow"),
    "10 GB": ({"a": entry(shape=(2500, 10**6), offsets=(0, 10**10))}, bytes(8), "take 10000000000 bytes"),
    "size and shape": ({"a": entry(shape=(3,))}, bytes(8), "'a' lies at 0 to 8; wanted 12"),
    "shape smaller than its place": ({"a": entry(shape=(1,))}, bytes(8), "'a' lies at 0 to 8; wanted 4"),
    "begin after end": ({"a": entry(shape=(0,), offsets=(8, 0))}, bytes(8), "'a' lies at 8 to 0"),
    "negative place": ({"a": entry(offsets=(-8, 0))}, bytes(8), "data_offsets"),
    "one place": ({"a": entry(offsets=(8,))}, bytes(8), "data_offsets"),
    "place of true": ({"a": entry("U8", (1,), (False, True))}, bytes(1), "data_offsets"),
    "place of 8.0": ({"a": entry(offsets=(0, 8.0))}, bytes(8), "data_offsets"),
    "negative size": ({"a": entry(shape=(-1, -2))}, bytes(8), "shape"),
    "size of true": ({"a": entry(shape=(True, 2))}, bytes(8), "shape"),
    "nine sizes": ({"a": entry(shape=(1,) * 8 + (2,))}, bytes(8), "at most 8"),
    "overflow": ({"a": entry(shape=(2**62, 2**62))}, bytes(8), "more values"),
    "hidden overflow": ({"a": entry(shape=(0, 2**62, 2**62), offsets=(0, 0))}, b"", "more values"),
    "huge size": ({"a": entry(shape=(2**200,))}, bytes(8), "shape"),
    "shape of text": ({"a": entry() | {"shape": "22"}}, bytes(8), "shape"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8), "described by"),
    "one key more": ({"a": entry() | {"x": 1}}, bytes(8), "described by"),
    "entry of numbers": ({"a": [1, 2]}, bytes(8), "described by"),
    "dtype of number": ({"a": entry(dtype=32)}, bytes(8), "dtype 32"),
    "metadata of numbers": ({"__metadata__": {"format": 1}}, b"", "__metadata__"),
    "metadata of text": ({"__metadata__": "pt"}, b"", "__metadata__"),
    "list outermost": (b"[1]", b"", "starts with b'['"),
    "space before": (b' {"a": 1}', b"", "starts with b' '"),
    "cut short": (b'{"a": ', b"", "JSON"),
    "NaN": (b'{"a": NaN}', b"", "NaN"),
    "key twice": (b'{"a": 1, "a": 1}', b"", "'a' is there twice"),
    "inner key twice": (b'{"a": {"dtype": "F32", "dtype": "F32"}}', b"", "'dtype' is there twice"),
    "half a surrogate": (rb'{"\ud800": 1}', b"", "surrogate"),
    "not UTF-8": (b'{"\xff": 1}', b"", "utf-8"),
    "UTF-16": ('{"a": 1}'.encode("utf-16-le"), b"", "JSON"),
    "nested deeply": (b'{"a":' + b"[" * 100_000, b"", "JSON"),
    "many digits": (b'{"a": ' + b"9" * 5000 + b"}", b"", "JSON"),
}


@pytest.mark.parametrize(("header", "body", "word"), HEADERS.values(), ids=HEADERS.keys())
def test_a_header_that_lies_is_refused(tmp_path: Path, header: Any, body: bytes, word: str) -> None:
    refused(write(tmp_path / "x.safetensors", header, body), word)


@pytest.mark.parametrize("length", [0, 1, 3, 100, 100_000_001, 10**10, 2**63, 2**64 - 1])
def test_a_header_of_a_length_that_cannot_be_is_refused(tmp_path: Path, length: int) -> None:
    refused(write(tmp_path / "x.safetensors", {}, length=length))


@pytest.mark.parametrize("raw", [b"", b"\0", b"\2\0\0\0\0\0\0", b"\2\0\0\0\0\0\0\0", b"GGUF" + bytes(60)])
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(raw)
    refused(tmp_path / "x.safetensors")


def test_a_file_larger_than_memory_that_is_all_hole_costs_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"a": entry()}, bytes(8))
    os.truncate(path, 10**10)
    refused(path, "tensors take 8 bytes")


def test_an_unknown_dtype_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"a": entry("F4", (2,), (0, 1))}, b"\0")
    refused(path, "'a'", "'F4'", error=Unsupported)


def read_or_refuse(path: Path, limit: int) -> None:
    """Either every tensor is read, of the shape that was promised, or the error says so; never with much memory."""
    tracemalloc.start()
    try:
        with SafetensorsFiles(path) as files:
            for name in files.names():
                asks: tuple[Callable[[str], Array], ...] = (files.raw, files.read)
                for ask in asks:
                    try:
                        assert ask(name).shape == files.shape(name)
                    except (CheckpointError, Unsupported) as error:
                        str(error).encode()
    except (CheckpointError, Unsupported) as error:
        assert str(path) in str(error)
        str(error).encode()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < limit


def valid() -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        "a": entry("F32", (2, 3), (0, 24)),
        "b": entry("BF16", (4,), (24, 32)),
        "c": entry("BOOL", (2,), (32, 34)),
        "d": entry("I64", (1, 1), (34, 42)),
        "e": entry("F16", (0,), (42, 42)),
    }
    return file_bytes(header, np.arange(42, dtype=np.uint8).tobytes())


@fuzz
@given(data=st.data())
def test_bytes_flipped_cut_or_pasted(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(valid())
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(raw)))
        end = min(len(raw), begin + data.draw(st.integers(0, 12)))
        raw[begin:end] = data.draw(st.binary(max_size=12) | st.sampled_from((b"9" * 12, b"{", b'"', b"-1", b"[", b"]")))
    (tmp_path / "x.safetensors").write_bytes(raw)
    read_or_refuse(tmp_path / "x.safetensors", 1 << 20)


@fuzz
@given(
    header=st.dictionaries(
        st.sampled_from(("a", "b", "c", "__metadata__", "")),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(("F32", "BF16", "F8_E4M3", "F4", "U16", "C64", "BOOL", "X", "")),
                "shape": st.lists(st.integers(-1, 3) | st.just(2**63), max_size=3),
                "data_offsets": st.lists(st.integers(-1, 12), min_size=2, max_size=2),
            }
        ),
        max_size=3,
    ),
    body=st.binary(max_size=12),
)
def test_headers_of_any_content(tmp_path: Path, header: dict[str, Any], body: bytes) -> None:
    read_or_refuse(write(tmp_path / "x.safetensors", header, body), 1 << 20)


@fuzz
@given(sizes=st.lists(st.tuples(st.sampled_from(("F64", "F32", "F16", "BF16")), st.integers(0, 4)), max_size=5))
def test_any_tensors_side_by_side_are_read_back(tmp_path: Path, sizes: list[tuple[str, int]]) -> None:
    header, body, wanted = {}, b"", {}
    dtypes: dict[str, Any] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}
    for number, (kind, count) in enumerate(sizes):
        values = (np.arange(count * 2) + number).reshape(count, 2).astype(dtypes[kind])
        header[f"t{number}"] = entry(kind, (count, 2), (len(body), len(body) + values.nbytes))
        body += values.tobytes()
        wanted[f"t{number}"] = values.astype(np.float32)
    with SafetensorsFiles(write(tmp_path / "x.safetensors", header, body)) as files:
        assert files.names() == tuple(wanted)
        for name, values in wanted.items():
            np.testing.assert_array_equal(files.read(name), values)
