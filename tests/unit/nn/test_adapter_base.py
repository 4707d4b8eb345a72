"""What adapters stand on: replaced children, packed layers, and the fingerprint of a base."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import pytest

from turret.models import DecoderConfig, MiniConfig, build_model
from turret.nn import Init, LayerNorm, Linear, Module, ModuleList, PackedLinear, base_fingerprint, pack_linears
from turret.registry import OpenBackend, use_backend
from turret.spi import CaptureError, ConfigError, NonFiniteError, ShapeError
from turret.tensor import Parameter, Tensor, capture, tensor

MINI = MiniConfig(vocabulary=19, width=32, heads=4, kv_heads=2, feed_forward=48, tied_head=False)


def norm() -> LayerNorm:
    return LayerNorm(2, init=Init(0))


class Tree(Module):
    def __init__(self) -> None:
        self.one, self.items, self.last = norm(), ModuleList([norm(), norm()]), norm()


def test_a_replaced_child_keeps_its_place_and_frees_the_old_one(backend: OpenBackend) -> None:
    tree, new = Tree(), norm()
    outer = Module()
    outer.tree = tree  # sealed
    old = tree.one
    assert tree.replace_child("one", new) is old
    assert tree.one is new
    assert [name for name, _ in tree.children()] == ["one", "items", "last"]
    assert [n for n, m in outer.named_modules()] == [
        *("", "tree", "tree.one", "tree.items", "tree.items.0", "tree.items.1", "tree.last")
    ]
    assert dict(outer.named_modules())["tree.one"] is new
    Module().again = old  # it may have another parent
    with pytest.raises(ConfigError, match="has a parent already"):
        Module().again = new
    inner = norm()
    tree.items.replace_child("1", inner)
    assert tree.items[1] is inner
    assert list(tree.items) == [tree.items[0], inner]


def test_what_cannot_take_a_place_is_refused_and_changes_nothing(backend: OpenBackend) -> None:
    tree, outer = Tree(), Module()
    outer.tree = tree
    before = [module for _, module in outer.named_modules()]
    for name, new, message in (
        ("two", norm(), r"Tree\.two: no such child; it has one, items, last"),
        ("items.0", norm(), "no such child"),
        ("one", None, "got NoneType for a child"),
        ("one", Parameter(np.ones(2, np.float32)), "got Parameter for a child"),
        ("one", tree.last, "has a parent already"),
        ("one", tree.one, "has a parent already"),
        ("one", tree, "has a parent already"),
        ("one", outer, "no graph"),
    ):
        with pytest.raises(ConfigError, match=message):
            tree.replace_child(name, new)  # type: ignore[arg-type]
        assert all(a is b for a, (_, b) in zip(before, outer.named_modules(), strict=True))
    with pytest.raises(ConfigError, match="it has none"):
        norm().replace_child("x", norm())


def test_no_child_is_replaced_in_a_captured_step() -> None:
    with use_backend("tpu:cpu"):
        tree = Tree()

        def step(x: Tensor) -> Tensor:
            tree.replace_child("one", norm())
            return tree.last(x)

        with pytest.raises(CaptureError, match="a module is replaced"):
            capture(step, state=[tree])(tensor([[1.0, 2.0]]))


def test_a_linear_of_parameters(backend: OpenBackend) -> None:
    weight, bias = (Parameter(np.ones(shape, np.float32)) for shape in ((3, 2), (3,)))
    made = Linear.of(weight, bias)
    assert made.weight is weight
    assert made(tensor([[1.0, 2.0]])).numpy().tolist() == [[4.0, 4.0, 4.0]]
    assert [n for n, _ in Linear.of(Parameter(np.ones((3, 2), np.float32))).named_parameters()] == ["weight"]
    with pytest.raises(ConfigError, match="has an owner already"):
        Linear.of(weight)
    for shapes in (((3,), None), ((3, 2, 1), None), ((3, 2), (2,))):
        parts = [None if s is None else Parameter(np.ones(s, np.float32)) for s in shapes]
        with pytest.raises(ShapeError, match=r"Linear\.of got weight"):
            Linear.of(*parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [True, False])
def test_an_unpacked_layer_is_what_the_packed_one_stands_for(backend: OpenBackend, bias: bool) -> None:
    packed = PackedLinear.of(Linear(64, 5, init=Init(0), bias=bias), scales="dynamic")
    made, x = packed.unpacked(), tensor(np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32))
    assert made.weight.numpy().tobytes() == packed.weight.unpack().numpy().tobytes()
    assert (made.bias is None) is not bias
    np.testing.assert_allclose(made(x).numpy(), packed(x).numpy(), rtol=1e-5, atol=1e-6)
    assert not made.weight.trainable
    assert PackedLinear.of(made, scales="dynamic").weight.shape == (5, 64)


@pytest.mark.parametrize("config", [MINI, DecoderConfig(vocabulary=19)], ids=["mini", "decoder"])
def test_linears_are_packed_and_the_rest_stays(backend: OpenBackend, config: Any) -> None:
    model = build_model(config, seed=1)
    before, ids = model.state_dict(), tensor(np.arange(10, dtype=np.int32).reshape(1, 10))
    linears = {name: m for name, m in model.named_modules() if isinstance(m, Linear)}
    wanted = {n: PackedLinear.of(m, scales="dynamic").weight.arrays() for n, m in linears.items()}
    whole = model(ids).numpy()
    names = pack_linears(model)
    assert names == [name for name in linears if name != "language_model_head"]
    after: Any = dict(model.named_modules())
    for name in names:
        assert type(after[name]) is PackedLinear
        arrays = after[name].weight.arrays()
        assert {n: x.tobytes() for n, x in arrays.items()} == {n: x.tobytes() for n, x in wanted[name].items()}
    assert type(after["language_model_head"]) is Linear
    state = model.state_dict()
    gone = {f"{name}.weight" for name in names}
    assert {n: x.tobytes() for n, x in state.items()} == {n: x.tobytes() for n, x in before.items() if n not in gone}
    assert 0 < np.abs(model(ids).numpy() - whole).max() < 1
    assert pack_linears(model) == []


def test_skip_names_what_stays(backend: OpenBackend) -> None:
    assert len(pack_linears(build_model(MINI), skip=())) == 15
    assert len(pack_linears(build_model(MINI), skip=["language_model_head", "blocks.0.*"])) == 7
    model = build_model(MINI)
    with pytest.raises(ConfigError, match=r"skip 'lm_head' matches no linear layer; wanted query, key"):
        pack_linears(model, skip=["lm_head"])
    for wrong in (None, 3, [3]):
        with pytest.raises(ConfigError, match=r"skip .*; wanted names of linear layers, or patterns: query"):
            pack_linears(model, skip=wrong)  # type: ignore[arg-type]
    for options in ({"block": 48}, {"scales": "no"}):
        with pytest.raises(ConfigError):
            pack_linears(model, **options)
    assert not any(isinstance(m, PackedLinear) for m in model.modules())


@pytest.mark.parametrize("value", [math.nan, -math.inf, 3.0e38])
def test_a_weight_that_cannot_be_packed_leaves_all_as_they_are(backend: OpenBackend, value: float) -> None:
    model = build_model(MINI, seed=1)
    state = model.state_dict()
    state["blocks.1.feed_forward.down.weight"][:, ::2] = value
    state["blocks.1.feed_forward.down.weight"][3, ::2] *= -1
    model.load_state_dict(state)
    with pytest.raises(NonFiniteError):
        pack_linears(model)
    assert not any(isinstance(m, PackedLinear) for m in model.modules())


def test_each_float_weight_goes_before_the_next_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    with use_backend("cpu"):
        model = build_model(MINI)
        alive = [weakref.ref(m) for m in model.modules() if isinstance(m, Linear)]
        most, real = [], PackedLinear.of.__func__  # type: ignore[attr-defined]

        def counted(cls: type[PackedLinear], /, linear: Linear, **options: Any) -> PackedLinear:
            most.append(sum(ref() is not None for ref in alive))
            return real(cls, linear, **options)  # type: ignore[no-any-return]

        monkeypatch.setattr(PackedLinear, "of", classmethod(counted))
        pack_linears(model)
        assert most == list(range(15, 1, -1))


def test_the_fingerprint_is_of_names_shapes_dtypes_and_bits(backend: OpenBackend) -> None:
    model = build_model(MINI, seed=1)
    mark = base_fingerprint(model)
    assert len(mark) == 64
    assert base_fingerprint(build_model(MINI, seed=1)) == mark
    assert base_fingerprint(build_model(MINI, seed=2)) != mark
    state = model.state_dict()
    for name in state:
        flat = state[name].reshape(-1)
        kept = flat[-1]
        flat[-1] = np.nextafter(kept, np.float32(9))
        model.load_state_dict(state)
        assert base_fingerprint(model) != mark
        flat[-1] = kept
    model.load_state_dict(state)
    assert base_fingerprint(model) == mark

    def of(**parts: Any) -> str:
        made = Module()
        for name, value in parts.items():
            setattr(made, name, Parameter(value))
        return base_fingerprint(made)

    one = np.arange(6, dtype=np.float32)
    marks = [of(a=one), of(b=one), of(a=one.reshape(2, 3)), of(a=one.astype(np.float16)), of(a=one, b=one), of()]
    assert len(set(marks)) == 6
    assert of(a=one, b=one + 1) == of(b=one + 1, a=one)
    assert of(a=one[:3], b=one[3:]) != of(a=one[:2], b=one[2:])


def test_the_fingerprint_is_the_same_on_every_backend(backend: OpenBackend) -> None:
    model = build_model(MINI, seed=1)
    pack_linears(model)
    mark = base_fingerprint(model)
    assert base_fingerprint(model.to("tpu:cpu")) == mark
    layer: Any = dict(model.named_modules())["blocks.0.attention.key"]
    codes = layer.codes.numpy()
    codes[0] ^= 16
    with use_backend("tpu:cpu"):
        layer.codes = tensor(codes)
    assert base_fingerprint(model) != mark
