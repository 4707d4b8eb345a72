from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import turret.derived as derived
from turret.conformance.instrument import Counts, watching_derived, watching_host
from turret.conformance.subject import Subject
from turret.derived.softmax import DerivedSoftmax
from turret.registry import OpenBackend
from turret.spi import OPTIONAL_SLOTS, BackendInfo

INFO = BackendInfo(name="own", distribution="turret-own", spi=">=1.0,<2", target="own:none", probe="own:none")


class Seen:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def before(self, slot: str, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.told.append((slot, method, len(arguments), sorted(options)))

    def after(self, result: Any) -> None:
        self.told.append(type(result).__name__)


@pytest.fixture
def x(subject: Subject) -> Any:
    made = subject.table.required.storage.from_host(np.ones((3, 4), np.float32))
    subject.counts.reset()
    return made


def test_calls_that_reach_the_plugin_are_counted_by_slot(subject: Subject, x: Any) -> None:
    tools, counts = subject.opened.tools, subject.counts
    tools.matmul.matmul(x, x, transpose_b=True)
    tools.elementwise.add(x, x)
    tools.elementwise.exp(x)
    assert dict(counts.calls) == {"matmul": 1, "elementwise": 2}
    assert not counts.derived and not counts.transfers
    counts.reset()
    assert not counts.calls


def test_a_composition_counts_itself_and_the_calls_it_makes(subject: Subject, x: Any) -> None:
    subject.opened.tools.softmax.softmax(x)
    assert dict(subject.counts.derived) == {"softmax": 1}
    assert subject.counts.calls["elementwise"] > 1
    assert subject.counts.calls["reduction"] > 1


def test_what_a_case_puts_and_gets_is_no_transfer_but_what_a_slot_does_is(subject: Subject, x: Any) -> None:
    tools, counts = subject.opened.tools, subject.counts
    tools.storage.to_host(tools.storage.from_host(np.zeros(3, np.float32)))
    assert counts.calls["storage"] == 2 and not counts.transfers
    tools.random.normal((2, 3), key=1, counter=2)
    assert dict(counts.transfers) == {"random: storage.from_host": 1}


def test_a_native_slot_that_falls_back_to_a_composition_is_seen(own: ModuleType) -> None:
    counts = Counts()
    with watching_derived(counts):
        opened = own.Opened()
        falling = DerivedSoftmax(opened.table.required)
        subject = Subject(OpenBackend.wrap(INFO, own.with_slots(opened, softmax=falling)), counts)
        assert "softmax" in subject.opened.tools.native
        x = subject.table.required.storage.from_host(np.ones((3, 4), np.float32))
        counts.reset()
        subject.opened.tools.softmax.softmax(x)
    assert counts.calls["softmax"] == 1
    assert counts.derived["softmax"] == 1


def test_watching_leaves_the_compositions_as_they_were() -> None:
    names = ["Derived" + "".join(word.capitalize() for word in slot.split("_")) for slot in OPTIONAL_SLOTS]
    before = {name: dict(vars(getattr(derived, name))) for name in names}
    with pytest.raises(ZeroDivisionError), watching_derived(Counts()):
        assert any(dict(vars(getattr(derived, name))) != before[name] for name in names)
        raise ZeroDivisionError
    assert all(dict(vars(getattr(derived, name))) == before[name] for name in names)


def test_every_slot_and_method_can_still_be_called(subject: Subject) -> None:
    tools: Any = subject.opened.tools
    assert tools.storage.memory() is None
    assert tools.matmul.accumulation("float32") == subject.table.required.matmul.accumulation("float32")
    assert all(getattr(tools, slot) is not None for slot in OPTIONAL_SLOTS)
    with pytest.raises(AttributeError, match="no_such"):
        tools.matmul.no_such  # noqa: B018


def test_an_observer_is_told_of_outermost_calls_alone(subject: Subject, x: Any) -> None:
    seen = Seen()
    subject.counts.observer = seen
    subject.opened.tools.softmax.softmax(x)
    subject.opened.tools.matmul.matmul(x, x, transpose_a=True)
    assert seen.told == [("softmax", "softmax", 1, []), "Own", ("matmul", "matmul", 2, ["transpose_a"]), "Own"]


def test_a_call_that_raises_leaves_the_counts_in_order(own: ModuleType, subject: Subject, x: Any) -> None:
    seen = Seen()
    subject.counts.observer = seen
    own.replaces("elementwise", "exp")(lambda right, x: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            subject.opened.tools.softmax.softmax(x)
    assert subject.counts.inside == []
    assert [told[:2] for told in seen.told] == [("softmax", "softmax")] * 2


def test_threads_leave_the_counts_in_order(subject: Subject, x: Any) -> None:
    def work() -> None:
        for _ in range(50):
            subject.opened.tools.softmax.softmax(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert subject.counts.inside == []
    assert subject.counts.derived["softmax"] == 200


def test_a_backend_that_never_writes_a_donated_array_is_known_as_such(own: ModuleType, subject: Subject) -> None:
    assert subject.writes_in_place
    own.replaces("indexing", "set_rows")(lambda right, base, ids, rows, donate=False: right(base, ids, rows))
    assert not Subject(OpenBackend.wrap(INFO, own.Opened())).writes_in_place


class Elsewhere:
    """An array of a device: NumPy may ask for its values."""

    def __init__(self, host: Any) -> None:
        self.host = host

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.host, dtype)

    def numpy(self) -> Any:
        return self.host


def test_conversions_behind_the_storage_slot_are_seen_while_a_slot_is_at_work() -> None:
    counts, array = Counts(), Elsewhere(np.ones(3))
    before = np.asarray
    with watching_host(counts, Elsewhere):
        np.asarray(array)
        assert not counts.transfers, "nobody is at work"
        counts.inside.append("softmax")
        np.asarray(array)
        array.numpy()
        np.asarray([1.0])
        assert dict(counts.transfers) == {"softmax: numpy.asarray": 1, "softmax: Elsewhere.numpy": 1}
        counts.inside.append("storage")
        np.asarray(array)
        assert sum(counts.transfers.values()) == 2, "the storage slot may"
    assert np.asarray is before and "numpy" in vars(Elsewhere)
    assert Elsewhere(np.ones(2)).numpy() is not None


def test_numpys_own_arrays_have_no_other_side() -> None:
    counts = Counts()
    with watching_host(counts, np.ndarray):
        counts.inside.append("softmax")
        np.asarray(np.ones(3))
    assert not counts.transfers


def test_the_latest_call_is_told_in_words(subject: Subject) -> None:
    tools = subject.opened.tools
    x = tools.storage.from_host(np.ones((2, 3), np.float32))
    assert subject.counts.last_call == "", "a transfer says nothing about what went wrong"
    tools.elementwise.maximum(x, 2.0)
    assert subject.counts.last_call == "elementwise.maximum(array[2, 3], 2.0)"
    tools.layout.concatenate([x, x], axis=0)
    assert subject.counts.last_call == "layout.concatenate([array[2, 3], array[2, 3]], axis=0)"
    subject.counts.reset()
    assert subject.counts.last_call == ""
