// What kernels over rows share: elements moved in words of 16 bytes, sums over the threads of a row, and the maximum and
// the sum of exponentials of a row in one read.

#include "turret.cuh"

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

__device__ __forceinline__ float least(float) { return -3.4028234663852886e38f; }
__device__ __forceinline__ double least(double) { return -1.7976931348623157e308; }

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
