// Rotary positions: a pair (a, b) of x turns to (a cos - b sin, b cos + a sin).
//
// g says where the first of each pair is in x and in out, and where its angle is; the second is `gap` elements further.

#include "turret.cuh"

template <class T>
__device__ __forceinline__ void rope(const T* x, i64 x_gap, const float* cosines, const float* sines, T* out,
                                     i64 out_gap, double direction, i64 pairs, const Geometry& g) {
  for (i64 pair = first(); pair < pairs; pair += stride()) {
    i64 at[3];
    places(g, pair, at);
    Wide<T> a = wide(x[at[0]]), b = wide(x[at[0] + x_gap]);
    Wide<T> cosine = cosines[at[2]], sine = sines[at[2]] * (Wide<T>)direction;
    out[at[1]] = narrow<T>(a * cosine - b * sine);
    out[at[1] + out_gap] = narrow<T>(b * cosine + a * sine);
  }
}

#define ROPE(T, NAME)                                                                                      \
  extern "C" __global__ void rope_##NAME(const T* x, i64 x_gap, const float* cosines, const float* sines,  \
                                         T* out, i64 out_gap, double direction, i64 pairs,                 \
                                         const __grid_constant__ Geometry g) {                             \
    rope<T>(x, x_gap, cosines, sines, out, out_gap, direction, pairs, g);                                  \
  }
FLOATS(ROPE)
