"""Compiles every kernel of turret-cuda for every architecture, and records what each one takes.

python scripts/cuda_kernels.py            compiles, writes docs/reference/cuda_kernels.json and the page made of it
python scripts/cuda_kernels.py --check    compiles, writes nothing; fails where a kernel does not compile, the compiler
                                          warns, or the record says something else
It needs NVRTC, and neither a driver nor a GPU. What build/cuda_kernels has is not compiled again, unless --fresh.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import struct
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import generate_reference
from reference.cuda_kernels import ARCHITECTURES, FIELDS, RECORD, Files, Record
from turret_cuda.kernels import source

BUILT = Path(__file__).resolve().parent.parent / "build" / "cuda_kernels"
MOST_SHOWN = 12
VERBOSE = "--ptxas-options=-v"
FUNCTION = re.compile(
    r"Function properties for (?P<name>\S+)\n\D*(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r"(?:\nptxas info\s*: Used (?P<registers>\d+) registers(?P<rest>.*))?"
)
SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One file for one architecture: a row of FIELDS for each kernel and each function that was not inlined."""

    rows: dict[str, list[int]]
    problems: list[str]


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 where a kernel does not compile or, with `--check`, the record is not of this code."""
    parser = argparse.ArgumentParser(description="Compile every CUDA kernel and record registers, memory and spills.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the record says something else")
    parser.add_argument("--fresh", action="store_true", help="compile also what build/cuda_kernels has")
    options = parser.parse_args(arguments)
    now, problems = compile_all(fresh=options.fresh)
    if options.check:
        problems += differences(read(), now)
    elif not problems:
        RECORD.write_text(written(now), encoding="utf-8")
        return generate_reference.main(["cuda_kernels"])
    for problem in problems[:MOST_SHOWN]:
        print(problem, file=sys.stderr)
    if len(problems) > MOST_SHOWN:
        print(f"and {len(problems) - MOST_SHOWN} more", file=sys.stderr)
    return 1 if problems else 0


def compile_all(*, fresh: bool = False) -> tuple[Record, list[str]]:
    """The record of the code as it is, and what the compiler has to say."""
    files: Files = {name: {} for name in source.names()}
    # The largest first: a long one at the end would keep one process busy and the others waiting.
    units = sorted(
        ((name, arch) for name in files for arch in ARCHITECTURES), key=lambda unit: -len(source.text(unit[0]))
    )
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        made = dict(zip(units, pool.map(_unit, units, [fresh] * len(units)), strict=True))
    for name in files:
        compiled = [made[name, arch].rows for arch in ARCHITECTURES]
        known = sorted({kernel for rows in compiled for kernel in rows})
        files[name] = {kernel: [rows.get(kernel, []) for rows in compiled] for kernel in known}
    record = Record(nvrtc=_version(), options=list(source.OPTIONS), architectures=list(ARCHITECTURES), files=files)
    return record, [problem for unit in sorted(made) for problem in made[unit].problems]


def measure(code: str, name: str, arch: str, options: tuple[str, ...]) -> Compiled:
    """Compiles one text. What does not compile, and what the compiler warns of, is told and not raised."""
    from cupy_backends.cuda.libs import nvrtc

    program = nvrtc.createProgram(code, f"{name}.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*options, f"--gpu-architecture={arch}", VERBOSE))
        log, cubin = nvrtc.getProgramLog(program), nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError:
        return Compiled(rows={}, problems=[f"{name}.cu for {arch}: {nvrtc.getProgramLog(program).strip()}"])
    finally:
        nvrtc.destroyProgram(program)
    code_bytes = {section.removeprefix(".text."): size for section, size in sections(cubin) if section[:6] == ".text."}
    rows = {}
    for found in FUNCTION.finditer(log):
        shared = SHARED.search(found["rest"] or "")
        spilled = int(found["stores"]) + int(found["loads"])
        kernel = found["name"]
        rows[kernel] = [
            *(int(found["registers"] or 0), int(found["stack"]), spilled),
            *(int(shared[1]) if shared else 0, code_bytes.get(kernel, 0)),
        ]
    warnings = [f"{name}.cu for {arch}: {line.strip()}" for line in log.splitlines() if "warning" in line]
    return Compiled(rows=rows, problems=warnings)


def sections(elf: bytes) -> Iterator[tuple[str, int]]:
    """Name and size of each section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    width, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + each * width) for each in range(count)]
    for header in headers:
        start = headers[names][4] + header[0]
        yield elf[start : elf.index(b"\0", start)].decode(), header[5]


