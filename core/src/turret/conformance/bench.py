"""The bench: what a case has in its hands while it examines a backend."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from turret.spi import FLOATS, HALVES, DType, Host, Packed, host_dtype

from .given import Call, Draw, Given, Slope
from .subject import Subject
from .tolerances import FORMATS, compare
from .tracked import Tracked, allowance, value_of

STEP = 1e-6
"""Of a centred difference, relative to the size of the point."""
DIFFERENCE = 2e-4
"""What centred differences may be off, relative to the lengths of gradient and direction."""
ROUNDED = 1e-12
"""What rounding in float64 leaves of the function itself, relative to its terms; the step divides it."""
ALIAS_CHECK_LIMIT = 1 << 16
WRITTEN = "was written; no input may change unless it was donated"


class Mismatch(AssertionError):
    """The backend broke a promise. The text says which, on what, and by how much."""


class NotSupported(Exception):
    """The device lacks what the case needs: a dtype it does not declare."""


class Skipped(Exception):
    """The case cannot be tried here, for a reason that is not the backend's."""


class Bench:
    """One case at one backend. Everything compared goes through here, so that it can be counted and perturbed.

    tools: the counted slots. draw: seeded inputs. opened: the counted backend, for tensors. perturb: also compares each
    result with an error of ten budgets and demands that this fails.
    """

    def __init__(self, subject: Subject, case: str, seed: int, *, perturb: bool = False) -> None:
        self.subject, self.case, self.seed, self.perturb = subject, case, seed, perturb
        self.opened, self.tools, self.device = subject.opened, subject.opened.tools, subject.device
        self.draw = Draw(seed, case)
        self.budget_used: float | None = None
        self.comparisons = 0
        self.context = ""
        required = subject.table.required
        self._storage, self._indexing = required.storage, required.indexing
        self._native_type = subject.native_type
        self._held: list[tuple[str, Any, Host]] = []
        self._recorder = subject.recorder

    @property
    def spec(self) -> str:
        """What opens the same device in another process."""
        return self.opened.spec

    def needs(self, *dtypes: DType) -> None:
        """Raises: NotSupported where the device does not declare them."""
        if missing := [each for each in dtypes if each not in self.device.dtypes]:
            raise NotSupported(f"the device does not declare {', '.join(missing)}")

    def skip(self, reason: str) -> NoReturn:
        raise Skipped(reason)

    def put(self, given: Given) -> Any:
        """On the device; must be bit-equal when the case ends, unless `donates` was said of it."""
        self.needs(given.dtype)
        # a recorded case places its inputs through the observed slots, so that the script does so too
        tools = self.subject.table.required if self._recorder is None else self.tools
        array, whole = given.put(tools.storage, tools.layout)
        self._held.append((f"input {len(self._held) + 1} ({describe(given)})", whole, self._storage.to_host(whole)))
        return array

    def donates(self, *arrays: Any) -> None:
        """These may be written by the call that follows."""
        self._held = [each for each in self._held if not any(each[1] is x for x in arrays)]

    def get(self, array: Any) -> Host:
        """On the host, without being counted as a transfer of the backend's."""
        if not isinstance(array, self._native_type):
            self.fail(
                f"got {type(array).__module__}.{type(array).__qualname__}, wanted an array of the backend's own type "
                f"{self._native_type.__module__}.{self._native_type.__qualname__}"
            )
        host: Host = self._storage.to_host(array)
        return host

    def fail(self, text: str) -> NoReturn:
        context = self.context or self.subject.counts.last_call
        raise Mismatch(f"{context}: {text}" if context else text)

    def require(self, condition: object, text: str) -> None:
        """One comparison of yes-or-no kind."""
        self.comparisons += 1
        if not condition:
            self.fail(text)

    def refuses(
        self, error: type[BaseException] | tuple[type[BaseException], ...], action: Callable[[], object]
    ) -> str:
        """The action must raise `error`; returns its text."""
        self.comparisons += 1
        names = error.__name__ if isinstance(error, type) else " or ".join(each.__name__ for each in error)
        try:
            got = action()
        except error as raised:
            return str(raised)
        self.fail(f"nothing was raised (the call returned {type(got).__name__}), wanted {names}")

    def close(self, label: str, array: Any, truth: Any, dtype: DType = "float32", *, reformulated: bool = True) -> None:
        """A float result beside its truth, within its `allowance`."""
        want = value_of(truth).astype(np.float64)
        allowed = allowance(truth, dtype, flushes=self.device.flushes_subnormals, reformulated=reformulated)
        if self._recorder is not None:
            self._recorder.compared(label, array, dtype, want, allowed, FORMATS[dtype].greatest)
        self.within(label, self._checked(label, array, want.shape, dtype), want, allowed, dtype)

    def within(self, label: str, got: Host, want: Host, allowed: Any, dtype: DType = "float32") -> None:
        """Host values within an absolute budget per element."""
        self.comparisons += 1
        allowed = np.broadcast_to(np.asarray(allowed, np.float64), np.shape(want))
        verdict = compare(got, want, allowed, dtype)
        if dtype not in HALVES:  # one rounding to a half is most of its budget, however careful the arithmetic
            self.budget_used = max(self.budget_used or 0.0, verdict.used)
        if not verdict.good:
            self.fail(
                f"{label}: at {verdict.worst} of {got.shape} got {verdict.got!r}, wanted {verdict.want!r} within "
                f"{verdict.allowed:.3g}: {verdict.used:.3g} budgets; "
                f"{verdict.off} of {got.size} elements are off"
            )
        if self.perturb:
            self._must_see(label, got, want, allowed, dtype)

    def exact(self, label: str, array: Any, want: Host, dtype: DType) -> None:
        """Every bit, the sign of zero included; any NaN equals any NaN."""
        if self._recorder is not None:
            self._recorder.compared(label, array, dtype, want, np.zeros(want.shape), math.inf)
        self.same(label, self._checked(label, array, want.shape, dtype), want)

    def same(self, label: str, got: Host, want: Host) -> None:
        """Host arrays that have to be equal bit for bit."""
        self.comparisons += 1
        if (found := _first_difference(got, want)) is not None:
            self.fail(f"{label}: at {found} of {got.shape} got {got[found]!r}, wanted exactly {want[found]!r}")
        if self.perturb and got.size:
            at = tuple(int(self.draw.rng.integers(n)) for n in got.shape)
            wrong = got.copy()
            wrong[at] = _other(got[at])
            if _first_difference(wrong, want) is None:
                self.fail(f"{label}: the comparison did not see {wrong[at]!r} in the place of {want[at]!r}")

    def call(self, call: Call) -> Any:
        """Puts the arguments on the device and makes the call."""
        self.context = f"{call.slot}.{call.method}({describe_all(call)})"
        method = getattr(getattr(self.tools, call.slot), call.method)
        return method(
            *(_mapped(x, self.put) for x in call.arguments),
            **{k: _mapped(x, self.put) for k, x in call.options.items()},
        )

    def check(
        self,
        call: Call,
        truth: Callable[..., Any],
        *,
        returns: Sequence[DType] | None = None,
        exact: bool = False,
        may_alias: bool = False,
    ) -> None:
        """The call beside its oracle: type, dtype, shape, values, purity; for a VJP finite differences as well."""
        results = flat(self.call(call))
        wants = flat(
            truth(
                *(_mapped(x, _tracked) for x in call.arguments),
                **{k: _mapped(x, _tracked) for k, x in call.options.items()},
            )
        )
        if len(results) != len(wants):
            self.fail(f"got {len(results)} results, wanted {len(wants)}")
        dtypes = returns or [self._natural(call, want) for want in wants]
        for n, (result, want, dtype) in enumerate(zip(results, wants, dtypes, strict=True)):
            label = f"result {n + 1}" if len(wants) > 1 else "result"
            if exact or dtype not in FLOATS:
                host = value_of(want)
                self.exact(label, result, host.astype(host_dtype(dtype)), dtype)
            else:
                self.close(label, result, want, dtype, reformulated=call.slot != "elementwise")
        if call.slope is not None:
            self._check_slope(call.slope, results)
        if not may_alias:
            self._check_no_alias(results)

    def untouched(self) -> None:
        """Every input is bit-equal to what it was."""
        for label, array, before in self._held:
            if self._recorder is not None:
                self._recorder.untouched(label, array, before)
            self.comparisons += 1
        self._held_unchanged(WRITTEN)

    def _natural(self, call: Call, want: Any) -> DType:
        if not isinstance(want, Tracked):
            kind = np.asarray(want).dtype.kind
            if kind in "bi":
                return "bool" if kind == "b" else "int32"
        for x in flat(call.arguments):
            if isinstance(x, Given) and x.dtype in FLOATS:
                return x.dtype
        return "float32"

    def _checked(self, label: str, array: Any, shape: tuple[int, ...], dtype: DType) -> Host:
        """The result on the host, once type, shape and dtype are right on the device and there."""
        if not isinstance(array, self._native_type):
            self.get(array)
        if not isinstance(array.shape, tuple):
            self.fail(f"{label}: its shape is a {type(array.shape).__name__}, wanted a tuple of ints")
        if tuple(array.shape) != tuple(shape):
            self.fail(f"{label}: got shape {tuple(array.shape)}, wanted {tuple(shape)}")
        if (got := self._storage.dtype_of(array)) != dtype:
            self.fail(f"{label}: got dtype {got}, wanted {dtype}")
        host = self.get(array)
        if host.shape != tuple(shape) or host.dtype != host_dtype(dtype):
            self.fail(f"{label}: to_host gave {host.dtype} {host.shape} for {dtype} {tuple(shape)}")
        return host

    def _must_see(self, label: str, got: Host, want: Host, allowed: Any, dtype: DType) -> None:
        """An error of ten budgets at one element must not pass."""
        places = np.argwhere(
            np.isfinite(want) & (allowed > 0) & (np.abs(want) + 10 * allowed < FORMATS[dtype].greatest)
        )
        if not len(places):
            return
        at = tuple(int(i) for i in places[int(self.draw.rng.integers(len(places)))])
        wrong = got.astype(np.float64)
        # a budget of zero but for underflow is lost in the sum: the next number of the format instead
        error = max(10 * allowed[at], 2 * FORMATS[dtype].unit * abs(want[at]))
        wrong[at] = want[at] + error * self.draw.rng.choice([-1.0, 1.0])
        if compare(wrong, want, allowed, "float64").good:
            self.fail(f"{label}: an error of ten budgets at {at} passed: the comparison is lax")

    def _check_slope(self, slope: Slope, results: list[Any]) -> None:
        """Directional derivatives: the gradient's product with a direction beside centred differences in float64."""
        gradients = [self.get(result).astype(np.float64) for result in results]
        for _ in range(2):
            directions = [self.draw.rng.standard_normal(point.shape) for point in slope.points]
            size = max([1e-3, *(float(np.max(np.abs(point))) for point in slope.points if point.size)])
            h = STEP * size

            def along(t: float, towards: list[Host] = directions) -> float:
                moved = [point + t * way for point, way in zip(slope.points, towards, strict=True)]
                return float(np.sum(flat(slope.function(*moved))[0] * slope.dy))

            want = (along(h) - along(-h)) / (2 * h)
            got = sum(float(np.sum(g * way)) for g, way in zip(gradients, directions, strict=True))
            length = sum(
                float(np.linalg.norm(g) * np.linalg.norm(way)) for g, way in zip(gradients, directions, strict=True)
            )
            terms = float(np.sum(np.abs(flat(slope.function(*slope.points))[0] * slope.dy)))
            self.comparisons += 1
            if not abs(got - want) <= DIFFERENCE * length + ROUNDED * terms / h:
                self.fail(f"along a random direction the gradient is {got!r}, finite differences say {want!r}")

    def _check_no_alias(self, results: list[Any]) -> None:
        """Donates each result to a write and looks whether an input or another result changed with it."""
        if not self.subject.writes_in_place:
            return
        self._held_unchanged(WRITTEN)
        arrays = [x for x in results if x.shape and 0 < math.prod(x.shape) <= ALIAS_CHECK_LIMIT]
        for n, array in enumerate(arrays):
            others = [(x, self._storage.to_host(x)) for x in arrays[n + 1 :]]
            dtype = self._storage.dtype_of(array)
            row = self._storage.to_host(array)[:1]
            rows = self._storage.from_host((row == 0).astype(row.dtype), dtype=dtype)
            ids = self._storage.from_host(np.zeros(1, np.int32))
            self._indexing.set_rows(array, ids, rows, donate=True)
            for other, before in others:
                if _first_difference(self._storage.to_host(other), before) is not None:
                    self.fail("two results share memory: writing one changed the other")
            self._held_unchanged("shares memory with a result: writing the donated result changed it")

    def _held_unchanged(self, text: str) -> None:
        for label, array, before in self._held:
            if _first_difference(self._storage.to_host(array), before, payload=True) is not None:
                self.fail(f"{label} {text}")


