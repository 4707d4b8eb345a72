// The gradient of a bias: sums over rows, added up in an order that depends on the sizes alone.

#include "turret.cuh"

enum { COLUMNS = 32, LINES = 8 };  // a block is LINES warps, each on every LINES-th row of the part

// sums[part][column]: the rows from part * LINES on, LINES at a time, with those of the other parts between them.
template <class T>
__device__ __forceinline__ void part_sums(const T* x, i64 down, i64 across, Wide<T>* sums, i64 rows, i64 columns,
                                          Wide<T>* scratch) {
  int line = threadIdx.x / COLUMNS, lane = threadIdx.x % COLUMNS;
  i64 column = (i64)blockIdx.x * COLUMNS + lane, parts = gridDim.y;
  Wide<T> sum = 0;
  if (column < columns)
    for (i64 row = (i64)blockIdx.y * LINES + line; row < rows; row += parts * LINES)
      sum += wide(x[row * down + column * across]);
  scratch[threadIdx.x] = sum;
  __syncthreads();
  if (line || column >= columns) return;
  for (int other = 1; other < LINES; ++other) sum += scratch[other * COLUMNS + lane];
  sums[blockIdx.y * columns + column] = sum;
}

#define BIAS(T, NAME)                                                                                      \
  extern "C" __global__ void part_sums_##NAME(const T* x, i64 down, i64 across, Wide<T>* sums, i64 rows,   \
                                              i64 columns) {                                               \
    __shared__ Wide<T> scratch[COLUMNS * LINES];                                                           \
    part_sums(x, down, across, sums, rows, columns, scratch);                                              \
  }                                                                                                        \
  extern "C" __global__ void over_parts_##NAME(const Wide<T>* sums, T* out, i64 parts, i64 columns) {      \
    for (i64 i = first(); i < columns; i += stride()) {                                                    \
      Wide<T> sum = 0;                                                                                     \
      for (i64 part = 0; part < parts; ++part) sum += sums[part * columns + i];                            \
      out[i] = narrow<T>(sum);                                                                             \
    }                                                                                                      \
  }

FLOATS(BIAS)
