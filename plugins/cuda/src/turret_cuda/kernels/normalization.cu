// Layer norm and RMS norm over rows, and their gradients.

#include "rows.cuh"

// (x - mean) rstd weight + bias; without CENTRED the mean counts as 0 and there is no bias.
template <bool CENTRED, class T>
__device__ __forceinline__ void norm(const T* x, const T* weight, const T* bias, double eps, T* out, Wide<T>* means,
                                     Wide<T>* rstds, i64 rows, i64 size, i64 team, Wide<T>* scratch) {
  typedef Wide<T> W;
  const int MOST = Few<T>::MOST;
  i64 start = threadIdx.x % team * MOST, step = team * MOST;
  for (i64 row = first() / team; row < rows; row += stride() / team) {
    const T* from = x + row * size;
    W mean = 0, square = 0;
    if (CENTRED) {
      for (i64 i = start; i < size; i += step) {
        Few<T> some = few(from + i, size - i);
        for (int k = 0; k < MOST; ++k)
          if (k < size - i) mean += wide(some.at[k]);
      }
      mean = over_team<Sum>(mean, scratch, team) / (W)size;
    }
    for (i64 i = start; i < size; i += step) {
      Few<T> some = few(from + i, size - i);
      for (int k = 0; k < MOST; ++k)
        if (k < size - i) square += (wide(some.at[k]) - mean) * (wide(some.at[k]) - mean);
    }
    W rstd = (W)1 / sqrt(over_team<Sum>(square, scratch, team) / (W)size + (W)eps);
    for (i64 i = start; i < size; i += step) {
      i64 left = size - i;
      Few<T> some = few(from + i, left), scale = few(weight + i, left), shift = scale;
      if (CENTRED) shift = few(bias + i, left);
      for (int k = 0; k < MOST; ++k) {
        W scaled = (wide(some.at[k]) - mean) * rstd * wide(scale.at[k]);
        some.at[k] = narrow<T>(CENTRED ? scaled + wide(shift.at[k]) : scaled);
      }
      put(out + row * size + i, some, left);
    }
    if (start == 0) {
      if (CENTRED) means[row] = mean;
      rstds[row] = rstd;
    }
  }
}

// With n = (x - mean) rstd and g = dy weight: rstd (g - mean(g) - n mean(g n)), without mean(g) where not CENTRED.
template <bool CENTRED, class T>
__device__ __forceinline__ void norm_vjp(const T* dy, const T* x, const T* weight, const Wide<T>* means,
                                         const Wide<T>* rstds, T* dx, i64 rows, i64 size, i64 team, Wide<T>* scratch) {
  typedef Wide<T> W;
  const int MOST = Few<T>::MOST;
  i64 start = threadIdx.x % team * MOST, step = team * MOST;
  for (i64 row = first() / team; row < rows; row += stride() / team) {
    const T *x_row = x + row * size, *dy_row = dy + row * size;
    W mean = CENTRED ? means[row] : (W)0, rstd = rstds[row], level = 0, along = 0;
    for (i64 i = start; i < size; i += step) {
      i64 left = size - i;
      Few<T> some = few(x_row + i, left), slope = few(dy_row + i, left), scale = few(weight + i, left);
      for (int k = 0; k < MOST; ++k)
        if (k < left) {
          W g = wide(slope.at[k]) * wide(scale.at[k]);
          level += g;
          along += g * ((wide(some.at[k]) - mean) * rstd);
        }
    }
    level = CENTRED ? over_team<Sum>(level, scratch, team) / (W)size : (W)0;
    along = over_team<Sum>(along, scratch, team) / (W)size;
    for (i64 i = start; i < size; i += step) {
      i64 left = size - i;
      Few<T> some = few(x_row + i, left), slope = few(dy_row + i, left), scale = few(weight + i, left);
      for (int k = 0; k < MOST; ++k) {
        W g = wide(slope.at[k]) * wide(scale.at[k]), n = (wide(some.at[k]) - mean) * rstd;
        some.at[k] = narrow<T>(rstd * (g - level - n * along));
      }
      put(dx + row * size + i, some, left);
    }
  }
}

// Sums over rows. A block has the 32 columns of its blockIdx.x; warp w takes every row it is given at w, w + 8, ...
// The sums of the 8 warps are added in their order.
enum { TILE = 32, WARPS = 8 };

