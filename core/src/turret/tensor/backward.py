"""The reverse pass: gradients computed in isolation, then handed over whole."""

from __future__ import annotations

from collections.abc import Iterator

from turret.registry import OpenBackend
from turret.spi import DTypeError, GraphError, ShapeError, StaleGraph

from .graph import Native, Node
from .value import Parameter, Tensor


class Gradients:
    """Gradient of one loss for every leaf it depends on: a mapping from leaf tensors (by identity) to tensors."""

    __slots__ = ("_by_id",)

    def __init__(self, leaves: dict[int, tuple[Tensor, Native]]) -> None:
        self._by_id = leaves

    def __getitem__(self, leaf: Tensor) -> Tensor:
        if id(leaf) not in self._by_id:
            raise GraphError(f"no gradient for {leaf!r}: the loss does not depend on it, or it does not require one")
        return self._wrap(self._by_id[id(leaf)])

    def get(self, leaf: Tensor) -> Tensor | None:
        """The gradient, or None where the loss does not depend on `leaf`."""
        found = self._by_id.get(id(leaf))
        return None if found is None else self._wrap(found)

    def native(self, leaf: Tensor) -> Native | None:
        """The gradient as the backend's own array."""
        found = self._by_id.get(id(leaf))
        return None if found is None else found[1]

    def __contains__(self, leaf: Tensor) -> bool:
        return id(leaf) in self._by_id

    def __iter__(self) -> Iterator[Tensor]:
        return (leaf for leaf, _ in self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __add__(self, other: Gradients) -> Gradients:
        """Sums leaf by leaf; a leaf that only one side knows keeps its gradient."""
        leaves = dict(self._by_id)
        for key, (leaf, value) in other._by_id.items():
            known = leaves.get(key)
            leaves[key] = (leaf, value if known is None else leaf.backend.tools.elementwise.add(known[1], value))
        return Gradients(leaves)

    def add_to_parameters(self) -> None:
        """Adds to `grad` of every parameter among the leaves; computes all sums before it stores the first."""
        sums: list[tuple[Parameter, Tensor]] = []
        for leaf, value in self._by_id.values():
            if isinstance(leaf, Parameter):
                if leaf.grad is not None:
                    value = leaf.backend.tools.elementwise.add(leaf.grad.value, value)
                sums.append((leaf, Tensor(value, leaf.backend, leaf.dtype)))
        for parameter, total in sums:
            parameter.grad = total

    @staticmethod
    def _wrap(found: tuple[Tensor, Native]) -> Tensor:
        leaf, value = found
        return Tensor(value, leaf.backend, leaf.dtype)


def backward(loss: Tensor, seed: Tensor | None = None, *, retain: bool = False) -> Gradients:
    """Gradients of `loss` for every leaf that requires one.

    seed: the gradient of `loss` itself, of its shape and dtype; 1 for a loss of rank 0. The graph is freed unless
    `retain`. No parameter is touched. Source: reverse accumulation, Griewank and Walther 2008, section 3.2.

    Raises: GraphError (no graph, freed graph, missing seed), StaleGraph, ShapeError; nothing is freed then.
    """
    root = loss.node
    start = _seed(loss, seed)
    if root is None:
        if loss.requires_grad:
            return Gradients({id(loss): (loss, start)})
        raise GraphError(
            "backward of a tensor without a graph: no input required a gradient, or it was computed under no_grad()"
        )
    order = _topological(root)
    _check_fresh(order)
    leaves = _accumulate(loss.backend, root, start, order)
    if not retain:
        for node in order:
            node.free()
    return Gradients(leaves)


def _seed(loss: Tensor, seed: Tensor | None) -> Native:
    storage = loss.backend.tools.storage
    if seed is None:
        if loss.shape != ():
            raise GraphError(
                f"backward of a tensor of shape {loss.shape} needs a seed of that shape; reduce it to a scalar with "
                f".mean() or .sum(), or pass seed="
            )
        return storage.full((), 1.0, dtype=loss.dtype)
    if seed.shape != loss.shape:
        raise ShapeError(f"the seed has shape {seed.shape}; wanted the shape of the differentiated tensor, {loss.shape}")
    if seed.dtype != loss.dtype or seed.backend is not loss.backend:
        raise DTypeError(f"the seed is {seed!r}; wanted dtype {loss.dtype} on {loss.backend.spec}")
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
    return sorted(seen, key=lambda node: node.serial, reverse=True)


def _check_fresh(order: list[Node]) -> None:
    for node in order:
        if node.vjp is None:
            raise GraphError(
                f"the graph of '{node.name}' was freed by an earlier backward; run the forward again, or pass retain=True "
                f"to the earlier one"
            )
        for parameter, version in node.watched:
            if parameter.version != version:
                raise StaleGraph(
                    f"a parameter of shape {parameter.shape} used by '{node.name}' was changed after the forward "
                    f"(version {version}, now {parameter.version}); run the forward again"
                )


def _accumulate(
    backend: OpenBackend, root: Node, start: Native, order: list[Node]
) -> dict[int, tuple[Tensor, Native]]:
    add = backend.tools.elementwise.add
    pending: dict[Node, Native] = {root: start}
    leaves: dict[int, tuple[Tensor, Native]] = {}
    for node in order:
        gradient = pending.pop(node, None)
        if gradient is None or node.vjp is None:
            continue
        parents = node.parents
        for parent, part in zip(parents, node.vjp(gradient, tuple([p is not None for p in parents])), strict=True):
            if parent is None or part is None:
                continue
            if isinstance(parent, Node):
                known = pending.get(parent)
                pending[parent] = part if known is None else add(known, part)
            else:
                found = leaves.get(id(parent))
                leaves[id(parent)] = (parent, part if found is None else add(found[1], part))
    return leaves