def differences(recorded: Record | None, now: Record) -> list[str]:
    """What the record says otherwise, a line each; more spills than recorded come first."""
    again = "run python scripts/cuda_kernels.py"
    if recorded is None:
        return [f"{RECORD.name} is not there; {again}"]
    heads = {key: (getattr(recorded, key), getattr(now, key)) for key in ("nvrtc", "options", "architectures")}
    old = [
        f"the record is of {key} {was}, here is {is_now}; {again}"
        for key, (was, is_now) in heads.items()
        if was != is_now
    ]
    if old:
        return old
    spills, others = [], []
    for name in sorted(recorded.files.keys() | now.files.keys()):
        was, here = recorded.files.get(name, {}), now.files.get(name, {})
        for kernel in sorted(was.keys() | here.keys()):
            if was.get(kernel) == here.get(kernel):
                continue
            before, after = _spilled(was.get(kernel, [])), _spilled(here.get(kernel, []))
            if after > before:
                spills.append(f"{name}.cu: {kernel} spills {after} bytes, recorded are {before}")
            else:
                what = (
                    "is not recorded"
                    if kernel not in was
                    else "is gone"
                    if kernel not in here
                    else "takes other resources"
                )
                others.append(f"{name}.cu: {kernel} {what}; {again}")
    return spills + others


def read() -> Record | None:
    """The stored record."""
    return Record(**json.loads(RECORD.read_text(encoding="utf-8"))) if RECORD.is_file() else None


def written(record: Record) -> str:
    """JSON with one kernel a line."""
    head = {key: value for key, value in asdict(record).items() if key != "files"}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    files = []
    for name, kernels in record.files.items():
        rows = ",\n".join(f"   {json.dumps(kernel)}: {json.dumps(found)}" for kernel, found in kernels.items())
        files.append(f"  {json.dumps(name)}: {{\n{rows}\n  }}")
    return "{\n" + "\n".join(lines) + '\n "files": {\n' + ",\n".join(files) + "\n }\n}\n"


def _spilled(found: list[list[int]]) -> int:
    return max((row[FIELDS.index("spilled")] for row in found if row), default=0)


def _unit(unit: tuple[str, str], fresh: bool) -> Compiled:
    name, arch = unit
    code = source.text(name)
    inputs = (code, arch, *source.OPTIONS, _version(), Path(__file__).read_text(encoding="utf-8"))
    kept = BUILT / f"{name}-{arch}-{hashlib.sha256(repr(inputs).encode()).hexdigest()[:24]}.json"
    if kept.is_file() and not fresh:
        return Compiled(**json.loads(kept.read_text(encoding="utf-8")))
    compiled = measure(code, name, arch, source.OPTIONS)
    BUILT.mkdir(parents=True, exist_ok=True)
    for old in BUILT.glob(f"{name}-{arch}-*.json"):
        old.unlink(missing_ok=True)
    # Written beside and moved: a run that is broken off leaves no half file to be read.
    beside = kept.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(asdict(compiled)), encoding="utf-8")
    beside.replace(kept)
    return compiled


def _version() -> str:
    # Here and not above: a process of the tests has a stand-in of that name, and looks at records only.
    from cupy_backends.cuda.libs import nvrtc

    major, minor = nvrtc.getVersion()
    return f"{major}.{minor}"


if __name__ == "__main__":
    raise SystemExit(main())
