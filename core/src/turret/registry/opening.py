"""Opening one device of one backend, with everything the plugin may do wrong turned into an error that says so."""

from __future__ import annotations

import difflib
import importlib
import operator
import traceback
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from turret.spi import (
    OPTIONAL_SLOTS,
    REQUIRED_SLOTS,
    Backend,
    BackendInfo,
    BackendUnavailable,
    Capabilities,
    PluginError,
    Required,
    Toolset,
    TurretError,
)

from .guard import Failure, attempt
from .names import Spec, pip_command
from .opened import OpenBackend


def open_device(info: BackendInfo, device: str) -> OpenBackend:
    """Calls the plugin's target in this process.

    Raises: BackendUnavailable where the device or its library fails; PluginError where the plugin breaks the interface;
    any TurretError that the plugin itself raises.
    """
    spec = Spec(info.name, device)
    if device and not info.devices:
        raise BackendUnavailable(f"{str(spec)!r}: backend {info.name!r} has no device to choose; use {info.name!r}")
    make = _target(info, spec)
    backend = attempt(lambda: make(device))
    if isinstance(backend, Failure):
        _refuse(info, spec, backend)
    _check_table(info, backend)
    return OpenBackend.wrap(info, backend, device)


def _target(info: BackendInfo, spec: Spec) -> Callable[[str], Backend[Any]]:
    module_name, _, attribute = info.target.partition(":")
    module = attempt(lambda: importlib.import_module(module_name))
    if isinstance(module, Failure):
        error = module.error
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise PluginError(_broken(info, f"there is no module {error.name!r}")) from error
        _refuse(info, spec, module)
    make: object | Failure = attempt(lambda: operator.attrgetter(attribute)(module))
    if isinstance(make, Failure):
        close = difflib.get_close_matches(attribute, dir(module), n=1)
        guess = f" (there is {close[0]!r})" if close else ""
        raise PluginError(_broken(info, f"{module_name} has no {attribute!r}{guess}")) from make.error
    if not callable(make):
        raise PluginError(_broken(info, f"it is {make!r}, wanted a callable (device) -> Backend"))
    return make


def _refuse(info: BackendInfo, spec: Spec, failure: Failure) -> NoReturn:
    if isinstance(failure.error, TurretError):
        raise failure.error
    hint = info.install_hint or pip_command(info.name)
    lacks_library = isinstance(failure.error, ImportError | OSError) and hint
    what_next = f"install its libraries with: {hint}" if lacks_library else f"it was raised at {_place(failure.error)}"
    text = f"backend {str(spec)!r} of {info.distribution} cannot be used here: {failure}; {what_next}"
    raise BackendUnavailable(text) from failure.error


def _place(error: BaseException) -> str:
    """File and line of the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def _check_table(info: BackendInfo, backend: Backend[Any]) -> None:
    table = attempt(lambda: backend.capabilities())
    if isinstance(table, Failure):
        raise PluginError(_broken(info, f"capabilities() of {type(backend).__name__} raised {table}")) from table.error
    if not isinstance(table, Capabilities):
        raise PluginError(_broken(info, f"capabilities() gave {type(table).__name__}, wanted turret.spi.Capabilities"))
    if not isinstance(table.required, Required):
        raise PluginError(_broken(info, f"`required` is {type(table.required).__name__}, wanted turret.spi.Required"))
    if empty := [slot for slot in REQUIRED_SLOTS if getattr(table.required, slot) is None]:
        raise PluginError(_broken(info, f"the required slots {', '.join(empty)} are None"))
    slots = {name: getattr(table.required if name in REQUIRED_SLOTS else table, name) for name in slot_methods()}
    if lacking := [text for name, slot in slots.items() if slot is not None and (text := _lacking(name, slot))]:
        raise PluginError(_broken(info, "; ".join(lacking)))


def _lacking(name: str, slot: object) -> str:
    """Which methods of its protocol a slot does not have, or ""."""
    missing = [method for method in slot_methods()[name] if not callable(getattr(slot, method, None))]
    return f"slot {name} ({type(slot).__name__}) lacks {', '.join(missing)}" if missing else ""


@cache
def slot_methods() -> dict[str, tuple[str, ...]]:
    """The methods of every slot's protocol."""
    hints = typing.get_type_hints(Toolset)
    protocols = {name: typing.get_origin(hints[name]) or hints[name] for name in (*REQUIRED_SLOTS, *OPTIONAL_SLOTS)}
    return {
        name: tuple(method for method, thing in vars(protocol).items() if method[0] != "_" and callable(thing))
        for name, protocol in protocols.items()
    }


def _broken(info: BackendInfo, what: str) -> str:
    return f"backend {info.name!r} of {info.distribution}, target {info.target!r}: {what}; report it to its authors"
