"""Whether a parsed JSON document is what a dataclass of the schema describes."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union


def problems(document: object, wanted: Any, where: str = "") -> Iterator[str]:
    """What is wrong, one line each, with the path to it; a float takes whole numbers, and no number is NaN or infinite.

    wanted: a dataclass, or any type that the schema's annotations are made of.
    """
    here, origin = where or "the document", typing.get_origin(wanted)
    if is_dataclass(wanted):
        yield from _object(document, wanted, where)
    elif origin is Literal:
        if document not in typing.get_args(wanted) or isinstance(document, bool):
            yield f"{here} is {document!r}; wanted one of {', '.join(map(repr, typing.get_args(wanted)))}"
    elif origin in (Union, types.UnionType):
        found = [list(problems(document, each, where)) for each in typing.get_args(wanted) if each is not type(None)]
        if document is not None and all(found):
            yield from min(found, key=len)
    elif origin is list:
        if not isinstance(document, list):
            yield f"{here} is {_kind(document)}; wanted a list"
        else:
            for number, each in enumerate(document):
                yield from problems(each, typing.get_args(wanted)[0], f"{where}[{number}]")
    elif origin is dict:
        if not isinstance(document, dict):
            yield f"{here} is {_kind(document)}; wanted an object"
        else:
            for key, each in document.items():
                yield from problems(each, typing.get_args(wanted)[1], f"{where}.{key}")
    else:
        yield from _scalar(document, wanted, here)


def _object(document: object, wanted: Any, where: str) -> Iterator[str]:
    if not isinstance(document, dict):
        yield f"{where or 'the document'} is {_kind(document)}; wanted an object"
        return
    hints = typing.get_type_hints(wanted)
    names = [each.name for each in fields(wanted)]
    dot = f"{where}." if where else ""
    yield from (f"{dot}{name} is missing" for name in names if name not in document)
    yield from (f"{dot}{name} is not in the schema" for name in document if name not in names)
    for name in names:
        if name in document:
            yield from problems(document[name], hints[name], f"{dot}{name}")


def _scalar(document: object, wanted: type, here: str) -> Iterator[str]:
    takes = (int, float) if wanted is float else (wanted,)
    if not isinstance(document, takes) or (isinstance(document, bool) and wanted is not bool):
        yield f"{here} is {_kind(document)}; wanted {wanted.__name__}"
    elif isinstance(document, float) and not abs(document) < float("inf"):
        yield f"{here} is {document}; wanted a number"


def _kind(document: object) -> str:
    return "null" if document is None else f"{type(document).__name__} {document!r:.40}"
