"""Metal kernel sources as text, and the making of kernels from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx

GROUP = 256  # threads of a group


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The body of one kernel, and the names of its arrays in the order in which they are handed over."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: str


@cache
def kernel(source: Source) -> Callable[..., list[mx.array]]:
    """The kernel of a source; Metal compiles it at its first run."""
    made: Any = mx.fast.metal_kernel(
        name=source.name, input_names=list(source.inputs), output_names=list(source.outputs), source=source.body
    )
    launch: Callable[..., list[mx.array]] = made
    return launch


def block(head: str, lines: Sequence[str]) -> str:
    """`head` with `lines` in braces, one step further in."""
    return "\n".join([f"{head} {{", *(f"  {line}" for text in lines for line in text.split("\n")), "}"])
