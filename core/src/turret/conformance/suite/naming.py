"""What an id of a required slot's case says of one operand."""

from __future__ import annotations

from turret.spi import DType, Shape

from ..case import SHORT
from ..given import View


def sizes(shape: Shape) -> str:
    """`5x65`; rank 0 is `scalar`."""
    return "x".join(map(str, shape)) or "scalar"


def variant(shape: Shape, dtype: DType, *views: View) -> str:
    """`5x65-strided-f32`: views are named unless all are whole."""
    shown = views if any(view != "whole" for view in views) else ()
    return "-".join((sizes(shape), *shown, SHORT[dtype]))
