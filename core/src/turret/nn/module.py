"""The module tree: registration, names, transfer and state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from turret.registry import OpenBackend, open_backend
from turret.spi import ConfigError, Host
from turret.tensor import Parameter, Tensor
from turret.tensor.state import check_host
from turret.tensor.tracing import capturing, refuse_host


class Module:
    """A node of a tree of parameters.

    Assigning a Parameter, a Module or a Tensor to an attribute registers it, in order. Names are attribute paths
    ("blocks.0.attention.query.weight"). A module has one parent, a parameter one owner; once attached to a parent a
    module is sealed and registers nothing more; `replace_child` alone changes a tree after that. Tensors are buffers:
    moved with the module, not saved. Concrete modules define their own typed `__call__`.
    """

    _parameters: dict[str, Parameter]
    _modules: dict[str, Module]
    _buffers: dict[str, Tensor]
    _sealed: bool

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        for name in ("_parameters", "_modules", "_buffers"):
            object.__setattr__(self, name, {})
        object.__setattr__(self, "_sealed", False)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if capturing() is not None and name in self._buffers and type(value) is Tensor:
            self._buffers[name].value = value.value  # the program gives its result to the tensor that is there
            return
        if isinstance(value, (Module, Tensor)):
            self._register(name, value)
        elif name in self._parameters or name in self._modules or name in self._buffers:
            raise ConfigError(
                f"{type(self).__name__}.{name} is registered and got {type(value).__name__}; parameter.assign() "
                f"changes a value, another Tensor replaces a buffer"
            )
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self._parameters or name in self._modules or name in self._buffers:
            raise ConfigError(f"{type(self).__name__}.{name} is registered and cannot be deleted")
        object.__delattr__(self, name)

    def _register(self, name: str, value: Parameter | Module | Tensor) -> None:
        where = f"{type(self).__name__}.{name}"
        if not name or "." in name or name in vars(Module):
            raise ConfigError(
                f"{where}: got the name {name!r}; wanted one that is not empty, has no '.' and is no method of Module"
            )
        if name in self._buffers and not isinstance(value, (Parameter, Module)):
            self._buffers[name] = value
            return
        if self._sealed:
            raise ConfigError(f"{where}: the module is attached to a parent and sealed; register before attaching it")
        if name in self._parameters or name in self._modules or name in self._buffers:
            raise ConfigError(f"{where} is registered already; parameter.assign() changes a value")
        if isinstance(value, Parameter):
            if value.owned:
                raise ConfigError(f"{where}: this parameter has an owner already; a module tree shares none")
            value.owned = True
            self._parameters[name] = value
            return
        if isinstance(value, Tensor):
            self._buffers[name] = value
            return
        self._require_free(where, value)
        object.__setattr__(value, "_sealed", True)
        self._modules[name] = value

    def replace_child(self, name: str, module: Module) -> Module:
        """Puts `module` in the place of the child `name`, also where the tree is sealed; returns the old child, free.

        Raises: ConfigError for no such child and for a module that has a parent or contains this one; CaptureError
        inside a captured step.
        """
        refuse_host("a module is replaced", "replace it before the step")
        where = f"{type(self).__name__}.{name}"
        if name not in self._modules:
            raise ConfigError(f"{where}: no such child; it has {', '.join(self._modules) or 'none'}")
        if not isinstance(module, Module):
            raise ConfigError(f"{where} got {type(module).__name__} for a child; wanted a Module")
        self._require_free(where, module)
        old = self._modules[name]
        object.__setattr__(old, "_sealed", False)
        object.__setattr__(module, "_sealed", True)
        self._modules[name] = module
        object.__setattr__(self, name, module)
        return old

    def _require_free(self, where: str, module: Module) -> None:
        if module is self or module._sealed or self in module.modules():
            raise ConfigError(f"{where}: this {type(module).__name__} has a parent already; a module tree is no graph")

    def children(self) -> Iterator[tuple[str, Module]]:
        """Direct children in order of registration."""
        yield from self._modules.items()

    def modules(self) -> Iterator[Module]:
        """This module and all below it, parents first."""
        yield self
        for child in self._modules.values():
            yield from child.modules()

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """As `modules`, each with its qualified name; the name of this one is `prefix`, without it empty."""
        yield prefix, self
        for name, child in self._modules.items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def extra_parameters(self) -> Iterable[tuple[str, Parameter]]:
        """Parameters that are attached later and live outside the base schema: adapters. Hook for subclasses."""
        return ()

    def named_parameters(self, *, extra: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Every parameter with its qualified name: own ones, extra ones, then the children's."""
        yield from self._walk("", extra)

    def _walk(self, prefix: str, extra: bool) -> Iterator[tuple[str, Parameter]]:
        for name, parameter in self._parameters.items():
            yield prefix + name, parameter
        if extra:
            for name, parameter in self.extra_parameters():
                yield prefix + name, parameter
        for name, child in self._modules.items():
            yield from child._walk(f"{prefix}{name}.", extra)

    def parameters(self) -> list[Parameter]:
        """Every parameter, in the order of their names' registration."""
        return [parameter for _, parameter in self.named_parameters()]

    def parameter_count(self) -> int:
        """Number of scalars in the base schema."""
        return sum(math.prod(p.shape) for _, p in self.named_parameters(extra=False))

    def freeze(self) -> Self:
        """Makes every parameter below untrainable."""
        for parameter in self.parameters():
            parameter.trainable = False
        return self

    def held_tensors(self) -> Iterator[Tensor]:
        """Every parameter and buffer: what a captured step may read."""
        yield from self.parameters()
        for module in self.modules():
            yield from module._buffers.values()

    def replaced_tensors(self) -> Iterable[Tensor]:
        """None: an optimizer says which of them it replaces."""
        return ()

    def before_step(self) -> None:
        """Nothing to compute."""

    def after_step(self, again: Callable[[], object]) -> None:
        """Nothing to look at."""

    def to(self, backend: str | OpenBackend) -> Self:
        """Moves every parameter, gradient and buffer to another backend; prepares all of it, then commits.

        What is there already stays as it is. Raises: what the backend raises; nothing has moved then.
        """
        target = open_backend(backend)
        parameters = [(p, *_moved(p, target)) for p in self.parameters() if p.backend is not target]
        buffers = [
            (module, name, Tensor(_send(buffer, target), target, buffer.dtype))
            for module in self.modules()
            for name, buffer in module._buffers.items()
            if buffer.backend is not target
        ]
        for parameter, value, grad in parameters:
            parameter.move(value, target, grad)
        for module, name, buffer in buffers:
            setattr(module, name, buffer)
        return self

    def state_dict(self) -> dict[str, Host]:
        """Host copies of the base schema's values, by qualified name."""
        return {name: parameter.numpy() for name, parameter in self.named_parameters(extra=False)}

    def load_state_dict(self, state: Mapping[str, Host]) -> None:
        """Takes values by name; names and shapes must fit exactly, dtypes are cast between floats.

        Raises: ConfigError for missing and unknown names, ShapeError, DTypeError; nothing is changed then.
        """
        load_values(type(self).__name__, dict(self.named_parameters(extra=False)), state)


