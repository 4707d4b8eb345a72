// Every form is x times a gate between 0 and 1, and its slope is gate + x gate'.
//
// gelu: gate = erfc(-x / sqrt 2) / 2; in the tanh form sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
// silu: gate = sigmoid(x). Neither 0 * inf nor inf - inf comes up: where the gates are 0 or 1 to the last bit of a
// double, x is clipped.

#include "turret.cuh"

__device__ __forceinline__ float a_exp(float x) { return expf(x); }
__device__ __forceinline__ double a_exp(double x) { return exp(x); }
__device__ __forceinline__ float a_erfc(float x) { return erfcf(x); }
__device__ __forceinline__ double a_erfc(double x) { return erfc(x); }

// NaN stays NaN.
template <class W> __device__ __forceinline__ W at_least(W x, W low) { return x < low ? low : x; }
template <class W> __device__ __forceinline__ W clipped(W x, W bound) { return at_least(x > bound ? bound : x, -bound); }

// sigmoid(x) and 1 - sigmoid(x), both to full relative accuracy: exp only ever sees -|x|.
template <class W> struct Sigmoid {
  W gate, rest;
  __device__ __forceinline__ explicit Sigmoid(W x) {
    W small = a_exp(x < (W)0 ? x : -x), total = (W)1 + small;
    gate = (x < (W)0 ? small : (W)1) / total;
    rest = (x < (W)0 ? (W)1 : small) / total;
  }
};

struct GeluErf {
  template <class W> static __device__ W gate(W x) { return (W)0.5 * a_erfc(x * (W)-0.70710678118654752440); }
  template <class W> static __device__ W value(W x) { return at_least(x, (W)-50) * gate(x); }
  template <class W> static __device__ W slope(W x) {
    W c = clipped(x, (W)50);
    return gate(x) + c * (a_exp((W)-0.5 * c * c) * (W)0.39894228040143267794);
  }
};

struct GeluTanh {
  template <class W> static __device__ Sigmoid<W> gates(W c) {
    return Sigmoid<W>((W)1.59576912160573071176 * c * ((W)1 + (W)0.044715 * c * c));
  }
  template <class W> static __device__ W value(W x) { return at_least(x, (W)-50) * gates(clipped(x, (W)50)).gate; }
  template <class W> static __device__ W slope(W x) {
    W c = clipped(x, (W)50), twice_u_slope = (W)1.59576912160573071176 * ((W)1 + (W)0.134145 * c * c);
    Sigmoid<W> s = gates(c);
    return s.gate + c * (s.gate * s.rest * twice_u_slope);
  }
};

struct Silu {
  template <class W> static __device__ W value(W x) { return at_least(x, (W)-1000) * Sigmoid<W>(x).gate; }
  template <class W> static __device__ W slope(W x) {
    Sigmoid<W> s(x);
    return s.gate * ((W)1 + clipped(x, (W)1000) * s.rest);
  }
};

// g.rank < 0 says that all arrays lie alike and without gaps, so that element i is at place i.
template <int COUNT> __device__ __forceinline__ void find(const Geometry& g, i64 i, i64 (&at)[COUNT]) {
  if (g.rank >= 0) {
    places(g, i, at);
    return;
  }
  for (int k = 0; k < COUNT; ++k) at[k] = i;
}

template <class F, class T>
__device__ __forceinline__ void values(const T* x, T* out, i64 count, const Geometry& g) {
  for (i64 i = first(); i < count; i += stride()) {
    i64 at[1];
    find(g, i, at);
    out[i] = narrow<T>(F::value(wide(x[at[0]])));
  }
}

template <class F, class T>
__device__ __forceinline__ void slopes(const T* dy, const T* x, T* out, i64 count, const Geometry& g) {
  for (i64 i = first(); i < count; i += stride()) {
    i64 at[2];
    find(g, i, at);
    out[i] = narrow<T>(wide(dy[at[0]]) * F::slope(wide(x[at[1]])));
  }
}

template <class T>
__device__ __forceinline__ void gated(const T* gate, const T* up, T* out, i64 count, const Geometry& g) {
  for (i64 i = first(); i < count; i += stride()) {
    i64 at[2];
    find(g, i, at);
    out[i] = narrow<T>(Silu::value(wide(gate[at[0]])) * wide(up[at[1]]));
  }
}

template <class T>
__device__ __forceinline__ void gated_vjp(const T* dy, const T* gate, const T* up, T* dgate, T* dup, i64 count,
                                          const Geometry& g) {
  for (i64 i = first(); i < count; i += stride()) {
    i64 at[3];
    find(g, i, at);
    Wide<T> d = wide(dy[at[0]]), x = wide(gate[at[1]]);
    dgate[i] = narrow<T>(d * (wide(up[at[2]]) * Silu::slope(x)));
    dup[i] = narrow<T>(d * Silu::value(x));
  }
}

#define FORM(op, F, T, NAME)                                                                               \
  extern "C" __global__ void op##_##NAME(const T* x, T* out, i64 count,                                    \
                                         const __grid_constant__ Geometry g) {                             \
    values<F, T>(x, out, count, g);                                                                        \
  }                                                                                                        \
  extern "C" __global__ void op##_vjp_##NAME(const T* dy, const T* x, T* out, i64 count,                   \
                                             const __grid_constant__ Geometry g) {                         \
    slopes<F, T>(dy, x, out, count, g);                                                                    \
  }
#define ACTIVATIONS(T, NAME)                                                                               \
  FORM(gelu_erf, GeluErf, T, NAME)                                                                         \
  FORM(gelu_tanh, GeluTanh, T, NAME)                                                                       \
  FORM(silu, Silu, T, NAME)                                                                                \
  extern "C" __global__ void gated_silu_##NAME(const T* gate, const T* up, T* out, i64 count,              \
                                               const __grid_constant__ Geometry g) {                       \
    gated<T>(gate, up, out, count, g);                                                                     \
  }                                                                                                        \
  extern "C" __global__ void gated_silu_vjp_##NAME(const T* dy, const T* gate, const T* up, T* dgate,      \
                                                   T* dup, i64 count, const __grid_constant__ Geometry g) {\
    gated_vjp<T>(dy, gate, up, dgate, dup, count, g);                                                      \
  }
FLOATS(ACTIVATIONS)
