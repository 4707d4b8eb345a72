// Every dtype as every other one.

#include "turret.cuh"

#define CAST(T, FROM, S, TO)                                                                               \
  extern "C" __global__ void cast_##FROM##_##TO(const T* x, S* out, i64 count) {                           \
    for (i64 i = first(); i < count; i += stride()) out[i] = narrow<S>(wide(x[i]));                        \
  }
#define CASTS_TO(S, TO)                                                                                    \
  CAST(float, f32, S, TO) CAST(double, f64, S, TO) CAST(f16, f16, S, TO) CAST(bf16, bf16, S, TO)           \
  CAST(int, i32, S, TO) CAST(i64, i64, S, TO) CAST(u8, u8, S, TO) CAST(bool, b8, S, TO)

EVERY(CASTS_TO)
