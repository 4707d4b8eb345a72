"""GGUF files built byte by byte: what the format allows is read, everything malformed is refused."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turret.models.weights.gguf_file import GgufFile
from turret.spi import CheckpointError, Unsupported

Kind = gguf.GGMLQuantizationType
Values = gguf.GGUFValueType
Array = np.ndarray[Any, Any]
U32, STRING, ARRAY = Values.UINT32, Values.STRING, Values.ARRAY
fuzz = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def number(value: int) -> bytes:
    return struct.pack("<I", value)


def info(name: str | bytes, sizes: tuple[int, ...] = (4,), kind: int = 0, begin: int = 0) -> bytes:
    """sizes: as in the file, rows last."""
    shape = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return text(name) + shape + struct.pack("<IQ", kind, begin)


def file_bytes(
    pairs: tuple[bytes, ...] = (),
    infos: tuple[bytes, ...] = (),
    body: bytes = b"",
    *,
    version: int = 3,
    tensors: int | None = None,
    keys: int | None = None,
    alignment: int = 32,
) -> bytes:
    counts = (len(infos) if tensors is None else tensors, len(pairs) if keys is None else keys)
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs + infos)
    return head + bytes(-len(head) % alignment if infos else 0) + body


def write(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def refused(path: Path, *words: str, error: type[Exception] = CheckpointError) -> None:
    """Opening raises this error, in one line that names the file, and within little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(error) as caught:
            GgufFile(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert str(path) in message and "\n" not in message and len(message) < len(str(path)) + 500
    for word in words:
        assert word in message


def test_arrays_may_be_empty_and_nested_four_deep(tmp_path: Path) -> None:
    nested = array(ARRAY, 1, array(ARRAY, 1, array(ARRAY, 2, array(U32, 1, number(7)) + array(STRING, 0))))
    pairs = (pair("deep", ARRAY, nested), pair("none", ARRAY, array(Values.FLOAT64, 0)))
    assert GgufFile(write(tmp_path / "x.gguf", file_bytes(pairs))).metadata == {"deep": [[[[7], []]]], "none": []}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_tensors_start_at_the_alignment_of_the_file(tmp_path: Path, version: int, alignment: int) -> None:
    values = np.arange(12, dtype="<f4")
    step = max(alignment, 48)
    raw = file_bytes(
        (pair("general.alignment", U32, number(alignment)),),
        (info("b", (4, 3), 0, step), info("a", (3, 4))),
        values.tobytes() + bytes(step - 48) + (values + 1).tobytes(),
        version=version,
        alignment=alignment,
    )
    with GgufFile(write(tmp_path / "x.gguf", raw)) as file:
        assert file.names() == ("b", "a") and file.shape("b") == (3, 4)
        np.testing.assert_array_equal(file.read("a"), values.reshape(4, 3))
        np.testing.assert_array_equal(file.read("b"), values.reshape(3, 4) + 1)


def test_a_scalar_and_a_tensor_without_values(tmp_path: Path) -> None:
    raw = file_bytes((), (info("s", ()), info("e", (4, 0)), info("q", (32, 0), Kind.Q8_0)), struct.pack("<f", 2.5))
    with GgufFile(write(tmp_path / "x.gguf", raw)) as file:
        assert file.read("s").shape == () and file.read("s") == 2.5
        assert file.read("e").shape == (0, 4) and file.read("q").shape == (0, 32)


def test_a_vocabulary_is_parsed_quickly(tmp_path: Path) -> None:
    words = [f"Ġ{number:x}" for number in range(98_052)]
    path = tmp_path / "x.gguf"
    path.write_bytes(file_bytes((pair("tokens", ARRAY, array(STRING, len(words), b"".join(map(text, words)))),)))
    took = []
    for _ in range(5):
        begin = time.process_time()
        file = GgufFile(path)
        took.append(time.process_time() - begin)
    assert file.metadata["tokens"] == words
    assert min(took) < 0.3


ONE, BODY = info("a"), bytes(16)
FAR = 2**63
HOSTILE: dict[str, tuple[bytes, str]] = {
    "overlap": (file_bytes((), (ONE, info("b", (12,))), bytes(48)), "'b' of 48 bytes overlaps"),
    "partial overlap": (
        file_bytes((), (info("a", (9,)), info("b", (1,), 0, 32)), bytes(36)),
        "'b' of 4 bytes overlaps",
    ),
    "cut short": (file_bytes((), (ONE,), bytes(15)), "'a' of 16 bytes ends at byte"),
    "out of range": (file_bytes((), (info("a", (4,), 0, 64),), BODY), "'a' of 16 bytes ends at byte"),
    "far out of range": (file_bytes((), (info("a", (4,), 0, 2**64 - 32),), BODY), "'a' of 16 bytes ends at byte"),
    "10 GB": (file_bytes((), (info("a", (10**5, 25_000)),), BODY), "of 10000000000 bytes ends at byte"),
    "not aligned": (file_bytes((), (info("a", (4,), 0, 8),), bytes(24)), "multiple of 32"),
    "tensor twice": (file_bytes((), (ONE, info("a", (4,), 0, 32)), bytes(48)), "'a' is there twice"),
    "tensor without name": (file_bytes((), (info(""),), BODY), "0 characters"),
    "five dimensions": (file_bytes((), (info("a", (1,) * 5),), BODY), "5 dimensions"),
    "2**32 - 1 dimensions": (file_bytes((), (text("a") + b"\xff" * 24,), BODY), "4294967295 dimensions"),
    "overflow": (file_bytes((), (info("a", (FAR, FAR, 4)),), BODY), "more values"),
    "hidden overflow": (file_bytes((), (info("a", (FAR, FAR, 0)),), BODY), "more values"),
    "half a block": (file_bytes((), (info("a", (48, 2), Kind.Q4_0),), bytes(64)), "multiple of 32"),
    "scalar of a block": (file_bytes((), (info("a", (), Kind.Q4_0),), bytes(64)), "multiple of 32"),
    "tensors promised": (file_bytes((), (ONE,), BODY, tensors=2**64 - 1), "number of tensors"),
    "keys promised": (file_bytes((), (ONE,), BODY, keys=2**62), "number of metadata keys"),
    "one key more": (file_bytes((pair("k", U32, number(1)),), (), bytes(20), keys=2), "0 characters"),
    "key twice": (file_bytes((pair("k", U32, number(1)),) * 2), "'k' is there twice"),
    "key without name": (file_bytes((pair("", U32, number(1)),)), "metadata key 0"),
    "key too long": (file_bytes((pair("k" * 65_536, U32, number(1)),)), "metadata key 0"),
    "key length lies": (file_bytes((struct.pack("<Q", FAR) + bytes(20),)), "length of metadata key 0"),
    "key is no text": (file_bytes((pair(b"\xff\xfe", U32, number(1)),)), "UTF-8"),
    "tensor name is no text": (file_bytes((), (info(b"\xc3"),), BODY), "UTF-8"),
    "text is no text": (file_bytes((pair("k", STRING, text(b"\x80")),)), "'k' is not UTF-8"),
    "text length lies": (file_bytes((pair("k", STRING, struct.pack("<Q", 10**10)),)), "'k'"),
    "texts are no text": (
        file_bytes((pair("k", ARRAY, array(STRING, 2, text("a") + text(b"\x80"))),)),
        "text 1 of 'k'",
    ),
    "texts end early": (file_bytes((pair("k", ARRAY, array(STRING, 2, text("a" * 20))),)), "after 1 of 2"),
    "text in texts lies": (file_bytes((pair("k", ARRAY, array(STRING, 1, struct.pack("<Q", FAR))),)), "ends at byte"),
    "array length lies": (file_bytes((pair("k", ARRAY, array(Values.FLOAT64, 10**9)),)), "'k' is 1000000000"),
    "array a little too long": (file_bytes((pair("k", ARRAY, array(Values.FLOAT64, 5, bytes(30))),)), "can hold"),
    "array of 2**64 - 1": (file_bytes((pair("k", ARRAY, array(Values.UINT8, 2**64 - 1)),)), "'k'"),
    "arrays promised": (file_bytes((pair("k", ARRAY, array(ARRAY, 2**60)),)), "'k'"),
    "five deep": (file_bytes((pair("k", ARRAY, array(ARRAY, 1) * 4 + array(U32, 0)),)), "inside 4 others"),
    "10000 deep": (file_bytes((pair("k", ARRAY, array(ARRAY, 1) * 10_000),)), "inside 4 others"),
    "value type": (file_bytes((pair("k", 13, bytes(20)),)), "type 13"),
    "array type": (file_bytes((pair("k", ARRAY, array(2**31, 1, bytes(20))),)), "type 2147483648"),
    "boolean of 2": (file_bytes((pair("k", Values.BOOL, b"\2"),)), "boolean of 2"),
    "booleans of 3": (file_bytes((pair("k", ARRAY, array(Values.BOOL, 3, b"\0\3\1")),)), "boolean of 3"),
    "no magic": (b"GGML" + file_bytes()[4:], "starts with b'GGML'"),
    "only magic": (b"GGUF", "the version takes 4 bytes"),
    "no counts": (b"GGUF\3\0\0\0", "number of tensors"),
    "empty": (b"", "empty"),
    "split.count of text": (file_bytes((pair("split.count", STRING, text("2")),)), "split.count"),
}
ALIGNMENTS = {"0": (U32, number(0)), "24": (U32, number(24)), "-8": (Values.INT32, struct.pack("<i", -8))}
ALIGNMENTS |= {"1.0": (Values.FLOAT32, struct.pack("<f", 32)), "True": (Values.BOOL, b"\1")}
HOSTILE |= {
    f"alignment {word}": (file_bytes((pair("general.alignment", *value),), (ONE,), BODY), "general.alignment")
    for word, value in ALIGNMENTS.items()
}


@pytest.mark.parametrize(("raw", "word"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_file_that_lies_is_refused(tmp_path: Path, raw: bytes, word: str) -> None:
    refused(write(tmp_path / "x.gguf", raw), word)


UNSUPPORTED: dict[str, tuple[bytes, str]] = {
    "version 1": (file_bytes(version=1), "version 1"),
    "version 4": (file_bytes(version=4), "version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "unknown kind": (file_bytes((), (info("a", kind=999),), BODY), "'a' is of kind 999"),
    "withdrawn kind": (file_bytes((), (info("a", kind=4),), BODY), "'a' is of kind 4"),
    "split": (file_bytes((pair("split.count", Values.UINT16, b"\3\0"),)), "llama-gguf-split --merge"),
}


@pytest.mark.parametrize(("raw", "word"), UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_what_is_understood_and_not_supported_says_so(tmp_path: Path, raw: bytes, word: str) -> None:
    refused(write(tmp_path / "x.gguf", raw), word, error=Unsupported)


def test_one_of_one_files_is_no_split(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", file_bytes((pair("split.count", Values.UINT16, b"\1\0"),)))
    assert GgufFile(path).metadata == {"split.count": 1}


def test_what_is_missing_or_no_file(tmp_path: Path) -> None:
    refused(tmp_path / "x.gguf", "no such file")
    refused(tmp_path, "no regular file")
    os.mkfifo(tmp_path / "pipe.gguf")
    refused(tmp_path / "pipe.gguf", "no regular file")
    with pytest.raises(CheckpointError):
        GgufFile("a\0b")


def test_any_valid_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    raw = valid()
    for end in range(len(raw)):
        with pytest.raises(CheckpointError):
            GgufFile(write(tmp_path / "x.gguf", raw[:end]))


def valid() -> bytes:
    pairs = (
        pair("general.alignment", U32, number(32)),
        pair("tokens", ARRAY, array(STRING, 3, text("a") + text("bc") + text("Ġ"))),
        pair("nested", ARRAY, array(ARRAY, 2, array(U32, 1, number(5)) + array(Values.BOOL, 2, b"\0\1"))),
        pair("scores", ARRAY, array(Values.FLOAT32, 2, bytes(8))),
        pair("flag", Values.BOOL, b"\1"),
        pair("name", STRING, text("tiny")),
    )
    infos = (info("a", (4, 2)), info("q", (32, 2), Kind.Q4_1, 32), info("h", (3,), Kind.F16, 96))
    return file_bytes(pairs, infos, np.arange(102, dtype=np.uint8).tobytes())


def read_or_refuse(path: Path) -> None:
    """Either every tensor is read, of the shape that was promised, or the error says so; never with much memory."""
    tracemalloc.start()
    try:
        with GgufFile(path) as file:
            for name in file.names():
                try:
                    assert file.read(name).shape == file.shape(name)
                except (CheckpointError, Unsupported) as error:
                    str(error).encode()
    except (CheckpointError, Unsupported) as error:
        assert str(path) in str(error)
        str(error).encode()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20


@fuzz
@given(data=st.data())
def test_bytes_flipped_cut_or_pasted(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(valid())
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(raw)))
        end = min(len(raw), begin + data.draw(st.integers(0, 12)))
        raw[begin:end] = data.draw(st.binary(max_size=12) | st.sampled_from((b"\xff" * 8, bytes(8), array(ARRAY, 1))))
    read_or_refuse(write(tmp_path / "x.gguf", bytes(raw)))


@fuzz
@given(data=st.data())
def test_one_number_of_the_header_changed(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(valid())
    place = data.draw(st.integers(4, len(raw) - 110))
    width = data.draw(st.sampled_from((1, 4, 8)))
    raw[place : place + width] = data.draw(
        st.integers(0, 40) | st.sampled_from((2 ** (8 * width) - 1, 2 ** (8 * width - 1)))
    ).to_bytes(width, "little")
    read_or_refuse(write(tmp_path / "x.gguf", bytes(raw)))


@fuzz
@given(
    infos=st.lists(
        st.builds(
            info,
            st.sampled_from(("a", "b", "c")),
            st.lists(st.sampled_from((0, 1, 2, 32, 256, 2**40)), max_size=5).map(tuple),
            st.integers(0, 42),
            st.sampled_from((0, 32, 64, 4096, 33)),
        ),
        max_size=3,
    ),
    body=st.sampled_from((bytes(0), bytes(range(256)) * 32)),
)
def test_tensors_of_any_description(tmp_path: Path, infos: list[bytes], body: bytes) -> None:
    read_or_refuse(write(tmp_path / "x.gguf", file_bytes((), tuple(infos), body)))
