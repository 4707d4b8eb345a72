"""Variants of a case: how its operands lie in memory, and how the last part of its id is written."""

from __future__ import annotations

from collections.abc import Mapping

from turret.spi import DType, Shape

from ..case import SHORT
from ..given import View
from .naming import sizes

VIEWS: tuple[View, ...] = ("transposed", "strided", "offset", "repeated")
Views = Mapping[str, View]
"""The layout of each operand that is not contiguous, by its name."""
WHOLE: Views = {}


def rotated(*operands: str) -> list[Views]:
    """Four choices in which every operand gets every view once, beside operands that lie otherwise."""
    count = len(VIEWS)
    return [{operand: VIEWS[(first + n) % count] for n, operand in enumerate(operands)} for first in range(count)]


def variant(shape: Shape, dtype: DType = "float32", *words: str, views: Views = WHOLE) -> str:
    """`5x65-x-strided-f32`; empty words are left out."""
    laid_out = (f"{operand}-{view}" for operand, view in views.items())
    return "-".join([sizes(shape), *filter(None, words), *laid_out, SHORT[dtype]])


def of(views: Views, operand: str) -> View:
    return views.get(operand, "whole")
