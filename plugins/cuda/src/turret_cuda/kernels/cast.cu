// Every dtype as every other one.

#include "turret.cuh"

template <class S, class T> __device__ __forceinline__ S changed(T x) { return narrow<S>(wide(x)); }

// The way leads through double, which has 53 bits: what lies beyond them becomes one bit that says "and a little more".
template <> __device__ __forceinline__ bf16 changed<bf16, i64>(i64 x) {
  i64 beyond = x >> 53;
  if (beyond != 0 && beyond != -1 && (x & 1023) != 0) x = (x & ~(i64)1023) | 1024;
  return narrow<bf16>(x);
}

#define CAST(T, FROM, S, TO)                                                                               \
  extern "C" __global__ void cast_##FROM##_##TO(const T* x, S* out, i64 count) {                           \
    for (i64 i = first(); i < count; i += stride()) out[i] = changed<S>(x[i]);                              \
  }
#define CASTS_TO(S, TO)                                                                                    \
  CAST(float, f32, S, TO) CAST(double, f64, S, TO) CAST(f16, f16, S, TO) CAST(bf16, bf16, S, TO)           \
  CAST(int, i32, S, TO) CAST(i64, i64, S, TO) CAST(u8, u8, S, TO) CAST(bool, b8, S, TO)

EVERY(CASTS_TO)
