"""How the last part of a case's id is written: sizes, words and dtype."""

from __future__ import annotations

from turret.spi import DType, Shape

from ..case import SHORT


def variant(shape: Shape, dtype: DType = "float32", *words: str) -> str:
    """`5x65-strided-f32`; empty words and "whole" are left out."""
    told = [word for word in words if word not in ("", "whole")]
    return "-".join(["x".join(map(str, shape)) or "scalar", *told, SHORT[dtype]])