template <class W> __device__ __forceinline__ W over_warps(W value, W (*scratch)[TILE]) {
  scratch[threadIdx.x / TILE][threadIdx.x % TILE] = value;
  __syncthreads();
  W sum = 0;
  for (int warp = 0; warp < WARPS; ++warp) sum += scratch[warp][threadIdx.x % TILE];
  __syncthreads();
  return sum;
}

// The rows of one chunk, blockIdx.y of gridDim.y: sums of dy n for the weight, of dy for the bias where there is one.
template <class T>
__device__ __forceinline__ void sum_chunks(const T* dy, const T* x, const Wide<T>* means, const Wide<T>* rstds,
                                           Wide<T>* weight_parts, Wide<T>* bias_parts, i64 rows, i64 size,
                                           Wide<T> (*scratch)[TILE]) {
  typedef Wide<T> W;
  i64 column = (i64)blockIdx.x * TILE + threadIdx.x % TILE, chunk = blockIdx.y;
  i64 begin = rows * chunk / gridDim.y, end = rows * (chunk + 1) / gridDim.y;
  W for_weight = 0, for_bias = 0;
  if (column < size)
    for (i64 row = begin + threadIdx.x / TILE; row < end; row += WARPS) {
      W slope = wide(dy[row * size + column]), mean = means ? means[row] : (W)0;
      for_weight += slope * ((wide(x[row * size + column]) - mean) * rstds[row]);
      for_bias += slope;
    }
  for_weight = over_warps(for_weight, scratch);
  if (bias_parts) for_bias = over_warps(for_bias, scratch);
  if (column < size && threadIdx.x < TILE) {
    weight_parts[chunk * size + column] = for_weight;
    if (bias_parts) bias_parts[chunk * size + column] = for_bias;
  }
}

template <class T>
__device__ __forceinline__ void sum_parts(const Wide<T>* parts, T* out, i64 chunks, i64 size,
                                          Wide<T> (*scratch)[TILE]) {
  i64 column = (i64)blockIdx.x * TILE + threadIdx.x % TILE;
  Wide<T> sum = 0;
  if (column < size)
    for (i64 chunk = threadIdx.x / TILE; chunk < chunks; chunk += WARPS) sum += parts[chunk * size + column];
  sum = over_warps(sum, scratch);
  if (column < size && threadIdx.x < TILE) out[column] = narrow<T>(sum);
}

#define NORM(NAME, CENTRED, T, SUFFIX)                                                                     \
  extern "C" __global__ void __launch_bounds__(1024)                                                       \
      NAME##_##SUFFIX(const T* x, const T* weight, const T* bias, double eps, T* out, Wide<T>* means,      \
                      Wide<T>* rstds, i64 rows, i64 size, i64 team) {                                      \
    __shared__ Wide<T> scratch[32];                                                                        \
    norm<CENTRED>(x, weight, bias, eps, out, means, rstds, rows, size, team, scratch);                     \
  }                                                                                                        \
  extern "C" __global__ void __launch_bounds__(1024)                                                       \
      NAME##_vjp_##SUFFIX(const T* dy, const T* x, const T* weight, const Wide<T>* means,                  \
                          const Wide<T>* rstds, T* dx, i64 rows, i64 size, i64 team) {                     \
    __shared__ Wide<T> scratch[32];                                                                        \
    norm_vjp<CENTRED>(dy, x, weight, means, rstds, dx, rows, size, team, scratch);                         \
  }
#define SUMS(T, SUFFIX)                                                                                    \
  extern "C" __global__ void sum_chunks_##SUFFIX(const T* dy, const T* x, const Wide<T>* means,            \
                                                 const Wide<T>* rstds, Wide<T>* weight_parts,              \
                                                 Wide<T>* bias_parts, i64 rows, i64 size) {                \
    __shared__ Wide<T> scratch[WARPS][TILE];                                                               \
    sum_chunks(dy, x, means, rstds, weight_parts, bias_parts, rows, size, scratch);                        \
  }                                                                                                        \
  extern "C" __global__ void sum_parts_##SUFFIX(const Wide<T>* parts, T* out, i64 chunks, i64 size) {      \
    __shared__ Wide<T> scratch[WARPS][TILE];                                                               \
    sum_parts(parts, out, chunks, size, scratch);                                                          \
  }
#define ALL(T, SUFFIX)                                                                                     \
  NORM(layer_norm, true, T, SUFFIX)                                                                        \
  NORM(rms_norm, false, T, SUFFIX)                                                                         \
  SUMS(T, SUFFIX)

FLOATS(ALL)
