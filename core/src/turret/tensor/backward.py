"""The reverse pass: gradients computed in isolation, then handed over whole."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from turret.registry import OpenBackend
from turret.spi import BackendMismatch, DTypeError, GraphError, ShapeError, StaleGraph

from .graph import Native, Node, Parts
from .value import Parameter, Tensor, same_backend


class Gradients:
    """Gradient of one loss for every leaf it depends on: a mapping from leaf tensors (by identity) to tensors."""

    __slots__ = ("_found", "backend")

    def __init__(self, backend: OpenBackend, found: dict[Tensor, Native]) -> None:
        self.backend = backend
        self._found = found

    def __getitem__(self, leaf: Tensor) -> Tensor:
        found = self.get(leaf)
        if found is None:
            raise GraphError(f"no gradient for {leaf!r}: the loss does not depend on it, or it does not require one")
        return found

    def get(self, leaf: Tensor) -> Tensor | None:
        """The gradient, or None where the loss does not depend on `leaf`."""
        found = self.native(leaf)
        return None if found is None else Tensor(found, self.backend, leaf.dtype)

    def native(self, leaf: Tensor) -> Native | None:
        """The gradient as the backend's own array."""
        return self._found.get(leaf)

    def __contains__(self, leaf: Tensor) -> bool:
        return leaf in self._found

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __add__(self, other: Gradients) -> Gradients:
        """Sums leaf by leaf; a leaf that only one side knows keeps its gradient.

        Raises: BackendMismatch.
        """
        if other.backend is not self.backend:
            raise BackendMismatch(
                f"gradients on {self.backend.spec} and {other.backend.spec} were added; wanted one backend"
            )
        add, leaves = self.backend.tools.elementwise.add, dict(self._found)
        for leaf, value in other._found.items():
            known = leaves.get(leaf)
            leaves[leaf] = value if known is None else add(known, value)
        return Gradients(self.backend, leaves)

    def add_to_parameters(self) -> None:
        """Adds to `grad` of every parameter among the leaves; computes all sums before it stores the first.

        Raises: BackendMismatch for a parameter that has moved since; nothing is changed then.
        """
        add = self.backend.tools.elementwise.add
        sums: list[tuple[Parameter, Tensor]] = []
        for leaf, value in self._found.items():
            if isinstance(leaf, Parameter):
                for holder in (leaf, leaf.grad):
                    if holder is not None and holder.backend is not self.backend:
                        raise BackendMismatch(
                            f"a gradient on {self.backend.spec} met {holder!r}; wanted one backend: run the forward "
                            f"again after module.to(...)"
                        )
                if leaf.grad is not None:
                    value = add(leaf.grad.value, value)
                sums.append((leaf, Tensor(value, self.backend, leaf.dtype)))
        for parameter, total in sums:
            parameter.grad = total


def backward(loss: Tensor, seed: Tensor | None = None, *, retain: bool = False) -> Gradients:
    """Gradients of `loss` for every leaf that requires one.

    seed: the gradient of `loss` itself, of its shape and dtype; 1 for a loss of rank 0. The graph is freed unless
    `retain`. No parameter is touched. Source: reverse accumulation, Griewank and Walther 2008, section 3.2.

    Raises: GraphError (no graph, freed graph, missing seed), StaleGraph, ShapeError, DTypeError, BackendMismatch, and
    what a VJP raises; nothing is freed then.
    """
    gradients, order = _differentiate(loss, seed)
    if not retain:
        _free(order)
    return gradients


def add_gradients(loss: Tensor, seed: Tensor | None, *, retain: bool) -> None:
    """`backward` whose result goes to the parameters' `grad`; the graph is freed only after that has succeeded."""
    gradients, order = _differentiate(loss, seed)
    gradients.add_to_parameters()
    if not retain:
        _free(order)


def _differentiate(loss: Tensor, seed: Tensor | None) -> tuple[Gradients, list[Node]]:
    """The gradients and the nodes that were walked."""
    if not isinstance(loss, Tensor):
        raise DTypeError(f"backward got {type(loss).__name__}; wanted a Tensor")
    root = loss.node
    if root is None and not loss.requires_grad:
        raise GraphError(
            f"backward of {loss!r} without a graph; wanted the result of an operation on an input that requires a "
            f"gradient, computed outside no_grad()"
        )
    start = _seed(loss, seed)
    if root is None:
        return Gradients(loss.backend, {loss: start}), []
    order = _topological(root)
    _check_fresh(order)
    return Gradients(loss.backend, _accumulate(loss.backend, root, start, order)), order


def _free(order: list[Node]) -> None:
    for node in order:
        node.free()


def _seed(loss: Tensor, seed: Tensor | None) -> Native:
    storage = loss.backend.tools.storage
    if seed is None:
        if loss.shape != ():
            raise GraphError(
                f"backward of a tensor of shape {loss.shape} needs a seed of that shape; reduce it to a scalar with "
                f".mean() or .sum(), or pass seed="
            )
        return storage.full((), 1.0, dtype=loss.dtype)
    same_backend("backward with a seed", loss, seed)
    if seed.shape != loss.shape:
        raise ShapeError(
            f"the seed has shape {seed.shape}; wanted the shape of the differentiated tensor, {loss.shape}"
        )
    if seed.dtype != loss.dtype:
        raise DTypeError(f"the seed has dtype {seed.dtype}; wanted that of the differentiated tensor, {loss.dtype}")
    return seed.value


def _topological(root: Node) -> list[Node]:
    """Every reachable node, each after all nodes that use it. Serial numbers grow along edges, so sorting suffices."""
    seen = {root}
    stack = [root]
    while stack:
        for parent in stack.pop().parents:
            if isinstance(parent, Node) and parent not in seen:
                seen.add(parent)
                stack.append(parent)
    return sorted(seen, key=attrgetter("serial"), reverse=True)


def _check_fresh(order: list[Node]) -> None:
    for node in order:
        if node.vjp is None:
            raise GraphError(
                f"the graph of '{node.name}' was freed by an earlier backward; run the forward again, or pass "
                f"retain=True to the earlier one"
            )
        for parameter, version in node.watched:
            if parameter.version != version:
                raise StaleGraph(
                    f"a parameter of shape {parameter.shape} used by '{node.name}' was changed after the forward "
                    f"(version {version}, now {parameter.version}); run the forward again"
                )


def _accumulate(backend: OpenBackend, root: Node, start: Native, order: list[Node]) -> dict[Tensor, Native]:
    """Gradients of the leaves: every node gives its own away, so that only leaves are left in the end."""
    add = backend.tools.elementwise.add
    pending: dict[Any, Native] = {root: start}
    for node in order:
        gradient = pending.pop(node, None)
        if gradient is None or node.vjp is None:
            continue
        for parent, part in zip(node.parents, node.vjp(gradient, node.needs), strict=True):
            if parent is not None and part is not None:
                known = pending.get(parent)
                if known is None:
                    pending[parent] = part
                else:
                    pending[parent] = known.merge(part) if type(part) is Parts else add(known, part)
    return pending
