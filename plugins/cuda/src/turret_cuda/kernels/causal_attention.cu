// What attention does beside its products: addresses of heads, softmax of the scores that are seen and its derivative,
// sums over the query heads of a group. A row of scores belongs to one block.

#include "turret.cuh"

// The matrices of one array: address of the first, bytes from sequence to sequence and from head to head, and how many
// query heads share one.
enum { MOST_STACKS = 9 };
struct Stack { i64 first, batch, head, group; };
struct Stacks { Stack of[MOST_STACKS]; };

// out[array][sequence * heads + head], `count` for each array.
extern "C" __global__ void addresses(const __grid_constant__ Stacks stacks, i64* out, i64 heads, i64 count,
                                     i64 total) {
  for (i64 i = first(); i < total; i += stride()) {
    const Stack& stack = stacks.of[i / count];
    i64 matrix = i % count;
    out[i] = stack.first + matrix / heads * stack.batch + matrix % heads / stack.group * stack.head;
  }
}

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }

// x: products of queries and keys, (rows, keys), overwritten by probabilities; what is not seen is not read.
template <class T>
__device__ __forceinline__ void softmax(T* x, i64 rows, i64 keys, i64 queries, i64 offset, T scale, T* scratch) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    T* here = x + row * keys;
    i64 seen = offset + row % queries + 1;
    if (seen > keys) seen = keys;
    T greatest = -(T)infinity();
    for (i64 i = threadIdx.x; i < seen; i += blockDim.x) greatest = Greatest::of(greatest, here[i] * scale);
    greatest = over_block<Greatest>(greatest, scratch);
    T sum = 0;
    for (i64 i = threadIdx.x; i < seen; i += blockDim.x) {
      here[i] = exponential(here[i] * scale - greatest);
      sum += here[i];
    }
    sum = over_block<Sum>(sum, scratch);
    for (i64 i = threadIdx.x; i < keys; i += blockDim.x) here[i] = i < seen ? here[i] / sum : (T)0;
  }
}

// dp: gradients of probabilities p, overwritten by those of products of queries and keys. Where p is 0 they are 0,
// whatever an unseen value made of dp.
template <class T>
__device__ __forceinline__ void softmax_vjp(T* dp, i64 rows, i64 keys, const T* p, T scale, T* scratch) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    T* here = dp + row * keys;
    const T* weights = p + row * keys;
    T sum = 0;
    for (i64 i = threadIdx.x; i < keys; i += blockDim.x)
      if (weights[i] != (T)0) sum += here[i] * weights[i];
    sum = over_block<Sum>(sum, scratch);
    for (i64 i = threadIdx.x; i < keys; i += blockDim.x)
      here[i] = weights[i] != (T)0 ? weights[i] * (here[i] - sum) * scale : (T)0;
  }
}

#define ROWS(T, NAME)                                                                                      \
  extern "C" __global__ void softmax_##NAME(T* x, i64 rows, i64 keys, i64 queries, i64 offset,             \
                                            double scale) {                                                \
    __shared__ T scratch[32];                                                                              \
    softmax(x, rows, keys, queries, offset, (T)scale, scratch);                                            \
  }                                                                                                        \
  extern "C" __global__ void softmax_vjp_##NAME(T* dp, i64 rows, i64 keys, const T* p, double scale) {     \
    __shared__ T scratch[32];                                                                              \
    softmax_vjp(dp, rows, keys, p, (T)scale, scratch);                                                     \
  }

ROWS(float, f32)
ROWS(double, f64)

// x: (rows, group, size) added up over the group.
#define GROUPS(T, NAME)                                                                                    \
  extern "C" __global__ void over_groups_##NAME(const Wide<T>* x, T* out, i64 size, i64 group, i64 count) { \
    for (i64 i = first(); i < count; i += stride()) {                                                      \
      const Wide<T>* here = x + i / size * group * size + i % size;                                        \
      Wide<T> sum = 0;                                                                                     \
      for (i64 head = 0; head < group; ++head) sum += here[head * size];                                   \
      out[i] = narrow<T>(sum);                                                                             \
    }                                                                                                      \
  }

FLOATS(GROUPS)
