"""What a step learns from a batch: which arrays go to the device, and which loss comes of them."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np

from turret.data import Batch
from turret.data.example_batches import ExampleBatch
from turret.models import LanguageModel
from turret.nn import Segments
from turret.nn.segments import Spans, text_spans
from turret.registry import OpenBackend
from turret.spi import Host
from turret.tensor import Tensor, ops, tensor

B = TypeVar("B")
B_contra = TypeVar("B_contra", contravariant=True)
Placed = tuple[Any, ...]
"""Arguments of a captured step: tensors, and what is part of the program."""


class Objective(Protocol[B_contra]):
    """The loss of a batch."""

    def weight(self, batch: B_contra) -> float:
        """What the batch counts for among several of one step."""
        ...

    def place(self, batch: B_contra, backend: OpenBackend) -> Placed:
        """The batch on the device."""
        ...

    def logits(self, model: LanguageModel, placed: Placed) -> Tensor:
        """What the model makes of it."""
        ...

    def loss(self, logits: Tensor, placed: Placed) -> Tensor:
        """Nats per token that counts, float32 (). logits: float32."""
        ...


class NextToken:
    """The mean over every token of every window."""

    def weight(self, batch: Batch) -> float:
        return float(batch.targets.size)

    def place(self, batch: Batch, backend: OpenBackend) -> Placed:
        return tuple(tensor(x, backend=backend) for x in batch)

    def logits(self, model: LanguageModel, placed: Placed) -> Tensor:
        return model(placed[0])

    def loss(self, logits: Tensor, placed: Placed) -> Tensor:
        return ops.cross_entropy(logits, placed[1])


class LearnedTokens:
    """The mean over the tokens of examples that are to be learned; no example sees another.

    Where the backend compiles, one program serves every layout of examples in rows; elsewhere attention is computed
    example by example, which is less work. Only what is learned goes through the head.
    """

    def weight(self, batch: ExampleBatch) -> float:
        return float(batch.weights.sum(dtype=np.float64))

    def place(self, batch: ExampleBatch, backend: OpenBackend) -> Placed:
        def put(host: Host) -> Tensor:
            return tensor(host, backend=backend)

        given = (put(batch.inputs), put(batch.segments), put(batch.positions))
        if "compile" in backend.tools.native:
            return (*given, None, None, put(batch.targets), put(batch.weights))
        rows = np.flatnonzero(batch.weights)
        targets, weights = batch.targets.reshape(-1)[rows], batch.weights.reshape(-1)[rows]
        return (*given, text_spans(batch.segments), put(rows.astype(np.int32)), put(targets), put(weights))

    def logits(self, model: LanguageModel, placed: Placed) -> Tensor:
        ids, numbers, positions = placed[:3]
        spans: Spans | None = placed[3]
        rows: Tensor | None = placed[4]
        return model(ids, segments=Segments(ids=numbers, positions=positions, spans=spans), rows=rows)

    def loss(self, logits: Tensor, placed: Placed) -> Tensor:
        return ops.cross_entropy(logits, placed[5], placed[6])
