"""The module tree: names, order, sealing, transfer and state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turret.nn import Init, LayerNorm, Linear, Module, ModuleList
from turret.registry import OpenBackend
from turret.spi import BackendNotFound, ConfigError, DTypeError, ShapeError
from turret.spi.array_api import required_from
from turret.tensor import Parameter, Tensor, tensor

Make = Callable[..., OpenBackend]


def parameter(*values: float) -> Parameter:
    return Parameter(np.array(values or (0.0,), np.float32))


class Leaf(Module):
    def __init__(self, *names: str) -> None:
        for name in names or ("weight",):
            setattr(self, name, parameter(1, 2))


class Tree(Module):
    def __init__(self) -> None:
        self.second: Parameter | None = None
        self.first = parameter(1)
        self.items = ModuleList([Leaf("b", "a"), Leaf()])
        self.second = parameter(2)
        self.other = Leaf()
        self.table = tensor([1.0, 2.0])


TREE = ["first", "second", "items.0.b", "items.0.a", "items.1.weight", "other.weight"]


def test_names_are_paths_in_order_of_registration(plain: OpenBackend) -> None:
    tree = Tree()
    assert [name for name, _ in tree.named_parameters()] == TREE
    assert [id(p) for p in tree.parameters()] == [id(p) for _, p in tree.named_parameters()]
    assert tree.parameters()[0] is tree.first
    assert [name for name, _ in tree.children()] == ["items", "other"]
    assert [type(m).__name__ for m in tree.modules()] == ["Tree", "ModuleList", "Leaf", "Leaf", "Leaf"]
    assert tree.parameter_count() == 2 + 4 * 2
    assert list(tree.state_dict()) == TREE


def test_a_module_needs_no_call_to_its_parents_constructor(plain: OpenBackend) -> None:
    assert Module().parameters() == []
    assert Module().parameter_count() == 0


def test_module_lists_are_sequences(plain: OpenBackend) -> None:
    leaves = [Leaf(), Leaf(), Leaf()]
    found = ModuleList(leaf for leaf in leaves)
    assert len(found) == 3
    assert list(found) == leaves
    assert (found[0], found[-1]) == (leaves[0], leaves[2])
    assert len(ModuleList([])) == 0
    for wrong in (None, parameter(), 3):
        with pytest.raises(ConfigError, match=rf"ModuleList got {type(wrong).__name__} at 1; wanted a Module"):
            ModuleList([Leaf(), wrong])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["", "a.b", ".", "parameters", "to", "modules"])
def test_impossible_names_are_refused(plain: OpenBackend, name: str) -> None:
    for value in (parameter(), Leaf(), tensor([1.0])):
        module = Module()
        with pytest.raises(ConfigError, match=r"got the name .*wanted one that is not empty, has no '\.'"):
            setattr(module, name, value)
        assert module.parameters() == []
        if isinstance(value, Parameter):
            assert not value.owned


def test_an_attached_module_is_sealed(plain: OpenBackend) -> None:
    tree = Tree()
    for value in (parameter(), Leaf(), tensor([1.0])):
        with pytest.raises(ConfigError, match=r"Leaf\.extra: the module is attached to a parent and sealed"):
            tree.other.extra = value
        with pytest.raises(ConfigError, match="sealed"):
            tree.items[0].extra = value
    tree.later = Leaf()  # the root is open
    tree.other.plain_attribute = 3


def test_a_module_has_one_parent(plain: OpenBackend) -> None:
    tree, shared = Tree(), Leaf()
    tree.here = shared
    for attach in (
        lambda: setattr(tree, "there", shared),
        lambda: ModuleList([shared]),
        lambda: setattr(Module(), "x", shared),
    ):
        with pytest.raises(ConfigError, match=r"has a parent already; a module tree is no graph"):
            attach()
    assert "there.weight" not in dict(tree.named_parameters())


def test_cycles_are_refused(plain: OpenBackend) -> None:
    top, middle, bottom = Module(), Module(), Module()
    with pytest.raises(ConfigError, match="no graph"):
        top.self = top
    middle.bottom = bottom
    with pytest.raises(ConfigError, match="sealed"):
        bottom.top = middle
    top.middle = middle
    with pytest.raises(ConfigError, match="sealed"):
        middle.top = top


def test_a_parameter_has_one_owner(plain: OpenBackend) -> None:
    leaf = Leaf()
    weight = leaf.parameters()[0]
    for owner in (leaf, Module()):
        with pytest.raises(ConfigError, match=r"has an owner already; a module tree shares none"):
            owner.again = weight


def test_what_is_registered_is_neither_replaced_nor_deleted(plain: OpenBackend) -> None:
    tree = Tree()
    for name in ("first", "items"):
        for value in (None, 3, parameter(), Leaf(), tensor([1.0])):
            with pytest.raises(ConfigError, match=rf"Tree\.{name} is registered"):
                setattr(tree, name, value)
    for name in ("first", "items", "table"):
        with pytest.raises(ConfigError, match=r"is registered and cannot be deleted"):
            delattr(tree, name)
    for wrong in (None, parameter(), Leaf()):
        with pytest.raises(ConfigError, match=r"Tree\.table is registered"):
            tree.table = wrong
    assert [name for name, _ in tree.named_parameters()] == TREE
    with pytest.raises(AttributeError):
        del tree.nothing


def test_buffers_can_be_replaced_and_are_not_saved(plain: OpenBackend) -> None:
    tree = Tree()
    tree.table = tensor([5.0])
    assert tree.table.numpy().tolist() == [5]
    assert "table" not in tree.state_dict()


def test_freezing_takes_everything_below(plain: OpenBackend) -> None:
    tree = Tree()
    assert tree.items[0].freeze() is tree.items[0]
    assert [p.trainable for p in tree.parameters()] == [True, True, False, False, True, True]
    tree.freeze()
    assert not any(p.trainable for p in tree.parameters())


class Adapted(Leaf):
    def __init__(self) -> None:
        super().__init__()
        self.extra = [("adapter", parameter(7))]

    def extra_parameters(self) -> Iterable[tuple[str, Parameter]]:
        return self.extra


def test_extra_parameters_are_listed_moved_and_frozen_but_no_part_of_the_schema(
    plain: OpenBackend, make_backend: Make
) -> None:
    tree = Module()
    tree.layer = Adapted()
    adapter = tree.layer.extra[0][1]
    assert [name for name, _ in tree.named_parameters()] == ["layer.weight", "layer.adapter"]
    assert [name for name, _ in tree.named_parameters(extra=False)] == ["layer.weight"] == list(tree.state_dict())
    assert tree.parameter_count() == 2
    assert adapter in tree.parameters()
    assert adapter.backend is plain
    other = make_backend(name="other")
    tree.to(other).freeze()
    assert adapter.backend is other
    assert not adapter.trainable


def test_to_moves_values_gradients_and_buffers(plain: OpenBackend, make_backend: Make) -> None:
    tree, other = Tree(), make_backend(name="other")
    assert tree.first is not None
    tree.first.grad = tensor([3.0])
    before = tree.state_dict()
    assert tree.to(other) is tree
    assert {p.backend for p in tree.parameters()} == {other}
    assert {p.version for p in tree.parameters()} == {1}
    assert (tree.first.grad.backend, tree.first.grad.numpy().tolist()) == (other, [3])
    assert (tree.table.backend, tree.table.numpy().tolist()) == (other, [1, 2])
    assert {k: v.tolist() for k, v in tree.state_dict().items()} == {k: v.tolist() for k, v in before.items()}


def test_to_leaves_alone_what_is_there_already(plain: OpenBackend) -> None:
    tree = Tree()
    value = tree.parameters()[0].value
    tree.to(plain)
    assert tree.parameters()[0].value is value
    assert tree.parameters()[0].version == 0


class Full(Exception):
    pass


def with_room_for(make: Make, count: int) -> OpenBackend:
    """A backend whose from_host fails after `count` calls once it is open."""
    required = required_from(np)
    real, room = required.storage, [1_000]

    class Storage:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def from_host(self, host: Any, /, *, dtype: Any = None) -> Any:
            room[0] -= 1
            if room[0] < 0:
                raise Full
            return real.from_host(host, dtype=dtype)

    opened = make(replace(required, storage=Storage()), name="small")
    room[0] = count
    return opened


@pytest.mark.parametrize("room", range(8))
def test_a_transfer_that_fails_moves_nothing(plain: OpenBackend, make_backend: Make, room: int) -> None:
    tree = Tree()
    assert tree.first is not None
    tree.first.grad = tensor([3.0])
    before = [(p.value, p.version, p.grad) for p in tree.parameters()]
    table, target = tree.table, with_room_for(make_backend, room)  # six values, one gradient, one buffer are wanted
    with pytest.raises(Full):
        tree.to(target)
    assert all(p.backend is plain for p in tree.parameters())
    for (value, version, gradient), p in zip(before, tree.parameters(), strict=True):
        assert p.value is value
        assert p.grad is gradient
        assert p.version == version
    assert tree.table is table


def test_a_transfer_with_just_enough_room_succeeds(plain: OpenBackend, make_backend: Make) -> None:
    tree = Tree()
    assert tree.first is not None
    tree.first.grad = tensor([3.0])
    tree.to(with_room_for(make_backend, 8))
    assert tree.table.backend.name == "small"


def test_to_an_unknown_backend_says_so(plain: OpenBackend) -> None:
    tree = Tree()
    with pytest.raises(BackendNotFound, match="nowhere"):
        tree.to("nowhere")
    assert tree.parameters()[0].backend is plain


def test_state_makes_a_round_trip_in_copies(backend: OpenBackend) -> None:
    source, target = Linear(3, 2, init=Init(1)), Linear(3, 2, init=Init(2))
    state = source.state_dict()
    target.load_state_dict(state)
    for value in state.values():
        value[...] = 9
    again = target.state_dict()
    for name, parameter in source.named_parameters():
        assert again[name].tobytes() == parameter.numpy().tobytes()
    assert {p.version for p in target.parameters()} == {1}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda s: s.pop("bias"), ConfigError, r"missing \['bias'\], unknown \[\]"),
        (lambda s: s.update(more=np.ones(1)), ConfigError, r"missing \[\], unknown \['more'\]"),
        (lambda s: s.update(bias=np.ones((3,), np.float32)), ShapeError, r"'bias' has shape \(3,\); wanted \(2,\)"),
        (lambda s: s.update(bias=np.ones((1, 2), np.float32)), ShapeError, r"'bias' has shape \(1, 2\); wanted \(2,\)"),
        (lambda s: s.update(bias=np.ones(2, np.int64)), DTypeError, r"'bias' got NumPy dtype int64; wanted .*floats"),
        (lambda s: s.update(bias=[1.0, 2.0]), DTypeError, r"'bias' got list; wanted a NumPy array of floats"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(
    plain: OpenBackend, change: Any, error: type[Exception], message: str
) -> None:
    layer = Linear(3, 2, init=Init(1))
    state = {name: np.full_like(value, 5) for name, value in layer.state_dict().items()}
    change(state)
    before = {name: value.tobytes() for name, value in layer.state_dict().items()}
    with pytest.raises(error, match=message):
        layer.load_state_dict(state)
    assert {name: value.tobytes() for name, value in layer.state_dict().items()} == before
    assert {p.version for p in layer.parameters()} == {0}


def test_a_load_that_fails_on_the_device_changes_nothing(plain: OpenBackend, make_backend: Make) -> None:
    layer = Linear(3, 2, init=Init(1))
    state = {name: np.full_like(value, 5) for name, value in layer.state_dict().items()}
    layer.to(with_room_for(make_backend, 3))  # room for two values to move and one to load
    with pytest.raises(Full):
        layer.load_state_dict(state)
    assert {p.version for p in layer.parameters()} == {1}
    assert not (layer.weight.numpy() == 5).any()


def test_parameters_of_two_subtrees_may_have_equal_names(plain: OpenBackend) -> None:
    tree = Module()
    tree.a, tree.b = LayerNorm(2, init=Init(0)), LayerNorm(2, init=Init(0))
    assert [name for name, _ in tree.named_parameters()] == ["a.scale", "a.bias", "b.scale", "b.bias"]
    assert isinstance(tree.a.scale, Tensor)
