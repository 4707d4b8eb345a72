"""The adapters of one model: attached, saved, merged and detached together."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from turret.spi import FLOATS, ConfigError, Host, NonFiniteError
from turret.tensor import Parameter, Tensor

from .adapter import Adaptable, LowRankAdapter, check_adapter
from .init import Init
from .linear import Linear
from .merging import merged, merged_and_packed
from .module import Module, load_values
from .packed import PackedLinear
from .packing import fits, kinds, largest_magnitude, named_layers, parent_of, pattern_list

_LOG = logging.getLogger("turret")


def attach_adapters(
    model: Module,
    *,
    rank: int,
    alpha: float,
    targets: Sequence[str] = ("query", "value"),
    dropout: float = 0.0,
    seed: int = 0,
) -> AdapterSet:
    """A new LowRankAdapter beside every linear layer that `targets` match; the base is frozen until they are detached.

    targets: patterns of the shell, for a qualified name ("blocks.*.attention.query") or its last part ("query", "*").
    Raises: ConfigError for adapters that are there already, a pattern that matches nothing, rank above the smaller
    side of a layer, alpha, dropout and seed that make no sense; NonFiniteError naming a base parameter with NaN or
    infinity. Nothing is changed then.
    """
    check_adapter(rank, alpha, dropout)
    require_no_adapters(model)
    layers = dict(named_layers(model, Adaptable))
    patterns = pattern_list(targets, layers, "targets")
    for pattern in patterns:
        if not any(fits(name, pattern) for name in layers):
            raise ConfigError(f"target {pattern!r:.80} matches no linear layer; wanted {kinds(layers)}")
    if not patterns:
        raise ConfigError(f"adapters got no target; wanted {kinds(layers)}")
    chosen = {name: each for name, each in layers.items() if any(fits(name, pattern) for pattern in patterns)}
    for name, layer in chosen.items():
        if rank > min(layer.shape):
            raise ConfigError(f"rank {rank} is above the smaller side of {name} {layer.shape}; choose a lower one")
    init = Init(seed)
    made = {
        name: LowRankAdapter(
            *layer.shape[::-1], rank=rank, alpha=alpha, init=init, dropout=dropout, backend=layer.backend
        )
        for name, layer in chosen.items()
    }
    return AdapterSet(model, made, rank=rank, alpha=alpha, targets=patterns, dropout=dropout)


def require_no_adapters(model: Module) -> None:
    """Raises: ConfigError where an adapter is attached: what is saved, packed or adapted is a base alone."""
    for name, layer in model.named_modules():
        if isinstance(layer, Adaptable) and layer.adapter is not None:
            raise ConfigError(
                f"{name or 'the layer'} has an adapter; call merge() or detach() of the set that attach_adapters "
                f"returned first, or save the adapters instead of the base"
            )


class AdapterSet(Mapping[str, LowRankAdapter]):
    """Adapters by the qualified names of their layers, attached when it is made; the base is frozen meanwhile.

    `rank`, `alpha`, `targets` and `dropout` are what was asked for; adapters from a file may differ from one another.
    """

    def __init__(
        self,
        model: Module,
        adapters: Mapping[str, LowRankAdapter],
        *,
        rank: int,
        alpha: float,
        targets: Sequence[str],
        dropout: float = 0.0,
    ) -> None:
        """Raises: as `attach_adapters` and `Adaptable.attach`; nothing is attached then."""
        require_no_adapters(model)
        _require_finite(model)
        layers = dict(named_layers(model, Adaptable))
        if unknown := sorted(adapters.keys() - layers.keys()):
            raise ConfigError(f"adapters for {unknown[0]:.80}, which is no linear layer; wanted {kinds(layers)}")
        self.model = model
        self.rank, self.alpha, self.targets, self.dropout = rank, float(alpha), tuple(targets), dropout
        self._adapters = dict(adapters)
        with contextlib.ExitStack() as undo:
            for name, adapter in self._adapters.items():
                layers[name].attach(adapter)
                undo.callback(layers[name].detach)
            undo.pop_all()
        self._thawed = [p for _, p in model.named_parameters(extra=False) if p.trainable]
        for parameter in self._thawed:
            parameter.trainable = False

    def __getitem__(self, name: str) -> LowRankAdapter:
        return self._adapters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._adapters)

    def __len__(self) -> int:
        return len(self._adapters)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """What an optimizer trains, by the names that the model's `named_parameters` gives as well."""
        for name, adapter in self._adapters.items():
            for part, parameter in adapter.named_parameters():
                yield f"{name}.adapter.{part}", parameter

    def parameters(self) -> list[Parameter]:
        """Every a and b, layer by layer."""
        return [parameter for _, parameter in self.named_parameters()]

    def parameter_count(self) -> int:
        """Number of scalars that are trained."""
        return sum(math.prod(parameter.shape) for parameter in self.parameters())

    def state_dict(self) -> dict[str, Host]:
        """Host copies of the values by qualified name ("blocks.0.attention.query.adapter.a")."""
        return {name: parameter.numpy() for name, parameter in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Host]) -> None:
        """Takes values by name. Raises: as `Module.load_state_dict`; nothing is changed then."""
        load_values("the adapters", dict(self.named_parameters()), state)

    def detach(self) -> None:
        """The model as it was before, bit for bit, with the same parameters trainable; adapters keep their values.

        Raises: ConfigError where they are attached no more.
        """
        for layer in self._layers().values():
            layer.detach()
        self._thaw()

    def merge(self) -> None:
        """Adds what each adapter adds to its layer's weight and detaches: the sum is taken in float64 on the host.

        A packed layer becomes a Linear of float32 again, frozen; a Linear keeps its dtype.
        Raises: ConfigError where they are attached no more; NonFiniteError naming a sum that is not finite. Nothing is
        changed then, except where the device has no room: layers before that one are merged.
        """
        layers = self._layers()
        for name, layer in layers.items():
            merged(name, layer)
        for name, layer in layers.items():
            self._merge(name, layer)
        self._thaw()

    def repack(self) -> dict[str, float]:
        """`merge`, but packed layers are packed again as they were, which loses some of what was learned.

        Returns for each of them ||pack(W + D) - (W + D)|| / ||D|| in the Frobenius norm, with the old weight W and D,
        what its adapter adds; warns of it on the logger `turret`. Raises: as `merge` and `PackedWeight.pack`.
        """
        layers = self._layers()
        packed: dict[str, PackedLinear] = {}
        lost: dict[str, float] = {}
        for name, layer in layers.items():
            if isinstance(layer, PackedLinear):
                packed[name], lost[name] = merged_and_packed(name, layer)
            else:
                merged(name, layer)
        for name, layer in layers.items():
            if name in packed:
                self._put(name, layer, packed[name])
            else:
                self._merge(name, layer)
        self._thaw()
        if lost:
            worst = max(lost, key=lost.__getitem__)
            _LOG.warning(
                f"{len(lost)} merged layers were packed again: the rounding is {np.median(list(lost.values())):.3g} "
                f"times as large as what their adapters add (median; most in {worst}: {lost[worst]:.3g}); merge() "
                f"keeps them in float32"
            )
        return lost

    def _layers(self) -> dict[str, Adaptable]:
        """The layers by name. Raises: ConfigError unless every adapter is attached to its own."""
        layers = dict(named_layers(self.model, Adaptable))
        for name, adapter in self._adapters.items():
            if name not in layers or layers[name].adapter is not adapter:
                raise ConfigError(
                    f"the adapter of {name} is attached no more: it was merged or detached, or its layer replaced"
                )
        return {name: layers[name] for name in self._adapters}

    def _merge(self, name: str, layer: Adaptable) -> None:
        plain, weight = merged(name, layer)
        storage = plain.weight.backend.tools.storage
        plain.weight.replace(storage.from_host(weight, dtype=plain.weight.dtype))
        self._put(name, layer, plain)

    def _put(self, name: str, layer: Adaptable, made: Linear | PackedLinear) -> None:
        """`made` without an adapter in the place of `layer`; a copied bias is thawed later if the old one would be."""
        layer.detach()
        if made is layer:
            return
        parent, last = parent_of(self.model, name)
        old = parent.replace_child(last, made)
        if made.bias is not None and any(p is thawed for p in old.parameters() for thawed in self._thawed):
            self._thawed.append(made.bias)

    def _thaw(self) -> None:
        for parameter in self._thawed:
            parameter.trainable = True


def _require_finite(model: Module) -> None:
    """Raises: NonFiniteError naming the first parameter, or array of a packed weight, with NaN or infinity."""
    base: list[tuple[str, Tensor]] = list(model.named_parameters(extra=False))
    for name, layer in named_layers(model, PackedLinear):
        parts = {part: getattr(layer, part) for part in ("scales", "group_scales", "offset")}
        base += [(f"{name}.{part}", x) for part, x in parts.items() if x is not None and x.dtype in FLOATS]
    for name, tensor in base:
        if 0 not in tensor.shape and not math.isfinite(largest_magnitude(tensor)):
            raise NonFiniteError(f"{name} of the base has NaN or infinite values; load a sound base before adapting it")
