"""docs/reference/device_check.md: the file that `scripts/device_check.sh` writes, field by field, from its schema."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from device_check import schema
from device_check.check import LIMIT_S, LIMITS_S

from .source import docstring

CLASSES = (
    schema.DeviceCheck,
    schema.Part,
    schema.Facts,
    schema.Conformance,
    schema.CaseFailure,
    schema.Training,
    schema.TrainingRun,
    schema.Benchmarks,
    schema.Ceilings,
    schema.KernelTiming,
    schema.StepTiming,
    schema.Contender,
    schema.Sanitizer,
    schema.SanitizerRun,
)

HEAD = """\
# The check on a GPU

```text
scripts/device_check.sh [OUT] [--rehearse] [--spec SPEC] [--only PART] [--jobs N] [--every N] [--limit-s S]
```

On a machine with an NVIDIA GPU it says within {minutes:.0f} minutes whether turret is right there and how fast it is,
in one JSON file, `device_check.json` unless `OUT` names another. Progress goes to stderr. It installs nothing and uses
no network: a Python 3.11 or newer with what turret's distributions require is enough, as they themselves are taken from
the checkout where they are not installed. `PYTHON=...` chooses the interpreter, else it is `.venv/bin/python` or
`python3`.

Exit status: 0 everything passed; 1 something did not; 2 no usable GPU or a wrong command line, and no file is written;
130 and 143 after SIGINT and SIGTERM, with what was found until then.

`--rehearse` runs the same on the emulator of the tests, with small sizes and one of many conformance cases: `emulated`
is true then, times mean nothing, and no share or ratio is computed. `left_out` says what else was left out.

## Parts

Each part is a process of its own, so that a crash or a hang on the device ends one part and not the check. These are
the parts in their order, with what each may take. The whole may take {limit:.0f} s; a part for which no time is left is
`skipped`.

| part | seconds | what it does |
|---|--:|---|
"""

ABOUT = {
    "facts": "opens the device, loads every kernel, asks for versions",
    "training": "trains both model families, captured and not, beside the cpu backend from the same seed",
    "conformance": "runs the conformance suite's profile `full` in several processes",
    "benchmarks": "measures ceilings, kernels against them, and training steps beside PyTorch, eager and compiled",
    "sanitizer": "runs one small case of every check of every native slot under compute-sanitizer, tool by tool",
}

BETWEEN = """
A loss is stored to 6e-8 of itself, and sums in another order move a forward pass by a few of those; the first step's
difference has a bound of that size. Later ones grow: Adam divides each gradient by its own size, so that rounding moves
small gradients as far as large ones. Their bound is a hundred times what right backends were seen to differ by.

Kernels are timed in batches that are ended by waiting for the device, after warming up, at sizes that no cache holds.
compute-sanitizer sees arrays as the memory pool hands them out, in pieces of 512 bytes: a read that ends inside the
last piece of its array is seen by the emulator's red zones and not by memcheck.

## The file

Types are those of Python's annotations: `float` takes whole numbers too, `None` is `null`, and no number is NaN or
infinite. Every field is there, whatever became of its part.
"""


def page() -> str:
    """The whole page."""
    rows = [f"| `{part}` | {seconds:.0f} | {ABOUT[part]} |\n" for part, seconds in LIMITS_S.items()]
    head = HEAD.format(minutes=LIMIT_S / 60, limit=LIMIT_S)
    return head + "".join(rows) + BETWEEN + "".join(map(_section, CLASSES))


def described(cls: type) -> Iterator[tuple[str, str, str]]:
    """(name, type, meaning) of every field the class itself states; the meaning is "" where it is not said."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            said = after.value if isinstance(after, ast.Expr) else None
            text = said.value if isinstance(said, ast.Constant) and isinstance(said.value, str) else ""
            yield each.target.id, ast.unparse(each.annotation), " ".join(text.split())


def _section(cls: type) -> str:
    also = " Also has the fields of `Part`." if schema.Part in cls.__bases__ else ""
    lines = [f"\n### {cls.__name__}\n", f"{docstring(cls)}{also}\n", "| field | type | meaning |", "|---|---|---|"]
    for name, kind, meaning in described(cls):
        shown = kind.replace("|", "\\|")
        lines.append(f"| `{name}` | `{shown}` | {meaning} |")
    return "\n".join(lines) + "\n"
