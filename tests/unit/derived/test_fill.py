from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from turret.derived import DerivedAdam, DerivedSoftmax, fill
from turret.spi import OPTIONAL_SLOTS, REQUIRED_SLOTS, Capabilities
from turret.spi.array_api import required_from


class NativeSoftmax(DerivedSoftmax[Any]):
    pass


def test_what_a_backend_lacks_is_composed() -> None:
    required: Any = required_from(np)
    tools = fill(Capabilities(required=required))
    assert tools.native == frozenset()
    assert all(getattr(tools, slot) is getattr(required, slot) for slot in REQUIRED_SLOTS)
    for slot in OPTIONAL_SLOTS:
        word = "".join(part.title() for part in slot.split("_"))
        assert type(getattr(tools, slot)).__name__ == f"Derived{word}"


def test_what_a_backend_brings_is_kept_and_named() -> None:
    required: Any = required_from(np)
    softmax = NativeSoftmax(required)
    tools = fill(Capabilities(required=required, softmax=softmax))
    assert tools.softmax is softmax and tools.native == {"softmax"}
    assert isinstance(tools.adam, DerivedAdam)


def test_a_full_table_needs_no_composition() -> None:
    required: Any = required_from(np)
    complete = fill(Capabilities(required=required))
    brought: Any = {slot: getattr(complete, slot) for slot in OPTIONAL_SLOTS}

    class Untouchable:
        """Fails where a derived slot would read it."""

    tools = fill(Capabilities(required=replace(required, storage=Untouchable(), elementwise=Untouchable()), **brought))
    assert tools.native == set(OPTIONAL_SLOTS)


def test_derived_compile_runs_the_function_itself() -> None:
    tools = fill(Capabilities(required=required_from(np)))

    def double(x: Any) -> tuple[Any, ...]:
        return (tools.elementwise.add(x, x),)

    (out,) = tools.compile.compile(double, donate=(0,))(np.arange(3, dtype=np.float32))
    assert out.tolist() == [0, 2, 4]
