"""How the last part of a case's id is written: sizes, words, layouts, dtype."""

from __future__ import annotations

from turret.spi import DType, Shape

from .views import WHOLE, Views

SHORT: dict[DType, str] = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float64": "f64",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "bool": "b",
}


def sizes(shape: Shape) -> str:
    """`5x65`; rank 0 is `scalar`."""
    return "x".join(map(str, shape)) or "scalar"


def variant(shape: Shape, dtype: DType = "float32", *words: str, views: Views = WHOLE) -> str:
    """`5x65-masked-x-strided-f32`: empty words are left out, and so are whole layouts, which need no mention."""
    named = (word for word in words if word not in ("", "whole"))
    laid_out = (f"{operand}-{view}" for operand, view in views.items())
    return "-".join([sizes(shape), *named, *laid_out, SHORT[dtype]])
