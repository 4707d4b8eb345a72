// Sums, maxima and their positions along the middle axis of x: (outer, reduced, inner).
//
// That axis is cut into `chunks` of `length` elements, so that many threads work where there are few results; what a
// chunk comes to is at [outer][chunk][inner]. In `rows` inner is 1 and a block takes a chunk; in `columns` a thread does.

#include "turret.cuh"

struct Adding : Sum {
  template <class T> static __device__ Wide<T> start(const T*) { return (Wide<T>)0; }
  template <class W> static __device__ W finish(W total, double divisor) { return total / (W)divisor; }
};
struct Maximum : Greatest {
  template <class T> static __device__ Wide<T> start(const T* x) { return wide(*x); }
  template <class W> static __device__ W finish(W greatest, double) { return greatest; }
};

// A part of the axis: where it begins, and how long it is.
struct Chunk {
  i64 outer, begin, length;
};
__device__ __forceinline__ Chunk chunk_of(i64 unit, i64 reduced, i64 chunks, i64 length) {
  i64 outer = unit / chunks, begin = (unit - outer * chunks) * length, left = reduced - begin;
  return Chunk{outer, begin, left < length ? left : length};
}

template <class F, class T, class R>
__device__ __forceinline__ void rows(const T* x, R* out, i64 units, i64 reduced, i64 chunks, i64 length,
                                     double divisor, Wide<T>* scratch) {
  for (i64 unit = blockIdx.x; unit < units; unit += gridDim.x) {
    Chunk c = chunk_of(unit, reduced, chunks, length);
    const T* from = x + c.outer * reduced + c.begin;
    Wide<T> value = F::start(from);
    for (i64 i = threadIdx.x; i < c.length; i += blockDim.x) value = F::of(value, wide(from[i]));
    value = over_block<F>(value, scratch);
    if (threadIdx.x == 0) out[unit] = narrow<R>(F::finish(value, divisor));
  }
}

template <class F, class T, class R>
__device__ __forceinline__ void columns(const T* x, R* out, i64 units, i64 inner, i64 reduced, i64 chunks, i64 length,
                                        double divisor) {
  for (i64 unit = first(); unit < units; unit += stride()) {
    i64 chunk = unit / inner;
    Chunk c = chunk_of(chunk, reduced, chunks, length);
    const T* from = x + (c.outer * reduced + c.begin) * inner + (unit - chunk * inner);
    Wide<T> value = F::start(from);
    for (i64 i = 0; i < c.length; ++i) value = F::of(value, wide(from[i * inner]));
    out[unit] = narrow<R>(F::finish(value, divisor));
  }
}

#define FOLD(op, F, T, FROM, R, TO)                                                                        \
  extern "C" __global__ void op##_rows_##FROM##_##TO(const T* x, R* out, i64 units, i64 reduced,           \
                                                     i64 chunks, i64 length, double divisor) {             \
    __shared__ Wide<T> scratch[32];                                                                        \
    rows<F, T, R>(x, out, units, reduced, chunks, length, divisor, scratch);                               \
  }                                                                                                        \
  extern "C" __global__ void op##_columns_##FROM##_##TO(const T* x, R* out, i64 units, i64 inner,          \
                                                        i64 reduced, i64 chunks, i64 length,               \
                                                        double divisor) {                                  \
    columns<F, T, R>(x, out, units, inner, reduced, chunks, length, divisor);                              \
  }
#define SUM(T, FROM, R, TO) FOLD(sum, Adding, T, FROM, R, TO)
#define MAX(T, NAME) FOLD(max, Maximum, T, NAME, T, NAME)

SUM(float, f32, float, f32)
SUM(double, f64, double, f64)
SUM(f16, f16, f16, f16)
SUM(f16, f16, float, f32)
SUM(float, f32, f16, f16)
SUM(bf16, bf16, bf16, bf16)
SUM(bf16, bf16, float, f32)
SUM(float, f32, bf16, bf16)
// Integers wrap, which in C++ only unsigned ones do.
SUM(unsigned, i32, unsigned, i32)
SUM(unsigned long long, i64, unsigned long long, i64)

