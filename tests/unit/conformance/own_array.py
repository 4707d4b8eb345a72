"""A right backend with an array class of its own, which writes in place; also the text of tiny distributions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy

from turret.spi import REQUIRED_SLOTS, Capabilities, Required
from turret.spi.array_api import Hooks, required_from

REPLACED: dict[tuple[str, str], Callable[..., Any]] = {}


def replaces(slot: str, method: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function answers for it instead: (the right one, *arguments, **options)."""

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        REPLACED[slot, method] = function
        return function

    return keep


class Own(numpy.ndarray):
    pass


def own(x: Any) -> Any:
    return x.view(Own) if type(x) is numpy.ndarray else x


def set_rows(base: Any, ids: Any, rows: Any, donate: bool) -> Any:
    base = base if donate and base.flags.writeable else base.copy()
    base[ids] = rows
    return base


class Slot:
    def __init__(self, name: str, slot: Any) -> None:
        self.name, self.slot = name, slot

    def __getattr__(self, method: str) -> Any:
        function, name = getattr(self.slot, method), (self.name, method)

        def right(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            return result if method == "to_host" else own(result)

        def call(*arguments: Any, **options: Any) -> Any:
            wrong = REPLACED.get(name)
            return right(*arguments, **options) if wrong is None else wrong(right, *arguments, **options)

        return call


class Opened:
    def __init__(self) -> None:
        hooks = Hooks(quiet=lambda: numpy.errstate(all="ignore"), set_rows=set_rows)
        required = required_from(numpy, name="own", hooks=hooks)
        slots: dict[str, Any] = {name: Slot(name, getattr(required, name)) for name in REQUIRED_SLOTS}
        self.table: Capabilities[Any] = Capabilities(required=Required(**slots))

    def capabilities(self) -> Capabilities[Any]:
        return self.table

    def close(self) -> None:
        pass


def open_device(device: str) -> Opened:
    return Opened()


def with_slots(opened: Opened, **slots: Any) -> Opened:
    """Native optional slots beside the required ones."""
    opened.table = dataclasses.replace(opened.table, **slots)
    return opened
