// Softmax and log-softmax over rows, and their gradients. A row is read twice: once for its maximum and the sum of its
// exponentials together, or for the sum a gradient needs, and once for the results.

__device__ __forceinline__ float least(float) { return -3.4028234663852886e38f; }
__device__ __forceinline__ double least(double) { return -1.7976931348623157e308; }

// Neighbouring elements, moved as one word of 16 bytes where the address allows it.
template <class T> struct alignas(16) Few {
  enum { MOST = 16 / sizeof(T) };
  T at[MOST];
};

template <class T> __device__ __forceinline__ Few<T> few(const T* from, i64 left) {
  if (left >= Few<T>::MOST && ((i64)from & 15) == 0) return *(const Few<T>*)from;
  Few<T> x = {};
  for (int k = 0; k < Few<T>::MOST; ++k)
    if (k < left) x.at[k] = from[k];
  return x;
}

template <class T> __device__ __forceinline__ void put(T* to, const Few<T>& x, i64 left) {
  if (left >= Few<T>::MOST && ((i64)to & 15) == 0) {
    *(Few<T>*)to = x;
    return;
  }
  for (int k = 0; k < Few<T>::MOST; ++k)
    if (k < left) to[k] = x.at[k];
}

// A row is the work of `team` neighbouring threads: a warp, or the whole block.
template <class F, class T> __device__ __forceinline__ T over_team(T value, T* scratch, i64 team) {
  return team == 32 ? over_warp<F>(value) : over_block<F>(value, scratch);
}

// The greatest element of a row, and the sum of exp(x - greatest).
template <class W> struct Exponentials { W greatest, sum; };

// A thread begins below everything but -inf, so that a difference is NaN only where an element is NaN or inf.
template <class T>
__device__ __forceinline__ Exponentials<Wide<T>> exponentials(const T* row, i64 size, i64 team, Wide<T>* scratch) {
  typedef Wide<T> W;
  const int MOST = Few<T>::MOST;
  W top = least(W()), sum = 0;
  for (i64 i = threadIdx.x % team * MOST; i < size; i += team * MOST) {
    Few<T> x = few(row + i, size - i);
    W before = top;
    for (int k = 0; k < MOST; ++k)
      if (k < size - i && wide(x.at[k]) > top) top = wide(x.at[k]);
    sum *= exp(before - top);
    for (int k = 0; k < MOST; ++k)
      if (k < size - i) sum += exp(wide(x.at[k]) - top);
  }
  W greatest = over_team<Greatest>(top, scratch, team);
  sum = over_team<Sum>(sum * exp(top - greatest), scratch, team);
  return Exponentials<W>{greatest, sum};
}

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
