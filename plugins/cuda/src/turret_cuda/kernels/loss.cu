// Cross entropy and its gradient, and the sums of weights and terms around them. A row of logits is read once for its
// maximum and the sum of its exponentials together, and once more for the gradient.

#include "rows.cuh"

// What a row weighs: nothing where its target is the ignored one.
__device__ __forceinline__ double weight(const int* targets, const float* weights, i64 ignore, i64 row) {
  if (targets[row] == ignore) return 0.0;
  return weights ? (double)weights[row] : 1.0;
}

extern "C" __global__ void __launch_bounds__(1024)
    weigh(const int* targets, const float* weights, i64 ignore, double* total, i64 rows) {
  __shared__ double scratch[32];
  double sum = 0.0;
  for (i64 row = threadIdx.x; row < rows; row += blockDim.x) sum += weight(targets, weights, ignore, row);
  sum = over_block<Sum>(sum, scratch);
  if (threadIdx.x == 0) *total = sum;
}

// Writes each row's part of the loss, and of the gradient where there is one. A row without a share is not read: its
// differences may overflow.
template <class T>
__device__ __forceinline__ void cross_entropy(const T* logits, const int* targets, const float* weights, i64 ignore,
                                              const double* total, double* terms, T* gradient, i64 rows, i64 classes,
                                              i64 team, Wide<T>* scratch) {
  typedef Wide<T> W;
  const int MOST = Few<T>::MOST;
  for (i64 row = first() / team; row < rows; row += stride() / team) {
    const T* x = logits + row * classes;
    i64 target = targets[row], lane = threadIdx.x % team;
    double own = weight(targets, weights, ignore, row), share = own == 0.0 ? 0.0 : own / *total;
    Exponentials<W> all = {0, 1};
    if (share != 0.0) all = exponentials(x, classes, team, scratch);
    if (lane == 0) {
      W nll = infinity() - infinity();
      if (target >= 0 && target < classes) nll = log(all.sum) - (wide(x[target]) - all.greatest);
      terms[row] = share == 0.0 ? 0.0 : share * nll;
    }
    if (!gradient) continue;
    for (i64 i = lane * MOST; i < classes; i += team * MOST) {
      Few<T> some = {};
      if (share != 0.0) some = few(x + i, classes - i);
      for (int k = 0; k < MOST; ++k) {
        W error = share == 0.0 ? (W)0 : exp(wide(some.at[k]) - all.greatest) / all.sum;
        if (i + k == target) error -= (W)1;
        some.at[k] = narrow<T>(share == 0.0 ? (W)0 : error * (W)share);
      }
      put(gradient + row * classes + i, some, classes - i);
    }
  }
}

#define CROSS_ENTROPY(T, SUFFIX)                                                                           \
  extern "C" __global__ void __launch_bounds__(1024)                                                       \
      cross_entropy_##SUFFIX(const T* logits, const int* targets, const float* weights, i64 ignore,        \
                             const double* total, double* terms, T* gradient, i64 rows, i64 classes,       \
                             i64 team) {                                                                   \
    __shared__ Wide<T> scratch[32];                                                                        \
    cross_entropy(logits, targets, weights, ignore, total, terms, gradient, rows, classes, team, scratch); \
  }
#define ADD(T, SUFFIX)                                                                                     \
  extern "C" __global__ void __launch_bounds__(1024)                                                       \
      add_##SUFFIX(const double* terms, T* loss, i64 rows) {                                               \
    __shared__ double scratch[32];                                                                         \
    double sum = 0.0;                                                                                      \
    for (i64 row = threadIdx.x; row < rows; row += blockDim.x) sum += terms[row];                          \
    sum = over_block<Sum>(sum, scratch);                                                                   \
    if (threadIdx.x == 0) *loss = narrow<T>(sum);                                                          \
  }

FLOATS(CROSS_ENTROPY)
ADD(float, f32)
ADD(double, f64)
