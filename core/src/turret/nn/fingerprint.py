"""Which base an adapter belongs to: a digest of the weights of a module."""

from __future__ import annotations

import hashlib
import json

from turret.spi import Host

from .module import Module
from .packed import PackedLinear


def base_fingerprint(model: Module) -> str:
    """SHA-256 over names, shapes, dtypes and bytes of the base schema, packed weights by their codes and scales.

    Adapters count for nothing; equal bits give the same digest on every backend.
    """
    digest = hashlib.sha256()
    parameters = dict(model.named_parameters(extra=False))
    packed = {name: module for name, module in model.named_modules() if isinstance(module, PackedLinear)}
    for name in sorted(parameters):
        parameter = parameters[name]
        _add(digest, [name, parameter.dtype], parameter.numpy())
    for name in sorted(packed):
        weight = packed[name].weight
        for part, array in sorted(weight.arrays().items()):
            _add(digest, [name, part, list(weight.shape), weight.block, weight.scale_code], array)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, facts: list[object], array: Host) -> None:
    """One array, after a line that says what and how long it is."""
    head = [*facts, list(array.shape), array.dtype.newbyteorder("<").str]
    digest.update(json.dumps(head).encode() + b"\n")
    digest.update(array.astype(array.dtype.newbyteorder("<"), order="C", copy=False).tobytes())