class ModuleList(Module):
    """Children named "0", "1", ... in order."""

    def __init__(self, modules: Iterable[Module]) -> None:
        for i, module in enumerate(modules):
            if not isinstance(module, Module):
                raise ConfigError(f"ModuleList got {type(module).__name__} at {i}; wanted a Module")
            setattr(self, str(i), module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __getitem__(self, i: int) -> Any:
        return list(self._modules.values())[i]


def load_values(what: str, own: Mapping[str, Parameter], state: Mapping[str, Host]) -> None:
    """Gives each parameter the value of its name. Raises: as `Module.load_state_dict`; nothing is changed then."""
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or unknown:
        raise ConfigError(f"state does not fit {what}: missing {missing}, unknown {unknown}")
    for name, parameter in own.items():
        check_host(f"state of '{name}'", state[name], parameter.shape)
    made = [
        (parameter, parameter.backend.tools.storage.from_host(state[name], dtype=parameter.dtype))
        for name, parameter in own.items()
    ]
    for parameter, value in made:
        parameter.replace(value)


def _send(tensor: Tensor, target: OpenBackend) -> Any:
    return target.tools.storage.from_host(tensor.numpy(), dtype=tensor.dtype)


def _moved(parameter: Parameter, target: OpenBackend) -> tuple[Any, Tensor | None]:
    grad = parameter.grad
    return _send(parameter, target), None if grad is None else Tensor(_send(grad, target), target, grad.dtype)
