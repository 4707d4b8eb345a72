"""Runs the text of a Metal kernel as Python: what stands in the source, thread by thread, without a GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from turret_metal.kernels.source import Source

REPLACED = (
    (r"(?:uint|size_t|int|float|bool|T) (\w+) = (.*);", r"\1 = \2"),
    (r"for \((?:size_t|int) (\w+) = (.*); \1 < (.*); \+\+\1\) \{", r"for \1 in range(\2, \3):"),
    (r"for \((?:size_t|int) (\w+) = (.*); \1 < (.*); \1 \+= (.*)\) \{", r"for \1 in range(\2, \3, \4):"),
    (r"(.*) = (.*) \? (.*) : (.*);", r"\1 = (\3 if \2 else \4)"),
    (r"!metal::isfinite", r"not isfinite"),
    (r"metal::precise::sqrt", r"sqrt"),
    (r"\|\|", r"or"),
    (r"\bfalse\b", r"False"),
    (r"thread_position_in_grid\.(\w)", r"here_\1"),
    (r"threads_per_grid\.(\w)", r"grid_\1"),
    (r";$", r""),
)


def translated(body: str) -> str:
    """The body as Python statements. Loops may hold a declaration too, so that each rule is applied on its own."""
    lines = []
    for line in body.split("\n"):
        indent, text = re.match(r"( *)(.*)", line).groups()  # type: ignore[union-attr]  # matches any line
        if text == "}":
            continue
        rules = REPLACED[1:] if text.startswith("for ") else REPLACED
        for pattern, replacement in rules:
            text = re.sub(pattern, replacement, text)
        lines.append(indent + text)
    return "\n".join(lines)


def kernel(source: Source) -> Any:
    """What `turret_metal.kernels.source.kernel` gives, computed by Python."""
    code = compile(translated(source.body), source.name, "exec")

    def launch(
        *, inputs: Sequence[mx.array], template: Any, grid: Any, threadgroup: Any, output_shapes: Any,
        output_dtypes: Any, stream: Any,
    ) -> list[mx.array]:  # fmt: skip
        assert len(inputs) == len(source.inputs)
        assert all(0 < t <= 1024 for t in threadgroup)
        made = [np.zeros(int(np.prod(s)), _numpy(d)) for s, d in zip(output_shapes, output_dtypes, strict=True)]
        hosts = {name: np.array(x).reshape(-1) for name, x in zip(source.inputs, inputs, strict=True)}
        shapes = {f"{name}_shape": x.shape for name, x in zip(source.inputs, inputs, strict=True)}
        words: dict[str, Any] = {name: _numpy(dtype) for name, dtype in template}
        words |= {"float": np.float32, "isfinite": np.isfinite, "sqrt": np.sqrt}
        with np.errstate(all="ignore"):
            for y in range(grid[1]):
                for x in range(grid[0]):
                    place = {"here_x": x, "here_y": y, "grid_x": grid[0], "grid_y": grid[1]}
                    outs = dict(zip(source.outputs, made, strict=True))
                    exec(code, {**words, **hosts, **shapes, **outs, **place})
        return [mx.array(a.reshape(s)) for a, s in zip(made, output_shapes, strict=True)]

    return launch


def _numpy(dtype: mx.Dtype) -> Any:
    return {mx.float32: np.float32, mx.float16: np.float16, mx.int32: np.int32, mx.bool_: np.bool_}[dtype]
