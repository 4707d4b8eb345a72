"""models/gradients/decoder-one-head-B8-T9 on cuda:emulated, seed 0: the calls that the conformance suite made, and what it wanted.

python repro.py    exits with 1 where a result is not what was wanted. versions.json tells what it was written on.
"""

import sys
from pathlib import Path

import numpy as np

from turret.registry import open_backend
from turret.spi import Packed

HERE = Path(__file__).resolve().parent
tools = open_backend(sys.argv[1] if len(sys.argv) > 1 else "cuda:emulated").tools
native = type(tools.storage.full((1,), 0.0, dtype="float32"))
said, status = "nothing is wrong here", 0
failed = []


def load(name):
    return np.load(HERE / "arrays" / f"{name}.npy")


def check(label, array, dtype, want, allowed, greatest):
    """allowed: per element; 0 wants every bit. greatest: what is beyond it may be infinite."""
    if not isinstance(array, native):
        return failed.append(f"{label}: got {type(array)}, wanted {native}")
    if tuple(array.shape) != want.shape or tools.storage.dtype_of(array) != dtype:
        got = f"{tools.storage.dtype_of(array)} {tuple(array.shape)}"
        return failed.append(f"{label}: got {got}, wanted {dtype} {want.shape}")
    got = tools.storage.to_host(array)
    with np.errstate(all="ignore"):
        wide, truth = got.astype(np.float64), want.astype(np.float64)
        alike = (got == want) & ((allowed > 0) | (np.signbit(wide) == np.signbit(truth)))
        beyond = np.isinf(wide) & (np.abs(truth) + allowed >= greatest) & (np.sign(wide) == np.sign(truth))
        near = (allowed > 0) & ((np.abs(wide - truth) <= allowed) | beyond)
        good = alike | (np.isnan(wide) & np.isnan(truth)) | near
    for at in np.argwhere(~good)[:5]:
        at = tuple(int(i) for i in at)
        failed.append(f"{label} ({dtype}): at {at} got {got[at]!r}, wanted {want[at]!r} within {allowed[at]:.3g}")


def unchanged(label, array, before):
    if tools.storage.to_host(array).tobytes() != before.tobytes():
        failed.append(f"{label} was written")


