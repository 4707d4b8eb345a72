"""What mypy --strict finds in code that misuses the interface, and that it finds nothing in good code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import turret.spi

GOOD = """
from typing import Any

import numpy as np
import numpy.typing as npt

from turret.derived import DerivedSoftmax, fill
from turret.spi import A, Array, Capabilities, DType, Matmul, Softmax, Toolset
from turret.spi.array_api import Hooks, required_from

F = npt.NDArray[np.float32]


class OwnMatmul:
    def matmul(self, a: F, b: F, /, *, transpose_a: bool = False, transpose_b: bool = False) -> F:
        return a @ b

    def accumulation(self, dtype: DType, /) -> str:
        return "float32"


own: Matmul[F] = OwnMatmul()


def consumer(tools: Toolset[A], x: A) -> tuple[int, A]:
    y = tools.elementwise.add(tools.elementwise.multiply(2.0, x), 1)
    return x.shape[0], tools.reduction.sum(y, axis=(0, -1), keepdims=True)


def opened(capabilities: Capabilities[F]) -> Toolset[F]:
    return fill(capabilities)


def composed() -> Softmax[Any]:
    return DerivedSoftmax(required_from(np, hooks=Hooks(quiet=lambda: np.errstate(all="ignore"))))
"""

MISUSE = """
import numpy as np
import numpy.typing as npt

from turret.derived import fill
from turret.spi import A, Adapted, Array, Capabilities, DType, Matmul, Softmax, Toolset
from turret.spi.array_api import Hooks, required_from

F = npt.NDArray[np.float32]


def consumer(tools: Toolset[A], x: A) -> A:
    x + x  # error: operator
    x.dtype  # error: attr-defined
    tools.reduction.sum(x, -1)  # error: call-arg
    tools.storage.cast(x, "f32")  # error: arg-type
    tools.storage.full((2,), 0.0, dtype="int8")  # error: arg-type
    tools.matmul.matmul(a=x, b=x)  # error: call-arg
    tools.normalization.layer_norm(x, x, x, eps=1e-5).variance  # error: attr-defined
    tools.activation.gelu(x, form="fast")  # error: arg-type
    tools.layout.reshape(x, 4)  # error: arg-type
    tools.elementwise.add(x, "1")  # error: arg-type
    tools.softmax = tools.softmax  # error: misc
    tools.attention  # error: attr-defined
    return tools.causal_attention.attend(x, x, x, scale=1.0, offset=0)  # error: return-value


def mixed(tools: Toolset[F], x: F, y: list[float]) -> F:
    return tools.elementwise.add(x, y)  # error: arg-type


class NoOptions:
    def matmul(self, a: F, b: F, /) -> F:
        return a @ b

    def accumulation(self, dtype: DType, /) -> str:
        return "float32"


no_options: Matmul[F] = NoOptions()  # error: assignment


class Opaque:
    def softmax(self, x: F, /) -> F:
        return x

    def softmax_vjp(self, dy: F, y: F, /) -> F:
        return y

    def log_softmax(self, x: F, /) -> F:
        return x

    def log_softmax_vjp(self, dy: F, y: F, /) -> F:
        return y


exact: Softmax[F] = Opaque()
opaque: Softmax[Array] = Opaque()  # error: assignment


def undeclared(capabilities: Capabilities[A], x: A) -> A:
    return capabilities.softmax.softmax(x)  # error: union-attr


def erased(capabilities: Capabilities[F]) -> Capabilities[Array]:
    return capabilities  # error: return-value


def kept(capabilities: Capabilities[F]) -> Toolset[npt.NDArray[np.int32]]:
    return fill(capabilities)  # error: arg-type


def half_an_update(x: F) -> Adapted[F]:
    return Adapted((x,), (x,), (x,), x)  # error: call-arg


required_from(np, erf=np.tanh)  # error: call-arg
Hooks(synchronise=print)  # error: call-arg
Hooks().erf = np.tanh  # error: misc
"""

SOURCES = Path(turret.spi.__file__).parents[2]
REPORT = re.compile(r"^(?P<file>\w+)\.py:(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]$", re.MULTILINE)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> dict[str, dict[int, set[str]]]:
    folder = tmp_path_factory.mktemp("typing")
    sources = {"good": GOOD, "misuse": MISUSE}
    for name, text in sources.items():
        (folder / f"{name}.py").write_text(text)
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("mypy")
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file=",
            f"--cache-dir={cache}",
            *map("{}.py".format, sources),
        ],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    made: dict[str, dict[int, set[str]]] = {name: {} for name in sources}
    for match in REPORT.finditer(run.stdout):
        made[match["file"]].setdefault(int(match["line"]), set()).add(match["code"])
    return made


@pytest.mark.slow
def test_every_misuse_is_an_error_and_nothing_else_is(found: dict[str, dict[int, set[str]]]) -> None:
    wanted = {
        number: set(line.split("# error: ")[1].split(", "))
        for number, line in enumerate(MISUSE.splitlines(), start=1)
        if "# error: " in line
    }
    assert len(wanted) == 23
    assert found["misuse"] == wanted


@pytest.mark.slow
def test_good_use_is_clean(found: dict[str, dict[int, set[str]]]) -> None:
    assert found["good"] == {}
