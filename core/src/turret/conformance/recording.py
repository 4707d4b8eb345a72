"""Writes down every outermost call of a case as it happens, as a script that runs without the suite.

Everything is on disk before the call is made: a call that ends the process is the last line of the script.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from turret.spi import DType, Host, Packed, Storage

SCRIPT = "repro.py"
HEAD = Template('''\
"""$case on $backend, seed $seed: the calls that the conformance suite made, and what it wanted.

python $script    exits with 1 where a result is not what was wanted. versions.json tells what it was written on.
"""

import sys
from pathlib import Path

import numpy as np

from turret.registry import open_backend
from turret.spi import Packed

HERE = Path(__file__).resolve().parent
tools = open_backend(sys.argv[1] if len(sys.argv) > 1 else "$backend").tools
native = type(tools.storage.full((1,), 0.0, dtype="float32"))
said, status = "nothing is wrong here", 0
failed = []


def load(name):
    return np.load(HERE / "arrays" / f"{name}.npy")


def check(label, array, dtype, want, allowed, greatest):
    """allowed: per element; 0 wants every bit. greatest: what is beyond it may be infinite."""
    if not isinstance(array, native):
        return failed.append(f"{label}: got {type(array)}, wanted {native}")
    if tuple(array.shape) != want.shape or tools.storage.dtype_of(array) != dtype:
        got = f"{tools.storage.dtype_of(array)} {tuple(array.shape)}"
        return failed.append(f"{label}: got {got}, wanted {dtype} {want.shape}")
    got = tools.storage.to_host(array)
    with np.errstate(all="ignore"):
        wide, truth = got.astype(np.float64), want.astype(np.float64)
        alike = (got == want) & ((allowed > 0) | (np.signbit(wide) == np.signbit(truth)))
        beyond = np.isinf(wide) & (np.abs(truth) + allowed >= greatest) & (np.sign(wide) == np.sign(truth))
        near = (allowed > 0) & ((np.abs(wide - truth) <= allowed) | beyond)
        good = alike | (np.isnan(wide) & np.isnan(truth)) | near
    for at in np.argwhere(~good)[:5]:
        at = tuple(int(i) for i in at)
        failed.append(f"{label} ({dtype}): at {at} got {got[at]!r}, wanted {want[at]!r} within {allowed[at]:.3g}")


def unchanged(label, array, before):
    if tools.storage.to_host(array).tobytes() != before.tobytes():
        failed.append(f"{label} was written")


''')
TAIL = """
print("\\n".join(failed) or said)
sys.exit(1 if failed else status)
"""


class Recorder:
    """Names native arrays by identity and turns calls into lines of Python in `folder`.

    lost: why the script cannot be written, where that is so; nothing of that is raised into the case.
    """

    def __init__(
        self,
        folder: Path,
        storage: Storage[Any],
        native: type[Any],
        about: Mapping[str, object],
        versions: Mapping[str, object],
    ) -> None:
        self._storage, self._native, self._folder = storage, native, folder
        self._names: dict[int, str] = {}
        self._alive: list[Any] = []
        self._pending = ""
        self._saved_count = 0
        self.lost: OSError | None = None
        with self._writing():
            (folder / "arrays").mkdir(parents=True, exist_ok=True)
            (folder / "versions.json").write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
        self._line(HEAD.substitute(about, script=SCRIPT).rstrip("\n") + "\n\n")

    def before(self, slot: str, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """One outermost call is about to be made."""
        if slot == "storage" and method == "from_host":
            name = self._saved("a", np.asarray(arguments[0]))
            dtype = options.get("dtype") or np.asarray(arguments[0]).dtype.name
            self._pending = f'{name} = tools.storage.from_host(load("{name}"), dtype="{dtype}")'
        else:
            given = [self._written(x) for x in arguments] + [f"{key}={self._written(x)}" for key, x in options.items()]
            self._pending = f"r{len(self._alive)} = tools.{slot}.{method}({', '.join(given)})"
        self._line(self._pending)

    def after(self, result: Any) -> None:
        """The call came back."""
        name = self._pending.split(" = ", 1)[0]
        self._name(result, name)
        if result is None and "= tools.storage." not in self._pending:  # `memory` and `synchronize` may
            self._line(f'failed += ["{name} is None"] if {name} is None else []')

    def compared(self, label: str, array: Any, dtype: DType, want: Host, allowed: Host, greatest: float) -> None:
        """A result is about to be compared with its truth."""
        name, bound = self._saved("w", want), self._saved("b", np.broadcast_to(allowed, want.shape))
        wanted = f'"{dtype}", load("{name}"), load("{bound}"), {self._written(greatest)}'
        self._line(f"check({label!r}, {self._result(array)}, {wanted})")

    def untouched(self, label: str, array: Any, before: Host) -> None:
        """An input was looked at again."""
        self._line(f'unchanged({label!r}, {self._written(array)}, load("{self._saved("u", before)}"))')

    def note(self, text: str) -> None:
        """What cannot be written down as a call."""
        self._line("\n".join(f"# {line}" for line in text.splitlines()))

    def failed(self, text: str) -> None:
        """The case failed; the script says so where none of its own comparisons shows it."""
        self._line("if len(sys.argv) == 1:  # what follows is about the backend that was examined")
        self._line(f"    said, status = {f'this script cannot show it; the suite said: {text}'!r}, 1")

    def close(self) -> None:
        self._line(TAIL.rstrip("\n"))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.lost = self.lost or error

    def _line(self, text: str) -> None:
        with self._writing(), (self._folder / SCRIPT).open("a", encoding="utf-8") as script:
            script.write(text + "\n")

    def _saved(self, kind: str, host: Host) -> str:
        name = f"{kind}{self._saved_count}"
        self._saved_count += 1
        with self._writing():
            np.save(self._folder / "arrays" / f"{name}.npy", host)
        return name

    def _name(self, value: Any, name: str) -> None:
        self._alive.append(value)  # an id means one object only while it lives
        self._names[id(value)] = name
        if isinstance(value, Packed):
            for each in dataclasses.fields(value):
                self._name(getattr(value, each.name), f"{name}.{each.name}")
        elif isinstance(value, tuple | list) and not isinstance(value, self._native):
            for n, each in enumerate(value):
                self._name(each, f"{name}[{n}]")

    def _result(self, x: Any) -> str:
        """What a call gave, which may be of any type."""
        by_identity = not isinstance(x, int | float | str | None)
        return self._names.get(id(x), "") if by_identity and id(x) in self._names else self._written(x)

    def _written(self, x: Any) -> str:
        if isinstance(x, Packed | tuple | list | self._native) and (known := self._names.get(id(x))) is not None:
            return known
        if isinstance(x, self._native):  # made where nobody looked: its values have to do
            host, dtype = self._storage.to_host(x), self._storage.dtype_of(x)
            return self._placed(x, host, dtype)
        if isinstance(x, Packed):
            return f"Packed({', '.join(self._written(getattr(x, each.name)) for each in dataclasses.fields(x))})"
        if isinstance(x, tuple | list):
            inner = ", ".join(self._written(each) for each in x)
            return f"({inner},)" if inner else "()"
        if callable(x):
            self.note("a function of the suite was passed here, which this script cannot do: the next line will fail")
            return "None"
        return f'float("{x}")' if isinstance(x, float) and not math.isfinite(x) else repr(x)

    def _placed(self, array: Any, host: Host, dtype: DType) -> str:
        name = self._saved("a", host)
        self._line(f'{name} = tools.storage.from_host(load("{name}"), dtype="{dtype}")')
        self._name(array, name)
        return name
