"""docs/reference/cuda_kernels.md: what each CUDA kernel takes of a GPU, from the stored record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

RECORD = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cuda_kernels.json"
ARCHITECTURES = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
FIELDS = ("registers", "stack", "spilled", "shared", "code")
VARIANT = re.compile(r"(?P<stem>\w+?)_(?P<variant>f32|f64|f16|bf16|i32|i64|u8|b8|[1248])")

# File, kernel, architecture, field.
Files: TypeAlias = dict[str, dict[str, list[list[int]]]]

HEAD = """\
# CUDA kernels

Every kernel of `turret-cuda`, compiled by NVRTC {nvrtc} for {architectures}.
No GPU is needed for that, and none of this says how fast a kernel is. `python scripts/cuda_kernels.py` compiles them
again and writes this page and `cuda_kernels.json` beside it, where each architecture has its own numbers;
`make kernels` fails where they differ.
"""
COLUMNS = """
Below, every number is the largest over the architectures. Registers are those of a thread, for each dtype or number of
bytes that the kernel is made for; shared are bytes of a block, stack bytes of a thread; spilled are the bytes of those
instructions that put registers on the stack and fetch them back; code is the bytes of the longest variant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was compiled with what, and for each kernel a row of FIELDS for each architecture."""

    nvrtc: str
    options: list[str]
    architectures: list[str]
    files: Files


def page() -> str:
    """The whole page: totals of the architectures, then a table for each file."""
    record = Record(**json.loads(RECORD.read_text(encoding="utf-8")))
    parts = [HEAD.format(nvrtc=record.nvrtc, architectures=", ".join(record.architectures)), *_totals(record), COLUMNS]
    for name, kernels in record.files.items():
        parts += [f"\n## {name}.cu\n", *_table(kernels)]
    return "\n".join(parts) + "\n"


def _totals(record: Record) -> Iterator[str]:
    yield "| architecture | kernels | most registers | spilled bytes | most shared bytes | bytes of code |"
    yield "|---|--:|---|--:|--:|--:|"
    for place, arch in enumerate(record.architectures):
        rows = {
            kernel: dict(zip(FIELDS, found[place], strict=True))
            for kernels in record.files.values()
            for kernel, found in kernels.items()
            if found[place]
        }
        most = max(rows, key=lambda kernel: rows[kernel]["registers"])
        cells = (
            f"`{arch}`",
            str(sum(row["registers"] > 0 for row in rows.values())),
            f"{rows[most]['registers']} (`{most}`)",
            f"{sum(row['spilled'] for row in rows.values()):,}",
            f"{max(row['shared'] for row in rows.values()):,}",
            f"{sum(row['code'] for row in rows.values()):,}",
        )
        yield f"| {' | '.join(cells)} |"


def _table(kernels: dict[str, list[list[int]]]) -> Iterator[str]:
    yield "| kernel | registers | shared | stack | spilled | code |"
    yield "|---|---|--:|--:|--:|--:|"
    stems: dict[str, dict[str, dict[str, int]]] = {}
    for kernel, found in kernels.items():
        most = {field: max(row[place] for row in found if row) for place, field in enumerate(FIELDS)}
        # A function that was not inlined has no registers of its own; it is told of where it spills.
        if most["registers"] or most["spilled"]:
            split = VARIANT.fullmatch(kernel)
            stem, variant = (split["stem"], split["variant"]) if split else (kernel, "")
            stems.setdefault(stem, {})[variant] = most
    for stem, variants in stems.items():
        registers = ", ".join(f"{variant} {most['registers']}".strip() for variant, most in variants.items())
        rest = (
            f"{max(most[field] for most in variants.values()):,}" for field in ("shared", "stack", "spilled", "code")
        )
        yield f"| `{stem}` | {registers} | {' | '.join(rest)} |"
