"""Functions of a device: mathematics, bits, vectors, minimum and maximum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine import Kernel, as_arguments, compile_source

Array = np.ndarray[Any, Any]

UNARY: dict[str, Callable[[float], float]] = {
    "exp": math.exp,
    "log": math.log,
    "log1p": math.log1p,
    "expm1": math.expm1,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1.0 / math.sqrt(x),
    "tanh": math.tanh,
    "erf": math.erf,
    "erfc": math.erfc,
    "fabs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "rint": round,
    "sin": math.sin,
    "cos": math.cos,
}

SOURCE = "".join(
    f"""
extern "C" __global__ void {name}_f64(double* out, const double* x) {{ out[threadIdx.x] = {name}(x[threadIdx.x]); }}
extern "C" __global__ void {name}_f32(float* out, const float* x) {{
    out[threadIdx.x] = {name}f(x[threadIdx.x]);
    out[blockDim.x + threadIdx.x] = {"fabsf" if name == "fabs" else name}(x[threadIdx.x]);
}}"""
    for name in UNARY
)

OTHERS = r"""
extern "C" __global__ void floats(float* out) {
    const float nan = __int_as_float(0x7fffffff), infinite = __int_as_float(0x7f800000);
    float s, c;
    sincosf(0.0f, &s, &c);
    float values[] = {
        fmaxf(nan, 1.0f), fminf(2.0f, nan), max(1.0f, nan), min(-1.0f, 3.0f), powf(2.0f, 10.0f), ldexpf(3.0f, 4),
        __expf(0.0f), __logf(1.0f), __fdividef(1.0f, 4.0f), s, c, copysignf(2.0f, -0.0f), isnan(nan) + 0.0f,
        isinf(infinite) + 0.0f, isfinite(infinite) + 0.0f, isfinite(1.0) + 0.0f, fabsf(-2.0f), abs(-3.5f),
        truncf(-1.7f), fmodf(7.0f, 4.0f),
    };
    for (int i = 0; i < 20; ++i) out[i] = values[i];
}
extern "C" __global__ void bits(unsigned* out) {
    unsigned values[] = {
        __float_as_uint(1.0f), unsigned(__float_as_int(-2.0f)), __float_as_uint(__uint_as_float(0x12345678u)),
        unsigned(__double_as_longlong(1.0) >> 32), __longlong_as_double(0x4000000000000000LL) == 2.0,
        unsigned(__popc(0xf0f0u)), unsigned(__clz(1)), unsigned(__clz(0)), unsigned(__ffs(8)), unsigned(__ffs(0)),
        __umulhi(0x80000000u, 6u), __funnelshift_l(0x80000001u, 0xau, 4), __funnelshift_r(0x80000001u, 0xau, 4),
        __brev(1u), unsigned(__popcll(-1LL)), unsigned(__clzll(1)), unsigned(__float2int_rn(2.5f)),
        unsigned(__float2int_rz(-2.7f)), unsigned(__float2int_rn(1e20f)), unsigned(__ffsll(1LL << 40)),
    };
    for (int i = 0; i < 20; ++i) out[i] = values[i];
}
extern "C" __global__ void vectors(float4* four, double2* two, int4* ints) {
    float4 value = four[0];
    four[1] = make_float4(value.w, value.z, value.y, value.x);
    two[0] = make_double2(1.5, -2.5);
    uint2 u = make_uint2(1u, 2u);
    int sizes = sizeof(float4) + alignof(float2);
    ints[0] = make_int4(max(3, -4), min(3u, 2u), int(max(5LL, -7LL)), int(u.x + u.y) + sizes);
}
extern "C" __global__ void contraction(float* out, float a, float b, float c) {
    out[0] = a * b + c;
    out[1] = __fadd_rn(__fmul_rn(a, b), c);
    out[2] = fmaf(a, b, c);
}
extern "C" __global__ void wraps(int* out, int x) {
    out[0] = x + 1 < x;
    out[1] = x + 1;
}
"""


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    return compile_source(OTHERS).kernels


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name: str) -> None:
    compiled = compile_source(SOURCE).kernels
    x = np.array([0.03125, 0.5, 1.0, 1.7, 2.5, 9.25])
    expected = [float(UNARY[name](float(value))) for value in x]
    out: Array = np.zeros(6)
    compiled[f"{name}_f64"].run((1, 1, 1), (6, 1, 1), as_arguments(out, x))
    np.testing.assert_allclose(out, expected, rtol=4e-16)
    singles: Array = np.zeros((2, 6), np.float32)
    # x is exact in single precision but for 1.7, where the derivative times its rounding is below the tolerance.
    compiled[f"{name}_f32"].run((1, 1, 1), (6, 1, 1), as_arguments(singles, x.astype(np.float32)))
    np.testing.assert_allclose(singles, [expected, expected], rtol=5e-7)


def test_functions_of_floats(kernels: dict[str, Kernel]) -> None:
    out: Array = np.zeros(20, np.float32)
    kernels["floats"].run((1, 1, 1), (1, 1, 1), as_arguments(out))
    assert out.tolist() == [1, 2, 1, -1, 1024, 48, 1, 0, 0.25, 0, 1, -2, 1, 1, 0, 1, 2, 3.5, -1, 3]


def test_bits(kernels: dict[str, Kernel]) -> None:
    out: Array = np.zeros(20, np.uint32)
    kernels["bits"].run((1, 1, 1), (1, 1, 1), as_arguments(out))
    assert out.tolist() == [
        *(0x3F800000, 0xC0000000, 0x12345678, 0x3FF00000, 1),
        *(8, 31, 32, 4, 0),
        *(3, 0xA8, 0xA8000000, 0x80000000, 64),
        *(63, 2, 2**32 - 2, 2**31 - 1, 41),
    ]


def test_vectors_and_overloads(kernels: dict[str, Kernel]) -> None:
    four: Array = np.array([[1, 2, 3, 4], [0, 0, 0, 0]], np.float32)
    two, ints = np.zeros(2), np.zeros(4, np.int32)
    kernels["vectors"].run((1, 1, 1), (1, 1, 1), as_arguments(four, two, ints))
    assert four[1].tolist() == [4, 3, 2, 1]
    assert two.tolist() == [1.5, -2.5]
    assert ints.tolist() == [3, 2, 5, 27]


def test_products_and_sums_are_rounded_once_unless_asked_otherwise(kernels: dict[str, Kernel]) -> None:
    a, c = np.float32(1 + 2.0**-12), np.float32(-(1 + 2.0**-11))
    out: Array = np.zeros(3, np.float32)
    kernels["contraction"].run((1, 1, 1), (1, 1, 1), as_arguments(out, a, a, c))
    assert out[1:].tolist() == [0.0, 2.0**-24]
    assert out[0] in (0.0, 2.0**-24)


def test_integers_wrap(kernels: dict[str, Kernel]) -> None:
    out: Array = np.zeros(2, np.int32)
    kernels["wraps"].run((1, 1, 1), (1, 1, 1), as_arguments(out, np.int32(2**31 - 1)))
    assert out.tolist() == [1, -(2**31)]
