"""Cases: what is asked of a backend, and how a case about one call is written down as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from turret.spi import DType

from .given import Call, Draw

if TYPE_CHECKING:
    from .bench import Bench

Body = Callable[["Bench"], None]
Build = Callable[[Draw], Call]
Truth = Callable[..., Any]
Kind = Literal["forward", "vjp", "model", "door", "lifecycle", "purity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question with a yes or no.

    id: capability/check/variant, the same for every backend and at both doors. kind: what sort of promise it is about;
    profiles choose by capability and kind. numeric: the body is one call beside its oracle. since: the SPI version that
    brought the case; older plugins get it as advice.
    """

    id: str
    body: Body
    kind: Kind
    numeric: bool = False
    since: tuple[int, int] = (1, 0)

    @property
    def capability(self) -> str:
        return self.id.split("/", 1)[0]


def call_case(
    name: str,
    build: Build,
    truth: Truth,
    *,
    kind: Kind = "forward",
    returns: Sequence[DType] | None = None,
    exact: bool = False,
    may_alias: bool = False,
    since: tuple[int, int] = (1, 0),
) -> Case:
    """A case about one call of one method, compared with its oracle.

    build: draws the inputs. truth: the oracle, called with the exact values in float64 (integers and booleans as they
    are). returns: dtypes of the results; default: floats come in the dtype of the first float argument, booleans as
    bool, integers as int32. exact: every bit must agree. may_alias: results may share memory with inputs.
    """

    def body(bench: Bench) -> None:
        call = build(bench.draw)
        bench.check(call, truth, returns=returns, exact=exact, may_alias=may_alias)

    return Case(id=name, body=body, kind=kind, numeric=True, since=since)
