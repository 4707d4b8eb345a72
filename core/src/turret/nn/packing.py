"""A whole model's linear layers packed, one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from turret.quant import PackedWeight
from turret.spi import ConfigError, NonFiniteError, ScaleCode
from turret.tensor import Tensor
from turret.tensor.ops.quantized import packed_layout

from .linear import Linear
from .module import Module
from .packed import PackedLinear

L = TypeVar("L", bound=Module)
HEAD = ("language_model_head",)
_LARGE = 2.0**96
"""Below it no coded scale overflows; a larger weight is packed once more, to see."""


def pack_linears(
    model: Module, *, block: int = 64, scales: ScaleCode = "dynamic", skip: Sequence[str] = HEAD
) -> list[str]:
    """Puts a PackedLinear in the place of every Linear below `model`; returns their names, in order.

    Embeddings and norms stay, and what `skip` names: patterns as `attach_adapters` takes them. At the peak there is one
    layer more than before in memory, since each float weight is let go before the next one is packed.
    Raises: ConfigError for a layer with an adapter, and for a pattern other than the default that matches nothing;
    NonFiniteError naming the weight, and as `PackedWeight.pack`; nothing is changed then.
    """
    found = dict(named_layers(model, Linear))
    patterns = pattern_list(skip, found, "skip")
    for pattern in patterns:
        if pattern not in HEAD and not any(fits(name, pattern) for name in found):
            raise ConfigError(f"skip {pattern!r:.80} matches no linear layer; wanted {kinds(found)}")
    wanted = [name for name in found if not any(fits(name, pattern) for pattern in patterns)]
    for name in wanted:
        _require_packable(name, found[name], block, scales)
    found.clear()  # each weight is held by the tree alone, so that it goes when its layer does
    for name in wanted:
        parent, last = parent_of(model, name)
        parent.replace_child(last, PackedLinear.of(getattr(parent, last), block=block, scales=scales))
    return wanted


def named_layers(model: Module, kind: type[L]) -> list[tuple[str, L]]:
    """The modules of a kind below `model` with their qualified names."""
    return [(name, module) for name, module in model.named_modules() if name and isinstance(module, kind)]


def parent_of(model: Module, name: str) -> tuple[Module, str]:
    """The module that has the one of this qualified name for a child, and the child's own name."""
    *path, last = name.split(".")
    for part in path:
        model = getattr(model, part)
    return model, last


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern of the shell matches a qualified name or its last part."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[2], pattern)


def pattern_list(patterns: object, names: Iterable[str], what: str) -> tuple[str, ...]:
    """Patterns of the shell as they were given, one or several. Raises: ConfigError for what is no text."""
    listed = (patterns,) if isinstance(patterns, str) else patterns
    given = tuple(listed) if isinstance(listed, Iterable) else (listed,)
    if not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{what} {patterns!r:.80}; wanted names of linear layers, or patterns: {kinds(names)}")
    return given


def kinds(names: Iterable[str]) -> str:
    """What layers are called, each word once, for a message."""
    words = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
    return f"{', '.join(words[:20])}{', ...' if len(words) > 20 else ''}, or '*'" if words else "a model that has some"


def _require_packable(name: str, layer: Linear, block: int, scales: ScaleCode) -> None:
    """What can be said before the first layer is packed."""
    if layer.adapter is not None:
        raise ConfigError(f"{name} has an adapter; merge() or detach() it first, or pack before attaching")
    packed_layout(layer.shape, block, scales)
    largest = largest_magnitude(layer.weight)
    if not math.isfinite(largest):
        raise NonFiniteError(f"{name}.weight {layer.shape} has NaN or infinite values; wanted finite numbers")
    if largest >= _LARGE and scales != "float32":
        PackedWeight.pack(layer.weight, block=block, scales=scales)


def largest_magnitude(x: Tensor) -> float:
    """Of all elements; NaN where one is. Two numbers come to the host."""
    tools, axes = x.backend.tools, tuple(range(x.ndim))
    if not axes:
        return abs(float(x.numpy()))
    ends = (tools.reduction.max(each, axis=axes) for each in (x.value, tools.elementwise.negative(x.value)))
    values = [float(tools.storage.to_host(end)) for end in ends]
    return math.nan if any(map(math.isnan, values)) else max(values)