FLOATS(MAX)
MAX(int, i32)
MAX(i64, i64)

// The greatest value so far, NaN above all, and its position: the first of equals. Nothing yet: position -1.
template <class W> struct Best {
  W value;
  int at;
};
template <class W> __device__ __forceinline__ Best<W> better(Best<W> a, Best<W> b) {
  if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
  bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan != b_nan) return a_nan ? a : b;
  if (!a_nan && a.value != b.value) return a.value > b.value ? a : b;
  return a.at < b.at ? a : b;
}

// Positions are taken from `candidates`: (outer, count, inner), what an earlier pass found, or are all there are.
template <class T>
__device__ __forceinline__ Best<Wide<T>> candidate(const T* x, const int* candidates, i64 outer, i64 i, i64 count,
                                                   i64 at_inner, i64 inner, i64 reduced) {
  int at = candidates ? candidates[(outer * count + i) * inner + at_inner] : (int)i;
  return Best<Wide<T>>{wide(x[(outer * reduced + at) * inner + at_inner]), at};
}

template <class W> __device__ __forceinline__ Best<W> best_of_block(Best<W> best, Best<W>* scratch) {
  for (int distance = 16; distance > 0; distance /= 2) {
    Best<W> other = {__shfl_xor_sync(0xffffffffu, best.value, distance),
                     __shfl_xor_sync(0xffffffffu, best.at, distance)};
    best = better(best, other);
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = best;
  __syncthreads();
  best = scratch[0];
  for (int warp = 1; warp < blockDim.x / 32; ++warp) best = better(best, scratch[warp]);
  __syncthreads();
  return best;
}

template <class T>
__device__ __forceinline__ void argmax_rows(const T* x, const int* candidates, int* out, i64 units, i64 count,
                                            i64 chunks, i64 length, i64 reduced, Best<Wide<T>>* scratch) {
  for (i64 unit = blockIdx.x; unit < units; unit += gridDim.x) {
    Chunk c = chunk_of(unit, count, chunks, length);
    Best<Wide<T>> best = {(Wide<T>)0, -1};
    for (i64 i = threadIdx.x; i < c.length; i += blockDim.x)
      best = better(best, candidate(x, candidates, c.outer, c.begin + i, count, 0, 1, reduced));
    best = best_of_block(best, scratch);
    if (threadIdx.x == 0) out[unit] = best.at;
  }
}

template <class T>
__device__ __forceinline__ void argmax_columns(const T* x, const int* candidates, int* out, i64 units, i64 inner,
                                               i64 count, i64 chunks, i64 length, i64 reduced) {
  for (i64 unit = first(); unit < units; unit += stride()) {
    i64 chunk = unit / inner, at_inner = unit - chunk * inner;
    Chunk c = chunk_of(chunk, count, chunks, length);
    Best<Wide<T>> best = {(Wide<T>)0, -1};
    for (i64 i = 0; i < c.length; ++i)
      best = better(best, candidate(x, candidates, c.outer, c.begin + i, count, at_inner, inner, reduced));
    out[unit] = best.at;
  }
}

#define ARGMAX(T, NAME)                                                                                    \
  extern "C" __global__ void argmax_rows_##NAME(const T* x, const int* candidates, int* out, i64 units,    \
                                                i64 count, i64 chunks, i64 length, i64 reduced) {          \
    __shared__ Best<Wide<T>> scratch[32];                                                                  \
    argmax_rows<T>(x, candidates, out, units, count, chunks, length, reduced, scratch);                    \
  }                                                                                                        \
  extern "C" __global__ void argmax_columns_##NAME(const T* x, const int* candidates, int* out, i64 units, \
                                                   i64 inner, i64 count, i64 chunks, i64 length,           \
                                                   i64 reduced) {                                          \
    argmax_columns<T>(x, candidates, out, units, inner, count, chunks, length, reduced);                   \
  }

FLOATS(ARGMAX)
ARGMAX(int, i32)
ARGMAX(i64, i64)