def flat(x: Any) -> list[Any]:
    """Nested tuples and packed weights as one list of arrays; None is left out."""
    if x is None:
        return []
    if dataclasses.is_dataclass(x) and not isinstance(x, type | Given):
        return [
            each for f in dataclasses.fields(x) for each in flat(getattr(x, f.name)) if not isinstance(each, int | str)
        ]
    if isinstance(x, tuple | list):
        return [part for each in x for part in flat(each)]
    return [x]


def _tracked(given: Given) -> Any:
    return given.tracked


def _mapped(x: Any, change: Callable[[Given], Any]) -> Any:
    """`x` with every given value changed, inside tuples, named tuples and packed weights as well."""
    if isinstance(x, Given):
        return change(x)
    if isinstance(x, Packed):
        fields = ("codes", "scales", "group_scales", "offset")
        return dataclasses.replace(x, **{name: _mapped(getattr(x, name), change) for name in fields})
    if isinstance(x, tuple):
        parts = [_mapped(each, change) for each in x]
        return tuple(parts) if type(x) is tuple else type(x)(*parts)
    return x


def describe(given: Given) -> str:
    return f"{given.dtype}{list(given.shape)}" + ("" if given.view == "whole" else f" {given.view}")


def describe_all(call: Call) -> str:
    """The call's arguments in one line."""

    def words(x: object) -> str:
        if isinstance(x, Given):
            return describe(x)
        if isinstance(x, Packed):
            return f"packed{list(x.shape)} block {x.block}" + ("" if x.offset is None else f" {x.scale_code}")
        return f"[{', '.join(map(words, x))}]" if isinstance(x, tuple) else repr(x)

    return ", ".join([*map(words, call.arguments), *(f"{key}={words(value)}" for key, value in call.options.items())])


def _first_difference(got: Host, want: Host, *, payload: bool = False) -> tuple[int, ...] | None:
    """Index of the first element whose bits differ; NaNs are equal, unless their payload counts."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return (0,) * got.ndim
    if got.tobytes() == want.tobytes():
        return None
    size = got.dtype.itemsize
    bits = [np.ascontiguousarray(x).view(f"u{size}").reshape(x.shape) for x in (got, want)]
    differ = bits[0] != bits[1]
    if not payload and got.dtype.kind == "f":
        differ &= ~(np.isnan(got) & np.isnan(want))
    places = np.argwhere(differ)
    return tuple(int(i) for i in places[0]) if len(places) else None


def _other(x: Any) -> Any:
    """The nearest different value."""
    if isinstance(x, np.bool_):
        return not x
    if not isinstance(x, np.floating):
        return x ^ 1
    if not np.isfinite(x):
        return 0.0
    return np.nextafter(x, np.inf if x < 0 else -np.inf, dtype=x.dtype)