a0 = tools.storage.from_host(load("a0"), dtype="float32")
a1 = tools.storage.from_host(load("a1"), dtype="float32")
a2 = tools.storage.from_host(load("a2"), dtype="float32")
a3 = tools.storage.from_host(load("a3"), dtype="float32")
a4 = tools.storage.from_host(load("a4"), dtype="float32")
a5 = tools.storage.from_host(load("a5"), dtype="float32")
a6 = tools.storage.from_host(load("a6"), dtype="float32")
a7 = tools.storage.from_host(load("a7"), dtype="float32")
a8 = tools.storage.from_host(load("a8"), dtype="float32")
a9 = tools.storage.from_host(load("a9"), dtype="float32")
a10 = tools.storage.from_host(load("a10"), dtype="float32")
a11 = tools.storage.from_host(load("a11"), dtype="float32")
a12 = tools.storage.from_host(load("a12"), dtype="float32")
a13 = tools.storage.from_host(load("a13"), dtype="float32")
a14 = tools.storage.from_host(load("a14"), dtype="float32")
a15 = tools.storage.from_host(load("a15"), dtype="float32")
a16 = tools.storage.from_host(load("a16"), dtype="float32")
a17 = tools.storage.from_host(load("a17"), dtype="float32")
a18 = tools.storage.from_host(load("a18"), dtype="float32")
a19 = tools.storage.from_host(load("a19"), dtype="float32")
a20 = tools.storage.from_host(load("a20"), dtype="float32")
a21 = tools.storage.from_host(load("a21"), dtype="float32")
a22 = tools.storage.from_host(load("a22"), dtype="float32")
a23 = tools.storage.from_host(load("a23"), dtype="float32")
a24 = tools.storage.from_host(load("a24"), dtype="float32")
a25 = tools.storage.from_host(load("a25"), dtype="float32")
a26 = tools.storage.from_host(load("a26"), dtype="float32")
a27 = tools.storage.from_host(load("a27"), dtype="float32")
a28 = tools.storage.from_host(load("a28"), dtype="float32")
a29 = tools.storage.from_host(load("a29"), dtype="float32")
a30 = tools.storage.from_host(load("a30"), dtype="float32")
a31 = tools.storage.from_host(load("a31"), dtype="float32")
a32 = tools.storage.from_host(load("a32"), dtype="float32")
a33 = tools.storage.from_host(load("a33"), dtype="float32")
a34 = tools.storage.from_host(load("a34"), dtype="float32")
a35 = tools.storage.from_host(load("a35"), dtype="float32")
a36 = tools.storage.from_host(load("a36"), dtype="float32")
a37 = tools.storage.from_host(load("a37"), dtype="float32")
a38 = tools.storage.from_host(load("a38"), dtype="float32")
a39 = tools.storage.from_host(load("a39"), dtype="float32")
a40 = tools.storage.from_host(load("a40"), dtype="float32")
a41 = tools.storage.from_host(load("a41"), dtype="float32")
a42 = tools.storage.from_host(load("a42"), dtype="int32")
r43 = tools.layout.slice(a22, (0, 0,), (9, 12,), step=None)
r44 = tools.indexing.gather_rows(a21, a42)
r45 = tools.elementwise.add(r44, r43)
r46 = tools.normalization.layer_norm(r45, a23, a24, eps=1e-05)
r50 = tools.layout.concatenate((a25, a27, a29,), axis=0)
r51 = tools.layout.concatenate((a26, a28, a30,), axis=0)
r52 = tools.linear.linear(r46[0], r50, r51)
r53 = tools.layout.slice(r52, (0, 0, 0,), (8, 9, 12,))
r54 = tools.layout.slice(r52, (0, 0, 12,), (8, 9, 24,))
r55 = tools.layout.slice(r52, (0, 0, 24,), (8, 9, 36,))
r56 = tools.layout.reshape(r53, (8, 9, 1, 12,))
r57 = tools.layout.reshape(r54, (8, 9, 1, 12,))
r58 = tools.layout.reshape(r55, (8, 9, 1, 12,))
r59 = tools.causal_attention.attend(r56, r57, r58, scale=0.2886751345948129, offset=0)
r62 = tools.layout.reshape(r59[0], (8, 9, 12,))
r63 = tools.linear.linear(r62, a31, a32)
r64 = tools.elementwise.add(r45, r63)
r65 = tools.normalization.layer_norm(r64, a33, a34, eps=1e-05)
r69 = tools.linear.linear(r65[0], a35, a36)
r70 = tools.activation.gelu(r69, form='erf')
r71 = tools.linear.linear(r70, a37, a38)
r72 = tools.elementwise.add(r64, r71)
r73 = tools.normalization.layer_norm(r72, a39, a40, eps=1e-05)
r77 = tools.linear.linear(r73[0], a41, None)
a43 = tools.storage.from_host(load("a43"), dtype="int32")
r79 = tools.layout.reshape(r77, (72, 65,))
r80 = tools.layout.reshape(a43, (72,))
r81 = tools.loss.cross_entropy_grad(r79, r80, None, ignore=-1)
r84 = tools.storage.full((), 1.0, dtype='float32')
r85 = tools.elementwise.multiply(r81[1], r84)
r86 = tools.layout.reshape(r85, (8, 9, 65,))
r87 = tools.linear.linear_vjp_input(r86, a41)
r88 = tools.linear.linear_vjp_weight(r86, r73[0])
r91 = tools.normalization.layer_norm_vjp(r87, r72, a39, r73[1], r73[2])
r95 = tools.linear.linear_vjp_input(r91[0], a37)
r96 = tools.linear.linear_vjp_weight(r91[0], r70)
r99 = tools.activation.gelu_vjp(r95, r69, form='erf')
r100 = tools.linear.linear_vjp_input(r99, a35)
r101 = tools.linear.linear_vjp_weight(r99, r65[0])
r104 = tools.normalization.layer_norm_vjp(r100, r64, a33, r65[1], r65[2])
r108 = tools.elementwise.add(r91[0], r104[0])
r109 = tools.linear.linear_vjp_input(r108, a31)
r110 = tools.linear.linear_vjp_weight(r108, r62)
r113 = tools.layout.reshape(r109, (8, 9, 1, 12,))
r114 = tools.causal_attention.attend_vjp(r113, r56, r57, r58, r59[1], scale=0.2886751345948129)
r118 = tools.layout.reshape(r114[2], (8, 9, 12,))
r119 = tools.layout.reshape(r114[1], (8, 9, 12,))
r120 = tools.layout.reshape(r114[0], (8, 9, 12,))
r121 = tools.layout.concatenate((r120, r119, r118,), axis=2)
r122 = tools.linear.linear_vjp_input(r121, r50)
r123 = tools.linear.linear_vjp_weight(r121, r46[0])
r126 = tools.layout.slice(r123[0], (0, 0,), (12, 12,))
r127 = tools.layout.slice(r123[0], (12, 0,), (24, 12,))
r128 = tools.layout.slice(r123[0], (24, 0,), (36, 12,))
r129 = tools.layout.slice(r123[1], (0,), (12,))
r130 = tools.layout.slice(r123[1], (12,), (24,))
r131 = tools.layout.slice(r123[1], (24,), (36,))
r132 = tools.normalization.layer_norm_vjp(r122, r45, a23, r46[1], r46[2])
r136 = tools.elementwise.add(r108, r132[0])
r137 = tools.reduction.sum(r136, axis=(0,), keepdims=True)
r138 = tools.layout.reshape(r137, (9, 12,))
r139 = tools.storage.full((65, 12,), 0.0, dtype='float32')
r140 = tools.layout.reshape(a42, (72,))
r141 = tools.layout.reshape(r136, (72, 12,))
r142 = tools.indexing.scatter_add_rows(r139, r140, r141, donate=True)
r143 = tools.layout.pad(r138, ((0, 0,), (0, 0,),))
unchanged('input 1 (int32[8, 9])', a42, load("u44"))
unchanged('input 2 (int32[8, 9])', a43, load("u45"))

print("\n".join(failed) or said)
sys.exit(1 if failed else status)
