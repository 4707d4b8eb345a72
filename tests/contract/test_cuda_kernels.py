"""The record of what CUDA kernels take names every kernel, and the script that makes it measures right."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from turret_cuda.kernels import source

KERNEL = re.compile(r'extern "C" __global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\(')
SHARED = """
extern "C" __global__ void reversed(float* x) {{
  __shared__ float kept[{words}];
  kept[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = kept[{words} - 1 - threadIdx.x];
}}
"""
# More values at once than there are registers, and an array of which only the device knows what it reads.
CROWDED = """
extern "C" __global__ void crowded(double* x) {
  double kept[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) kept[i] = x[i * 32 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) x[(95 - i) * 32 + threadIdx.x] = sqrt(kept[i]) + kept[(i * 7) % 96];
}
extern "C" __global__ void looked_up(int* x) {
  int kept[50];
  for (int i = 0; i < 50; ++i) kept[i] = 0;
  for (int i = 0; i < 1000; ++i) kept[x[i]] += i;
  x[threadIdx.x] = kept[x[threadIdx.x]];
}
"""


@pytest.fixture
def script(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/cuda_kernels.py."""
    monkeypatch.syspath_prepend(str(root / "scripts"))
    return import_module("cuda_kernels")


@pytest.fixture
def page(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/reference/cuda_kernels.py."""
    monkeypatch.syspath_prepend(str(root / "scripts"))
    return import_module("reference.cuda_kernels")


def measured(root: Path, code: str, name: str, *asked: object) -> tuple[dict[str, dict[str, int]], list[str]]:
    """What the script measures, and what the compiler says, in a process where no stand-in hides CuPy itself."""
    call = f"measure({code!r}, {name!r}, *{asked!r})"
    program = f"import json; from cuda_kernels import *; made = {call}; print(json.dumps([made.rows, made.problems]))"
    environ = {**os.environ, "PYTHONPATH": str(root / "scripts")}
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=True)
    rows, problems = json.loads(done.stdout)
    fields = import_module("reference.cuda_kernels").FIELDS
    return {kernel: dict(zip(fields, row, strict=True)) for kernel, row in rows.items()}, problems


def kernels(name: str) -> set[str]:
    """The kernels of a file, as the C preprocessor leaves them."""
    command = ["g++", "-E", "-P", "-x", "c++", "-D__CUDA_ARCH__=900", "-D__CUDACC_RTC__", "-"]
    done = subprocess.run(command, input=source.text(name), capture_output=True, text=True, check=True)
    return set(KERNEL.findall(done.stdout))


def test_the_record_names_every_kernel_of_every_file(script: Any) -> None:
    recorded = script.read()
    assert recorded.architectures == ["sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]
    assert set(recorded.files) == set(source.names())
    for name, found in recorded.files.items():
        made = kernels(name)
        assert made, name
        assert {kernel for kernel, rows in found.items() if max(row[0] for row in rows)} == made, name


def test_every_kernel_is_recorded_for_every_architecture_with_registers_and_code(script: Any) -> None:
    for name, found in script.read().files.items():
        for kernel in kernels(name):
            rows = [dict(zip(script.FIELDS, row, strict=True)) for row in found[kernel]]
            assert len(rows) == len(script.ARCHITECTURES)
            assert all(0 < row["registers"] <= 255 and row["code"] > 0 for row in rows), f"{name}: {kernel}"


def test_the_page_tells_every_kernel(root: Path, script: Any) -> None:
    text = (root / "docs/reference/cuda_kernels.md").read_text(encoding="utf-8")
    sections = {part.partition(".cu\n")[0]: part for part in text.split("\n## ")[1:]}
    assert sorted(sections) == sorted(source.names())
    for name, section in sections.items():
        rows = {line.split("`")[1]: line for line in section.splitlines() if line.startswith("| `")}
        for kernel in kernels(name):
            stem, _, variant = kernel.rpartition("_")
            assert kernel in rows or f"{variant} " in rows[stem], kernel


@pytest.mark.parametrize("words", [32, 200])
def test_shared_memory_is_what_the_source_says(root: Path, page: Any, words: int) -> None:
    rows, problems = measured(root, SHARED.format(words=words), "reversed", "sm_90", ())
    assert problems == []
    (found,) = rows.values()
    assert (found["shared"], found["stack"], found["spilled"]) == (4 * words, 0, 0)
    assert 0 < found["registers"] < 32
    assert found["code"] % 16 == 0 and found["code"] > 0, "instructions of this architecture have 16 bytes"


def test_spills_are_told_from_arrays_on_the_stack(root: Path, page: Any) -> None:
    found, _ = measured(root, CROWDED, "crowded", "sm_90", ("--maxrregcount=64",))
    assert found["crowded"]["registers"] <= 64
    assert found["crowded"]["spilled"] >= 2 * 8 * (96 - 32), "each value that has no room is written and read"
    assert found["looked_up"]["stack"] >= 4 * 50
    assert found["looked_up"]["spilled"] == 0


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ('extern "C" __global__ void broken(float* x) { x[0] = y; }', "undefined"),
        ('extern "C" __global__ void wary(float* x) { int unused; x[0] = 1; }', "never referenced"),
    ],
)
def test_what_does_not_compile_or_warns_is_told_with_file_and_architecture(
    root: Path, page: Any, code: str, said: str
) -> None:
    _, problems = measured(root, code, "made_up", "sm_80", ())
    assert problems and problems[0].startswith("made_up.cu for sm_80: ")
    assert said in problems[0]


def test_a_record_of_this_code_has_no_differences(script: Any) -> None:
    assert script.differences(script.read(), script.read()) == []


def test_differences_are_named_and_more_spills_come_first(script: Any, page: Any) -> None:
    def record(**rows: list[int]) -> Any:
        files = {"one": {kernel: [row] * 6 for kernel, row in rows.items()}}
        return page.Record(nvrtc="13.5", options=[], architectures=[], files=files)

    was = record(gone=[9, 0, 0, 0, 64], less=[9, 0, 16, 0, 64], more=[9, 0, 16, 0, 64], same=[9, 0, 0, 0, 64])
    now = record(less=[9, 0, 0, 0, 64], more=[9, 0, 24, 0, 64], new=[9, 0, 0, 0, 64], same=[9, 0, 0, 0, 64])
    again = "run python scripts/cuda_kernels.py"
    assert script.differences(was, now) == [
        "one.cu: more spills 24 bytes, recorded are 16",
        f"one.cu: gone is gone; {again}",
        f"one.cu: less takes other resources; {again}",
        f"one.cu: new is not recorded; {again}",
    ]
    assert script.differences(None, now) == [f"cuda_kernels.json is not there; {again}"]
    (other,) = script.differences(replace(was, nvrtc="12.9"), now)
    assert other == f"the record is of nvrtc 12.9, here is 13.5; {again}"


def test_a_record_is_read_as_it_was_written(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = script.read()
    monkeypatch.setattr(script, "RECORD", tmp_path / "record.json")
    assert script.read() is None
    script.RECORD.write_text(script.written(recorded), encoding="utf-8")
    assert script.read() == recorded
