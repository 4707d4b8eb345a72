// One result per element. An operand is an array, or a scalar: then its address is null and `word` holds its bits.
// g.rank < 0 says that all arrays lie alike and without gaps, so that element i is at place i.

#include "turret.cuh"

__device__ __forceinline__ float e_exp(float x) { return expf(x); }
__device__ __forceinline__ double e_exp(double x) { return exp(x); }
__device__ __forceinline__ float e_log(float x) { return logf(x); }
__device__ __forceinline__ double e_log(double x) { return log(x); }
__device__ __forceinline__ float e_sqrt(float x) { return sqrtf(x); }
__device__ __forceinline__ double e_sqrt(double x) { return sqrt(x); }
__device__ __forceinline__ float e_tanh(float x) { return tanhf(x); }
__device__ __forceinline__ double e_tanh(double x) { return tanh(x); }
__device__ __forceinline__ float e_erf(float x) { return erff(x); }
__device__ __forceinline__ double e_erf(double x) { return erf(x); }

struct Add { template <class W> static __device__ W of(W a, W b) { return a + b; } };
struct Subtract { template <class W> static __device__ W of(W a, W b) { return a - b; } };
struct Multiply { template <class W> static __device__ W of(W a, W b) { return a * b; } };
struct Divide { template <class W> static __device__ W of(W a, W b) { return a / b; } };
struct Maximum { template <class W> static __device__ W of(W a, W b) { return (a > b || a != a) ? a : b; } };
struct Minimum { template <class W> static __device__ W of(W a, W b) { return (a < b || a != a) ? a : b; } };
struct Equal { template <class W> static __device__ bool of(W a, W b) { return a == b; } };
struct Less { template <class W> static __device__ bool of(W a, W b) { return a < b; } };
struct LessEqual { template <class W> static __device__ bool of(W a, W b) { return a <= b; } };
struct LogicalAnd { template <class W> static __device__ bool of(W a, W b) { return a && b; } };

struct Negative { template <class W> static __device__ W of(W x) { return -x; } };
struct Exp { template <class W> static __device__ W of(W x) { return e_exp(x); } };
struct Log { template <class W> static __device__ W of(W x) { return e_log(x); } };
struct Sqrt { template <class W> static __device__ W of(W x) { return e_sqrt(x); } };
struct Rsqrt { template <class W> static __device__ W of(W x) { return (W)1 / e_sqrt(x); } };
struct Tanh { template <class W> static __device__ W of(W x) { return e_tanh(x); } };
struct Erf { template <class W> static __device__ W of(W x) { return e_erf(x); } };
struct IsFinite { template <class W> static __device__ bool of(W x) { return x - x == (W)0; } };

// What the kernels below do, with T and R the dtypes of operands and results.
template <class F, class T, class R>
__device__ __forceinline__ void unary(const T* x, R* out, i64 count, const Geometry& g) {
#pragma unroll 1
  for (i64 i = first(); i < count; i += stride()) {
    i64 at[1] = {i};
    if (g.rank >= 0) places(g, i, at);
    out[i] = narrow<R>(F::of(wide(x[at[0]])));
  }
}

template <class F, class T, class R>
__device__ __forceinline__ void binary(const T* a, i64 a_word, const T* b, i64 b_word, R* out, i64 count,
                                       const Geometry& g) {
#pragma unroll 1
  for (i64 i = first(); i < count; i += stride()) {
    i64 at[2] = {i, i};
    if (g.rank >= 0) places(g, i, at);
    Wide<T> left = wide(a ? a[at[0]] : unpacked<T>(a_word));
    Wide<T> right = wide(b ? b[at[1]] : unpacked<T>(b_word));
    out[i] = narrow<R>(F::of(left, right));
  }
}

#define UNARY(op, F, T, R, NAME)                                                                           \
  extern "C" __global__ void op##_##NAME(const T* x, R* out, i64 count, const __grid_constant__ Geometry g) {                      \
    unary<F, T, R>(x, out, count, g);                                                                      \
  }
#define BINARY(op, F, T, R, NAME)                                                                          \
  extern "C" __global__ void op##_##NAME(const T* a, i64 a_word, const T* b, i64 b_word, R* out, i64 count, \
                                         const __grid_constant__ Geometry g) {                                                     \
    binary<F, T, R>(a, a_word, b, b_word, out, count, g);                                                  \
  }

#define OF_NUMBERS(T, NAME)                                                                                \
  BINARY(add, Add, T, T, NAME)                                                                             \
  BINARY(subtract, Subtract, T, T, NAME)                                                                   \
  BINARY(multiply, Multiply, T, T, NAME)                                                                   \
  BINARY(maximum, Maximum, T, T, NAME)                                                                     \
  BINARY(minimum, Minimum, T, T, NAME)                                                                     \
  UNARY(negative, Negative, T, T, NAME)
#define OF_FLOATS(T, NAME)                                                                                 \
  BINARY(divide, Divide, T, T, NAME)                                                                       \
  UNARY(exp, Exp, T, T, NAME)                                                                              \
  UNARY(log, Log, T, T, NAME)                                                                              \
  UNARY(sqrt, Sqrt, T, T, NAME)                                                                            \
  UNARY(rsqrt, Rsqrt, T, T, NAME)                                                                          \
  UNARY(tanh, Tanh, T, T, NAME)                                                                            \
  UNARY(erf, Erf, T, T, NAME)                                                                              \
  UNARY(isfinite, IsFinite, T, bool, NAME)
#define OF_EVERY(T, NAME)                                                                                  \
  BINARY(equal, Equal, T, bool, NAME)                                                                      \
  BINARY(less, Less, T, bool, NAME)                                                                        \
  BINARY(less_equal, LessEqual, T, bool, NAME)

NUMBERS(OF_NUMBERS)
FLOATS(OF_FLOATS)
EVERY(OF_EVERY)
BINARY(maximum, Maximum, bool, bool, b8)
BINARY(minimum, Minimum, bool, bool, b8)
BINARY(logical_and, LogicalAnd, bool, bool, b8)

// A choice moves bytes: T is an unsigned integer as wide as an element.
#define WHERE(T, BYTES)                                                                                    \
  extern "C" __global__ void where_##BYTES(const bool* condition, const T* a, i64 a_word, const T* b,      \
                                           i64 b_word, T* out, i64 count, const __grid_constant__ Geometry g) {                    \
    for (i64 i = first(); i < count; i += stride()) {                                                      \
      i64 at[3] = {i, i, i};                                                                               \
      if (g.rank >= 0) places(g, i, at);                                                                   \
      if (condition[at[0]])                                                                                \
        out[i] = a ? a[at[1]] : (T)a_word;                                                                 \
      else                                                                                                 \
        out[i] = b ? b[at[2]] : (T)b_word;                                                                 \
    }                                                                                                      \
  }

WHERE(unsigned char, 1)
WHERE(unsigned short, 2)
WHERE(unsigned int, 4)
WHERE(unsigned long long, 8)
