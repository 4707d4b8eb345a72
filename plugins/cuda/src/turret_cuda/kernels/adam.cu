// The optimizer's update of many tensors at once. Tensors are cut into chunks, and a block takes one chunk: it finds
// its tensor in the table that came with the launch.

#include "turret.cuh"

enum { MOST_ROWS = 48, CHUNK = 8192 };  // 48 rows are what 4 KiB of kernel arguments hold

struct Row {
  void *p, *new_p;
  const void* g;
  float *m, *v, *new_m, *new_v;
  i64 size, first_chunk;
  double decay;
};
struct Table {
  i64 rows;
  Row row[MOST_ROWS];
};

// The row of this block's chunk, and the elements of the chunk.
struct Share {
  int row;
  i64 begin, end;
};

__device__ __forceinline__ Share share(const Table& table) {
  int row = 0;
  while (row + 1 < table.rows && table.row[row + 1].first_chunk <= (i64)blockIdx.x) ++row;
  i64 begin = ((i64)blockIdx.x - table.row[row].first_chunk) * CHUNK;
  i64 end = begin + CHUNK < table.row[row].size ? begin + CHUNK : table.row[row].size;
  return Share{row, begin, end};
}

// One sum of squares for each chunk. Squares of float32 do not leave the range of double.
template <class T> __device__ __forceinline__ void squares(const Table& table, double* sums, double* scratch) {
  Share mine = share(table);
  const T* g = (const T*)table.row[mine.row].g;
  double sum = 0;
  for (i64 i = mine.begin + threadIdx.x; i < mine.end; i += blockDim.x) {
    double x = (float)wide(g[i]);
    sum += x * x;
  }
  sum = over_block<Sum>(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// numbers: the factor that clips gradients; norm and finite are results of the update.
extern "C" __global__ void __launch_bounds__(256)
settle(const double* sums, i64 count, double max_norm, float* numbers, float* norm, bool* finite) {
  __shared__ double scratch[32];
  double sum = 0;
  for (i64 i = threadIdx.x; i < count; i += blockDim.x) sum += sums[i];
  sum = over_block<Sum>(sum, scratch);
  if (threadIdx.x == 0) {
    double length = sqrt(sum);
    norm[0] = (float)length;
    finite[0] = norm[0] - norm[0] == 0.0f;
    numbers[0] = length > max_norm ? (float)(max_norm / length) : 1.0f;
  }
}

struct Settings {
  float clip, lr, correction1, correction2, beta1, rest1, beta2, rest2, eps;
};

__device__ __forceinline__ Settings settings(const float* numbers, const float* lr, const float* correction1,
                                             const float* correction2, double beta1, double beta2, double eps) {
  return Settings{numbers[0],    lr[0],         correction1[0],     correction2[0], (float)beta1, (float)(1 - beta1),
                  (float)beta2, (float)(1 - beta2), (float)eps};
}

template <class T> struct Moved {
  T p;
  float m, v;
};

template <class T> __device__ __forceinline__ Moved<T> moved(const Row& row, i64 i, const Settings& s) {
  typedef Wide<T> W;
  float slope = (float)wide(((const T*)row.g)[i]) * s.clip;
  float m = s.beta1 * row.m[i] + s.rest1 * slope;
  float v = s.beta2 * row.v[i] + s.rest2 * slope * slope;
  W old = wide(((const T*)row.p)[i]);
  W step = (W)(m / s.correction1 / (sqrtf(v / s.correction2) + s.eps)) + (W)row.decay * old;
  return Moved<T>{narrow<T>(old - (W)s.lr * step), m, v};
}

// Clears `finite` where a result is not. A first moment that is not finite shows in the parameter; a second one need
// not: g / inf is 0.
template <class T> __device__ __forceinline__ void judge(const Table& table, const Settings& s, bool* finite) {
  Share mine = share(table);
  int bad = 0;
  for (i64 i = mine.begin + threadIdx.x; i < mine.end; i += blockDim.x) {
    Moved<T> made = moved<T>(table.row[mine.row], i, s);
    Wide<T> p = wide(made.p);
    bad |= !(p - p == 0) || !(made.v - made.v == 0);
  }
  bad = __syncthreads_or(bad);
  if (bad && threadIdx.x == 0) finite[0] = false;
}

// Stores the results, or the old values where the step is refused and they are wanted elsewhere.
template <class T> __device__ __forceinline__ void write(const Table& table, const Settings& s, const bool* finite) {
  Share mine = share(table);
  const Row& row = table.row[mine.row];
  bool taken = finite[0];
  if (!taken && row.new_p == row.p) return;
  for (i64 i = mine.begin + threadIdx.x; i < mine.end; i += blockDim.x) {
    Moved<T> made = taken ? moved<T>(row, i, s) : Moved<T>{((const T*)row.p)[i], row.m[i], row.v[i]};
    ((T*)row.new_p)[i] = made.p;
    row.new_m[i] = made.m;
    row.new_v[i] = made.v;
  }
}

#define ADAM(T, NAME)                                                                                               \
  extern "C" __global__ void __launch_bounds__(256)                                                                 \
  squares_##NAME(const __grid_constant__ Table table, double* sums) {                                               \
    __shared__ double scratch[32];                                                                                  \
    squares<T>(table, sums, scratch);                                                                               \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256)                                                                 \
  judge_##NAME(const __grid_constant__ Table table, const float* numbers, const float* lr, const float* correction1, \
               const float* correction2, double beta1, double beta2, double eps, bool* finite) {                    \
    judge<T>(table, settings(numbers, lr, correction1, correction2, beta1, beta2, eps), finite);                    \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256)                                                                 \
  write_##NAME(const __grid_constant__ Table table, const float* numbers, const float* lr, const float* correction1, \
               const float* correction2, double beta1, double beta2, double eps, const bool* finite) {              \
    write<T>(table, settings(numbers, lr, correction1, correction2, beta1, beta2, eps), finite);                    \
  }

FLOATS(ADAM)
