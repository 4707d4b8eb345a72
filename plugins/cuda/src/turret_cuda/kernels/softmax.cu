// Softmax and log-softmax over rows, and their gradients. A row is read twice: once for its maximum and the sum of its
// exponentials together, or for the sum a gradient needs, and once for the results.

#include "rows.cuh"

template <bool LOG, class T>
__device__ __forceinline__ void softmax(const T* x, T* out, i64 rows, i64 size, i64 team, Wide<T>* scratch) {
  typedef Wide<T> W;
  const int MOST = Few<T>::MOST;
  for (i64 row = first() / team; row < rows; row += stride() / team) {
    const T* from = x + row * size;
    Exponentials<W> all = exponentials(from, size, team, scratch);
    W log_sum = LOG ? log(all.sum) : (W)0;
    for (i64 i = threadIdx.x % team * MOST; i < size; i += team * MOST) {
      Few<T> some = few(from + i, size - i);
      for (int k = 0; k < MOST; ++k) {
        W shifted = wide(some.at[k]) - all.greatest;
        some.at[k] = narrow<T>(LOG ? shifted - log_sum : exp(shifted) / all.sum);
      }
      put(out + row * size + i, some, size - i);
    }
  }
}

// y (dy - sum(y dy)) for the softmax y, dy - exp(y) sum(dy) for the log-softmax y.
template <bool LOG, class T>
__device__ __forceinline__ void softmax_vjp(const T* dy, const T* y, T* dx, i64 rows, i64 size, i64 team,
                                            Wide<T>* scratch) {
  typedef Wide<T> W;
  const int MOST = Few<T>::MOST;
  for (i64 row = first() / team; row < rows; row += stride() / team) {
    const T *dy_row = dy + row * size, *y_row = y + row * size;
    W sum = 0;
    for (i64 i = threadIdx.x % team * MOST; i < size; i += team * MOST) {
      Few<T> d = few(dy_row + i, size - i), v = d;
      if (!LOG) v = few(y_row + i, size - i);
      for (int k = 0; k < MOST; ++k)
        if (k < size - i) sum += LOG ? wide(d.at[k]) : wide(d.at[k]) * wide(v.at[k]);
    }
    sum = over_team<Sum>(sum, scratch, team);
    for (i64 i = threadIdx.x % team * MOST; i < size; i += team * MOST) {
      Few<T> d = few(dy_row + i, size - i), v = few(y_row + i, size - i);
      for (int k = 0; k < MOST; ++k) {
        W slope = wide(d.at[k]), value = wide(v.at[k]);
        d.at[k] = narrow<T>(LOG ? slope - exp(value) * sum : value * (slope - sum));
      }
      put(dx + row * size + i, d, size - i);
    }
  }
}

#define SOFTMAX(NAME, LOG, T, SUFFIX)                                                                      \
  extern "C" __global__ void __launch_bounds__(1024)                                                       \
      NAME##_##SUFFIX(const T* x, T* out, i64 rows, i64 size, i64 team) {                                  \
    __shared__ Wide<T> scratch[32];                                                                        \
    softmax<LOG>(x, out, rows, size, team, scratch);                                                       \
  }                                                                                                        \
  extern "C" __global__ void __launch_bounds__(1024)                                                       \
      NAME##_vjp_##SUFFIX(const T* dy, const T* y, T* dx, i64 rows, i64 size, i64 team) {                  \
    __shared__ Wide<T> scratch[32];                                                                        \
    softmax_vjp<LOG>(dy, y, dx, rows, size, team, scratch);                                                \
  }
#define BOTH(T, SUFFIX)                                                                                    \
  SOFTMAX(softmax, false, T, SUFFIX)                                                                       \
  SOFTMAX(log_softmax, true, T, SUFFIX)

FLOATS(BOTH)
