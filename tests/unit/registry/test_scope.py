from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import turret
from turret.registry import current, installed, open_backend, register, scope
from turret.registry.selection import Registry
from turret.spi import BackendInfo, BackendNotFound

Make = Callable[..., BackendInfo]


@pytest.fixture(autouse=True)
def two_backends(monkeypatch: pytest.MonkeyPatch, backend_module: Make) -> Iterator[None]:
    """`plain` is the default of a process registry of its own; `other` is installed beside it."""
    environ = {"TURRET_PLUGINS": "nothing_installed_has_this_name", "TURRET_BACKEND": "plain"}
    monkeypatch.setattr(scope, "PROCESS", Registry(environ))
    with register(backend_module("plain")), register(backend_module("other", devices="a number")):
        yield


def test_nested_scopes_each_restore_the_one_around() -> None:
    assert current().spec == "plain"
    with turret.use_backend("other") as outer:
        assert current() is outer
        with turret.use_backend("other:1") as inner:
            assert current() is inner
            assert open_backend() is inner
            assert open_backend("plain").spec == "plain"
        assert current() is outer
    assert current().spec == "plain"


def test_a_scope_ends_when_its_block_raises() -> None:
    with pytest.raises(KeyError), turret.use_backend("other"):
        raise KeyError
    assert current().spec == "plain"


def test_a_wrong_name_fails_on_entry_and_changes_nothing() -> None:
    with turret.use_backend("other"):
        with pytest.raises(BackendNotFound), turret.use_backend("othr"):
            pytest.fail("the block must not run")
        assert current().name == "other"


def test_an_opened_backend_is_its_own_spec() -> None:
    opened = open_backend("other:3")
    assert open_backend(opened) is opened
    with turret.use_backend(opened):
        assert current() is opened


def test_a_scope_does_not_reach_other_threads() -> None:
    inside = threading.Event()
    seen: list[str] = []

    def look() -> None:
        inside.wait()
        seen.append(current().spec)
        with turret.use_backend("other:7"):
            seen.append(current().spec)

    thread = threading.Thread(target=look)
    thread.start()
    with turret.use_backend("other"):
        inside.set()
        thread.join()
        assert current().spec == "other"
    assert seen == ["plain", "other:7"]


def test_tasks_keep_their_own_scope() -> None:
    async def work(spec: str) -> str:
        with turret.use_backend(spec):
            await asyncio.sleep(0)
            return current().spec

    async def both() -> list[str]:
        return list(await asyncio.gather(work("other"), work("plain"), work("other:1")))

    assert asyncio.run(both()) == ["other", "plain", "other:1"]


def test_asking_for_the_current_backend_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    current()
    # Nothing but the remembered default may be needed: no discovery, no parsing, no variable.
    monkeypatch.setattr(scope.PROCESS, "environ", None)
    monkeypatch.setattr(scope.PROCESS, "_entries", None)
    start = time.perf_counter()
    for _ in range(10_000):
        current()
    assert time.perf_counter() - start < 1.0


def test_backends_lists_what_is_installed() -> None:
    assert turret.backends() == installed()
    assert {"plain", "other"} <= {entry.name for entry in turret.backends() if entry.state == "loadable"}
