// What every kernel file begins with: number formats, the position of a thread, sums over a block, lists of dtypes.
//
// Kernels take pointers, i64 and double; sizes count elements. What they compute in is Wide<T>: float for float32 and
// both halves, double for float64, the type itself for integers. A result is rounded once, by narrow().

typedef long long i64;
typedef unsigned char u8;

struct f16 { unsigned short bits; };   // IEEE 754 binary16
struct bf16 { unsigned short bits; };  // the upper half of a binary32

template <class T> struct WideOf { typedef T type; };
template <> struct WideOf<f16> { typedef float type; };
template <> struct WideOf<bf16> { typedef float type; };
template <class T> using Wide = typename WideOf<T>::type;

template <class T> __device__ __forceinline__ T wide(T x) { return x; }

__device__ __forceinline__ float wide(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }

__device__ __forceinline__ float wide(f16 x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  _Float16 y;
  __builtin_memcpy(&y, &x, sizeof y);
  return (float)y;
#endif
}

// The value of a double in float, with its last bit set where it is not exact: what rounds it to a half rounds once.
__device__ __forceinline__ float sticky(double x) {
  float y = (float)x;
  if (!((double)y != x) || x != x) return y;
  unsigned bits = __float_as_uint(y);
  if (fabs((double)y) > fabs(x)) bits -= 1;
  return __uint_as_float(bits | 1u);
}

// narrow<T>(x): x rounded to T, ties to even.
template <class T> struct Narrow {
  template <class S> static __device__ __forceinline__ T from(S x) { return (T)x; }
};
template <> struct Narrow<bool> {
  template <class S> static __device__ __forceinline__ bool from(S x) { return x != (S)0; }
};
template <> struct Narrow<bf16> {
  static __device__ __forceinline__ bf16 from(float x) {
    unsigned bits = __float_as_uint(x);
    if (x != x) return bf16{(unsigned short)((bits >> 16) | 0x40u)};
    return bf16{(unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
  }
  template <class S> static __device__ __forceinline__ bf16 from(S x) { return from(sticky((double)x)); }
};
template <> struct Narrow<f16> {
  static __device__ __forceinline__ f16 from(float x) {
    f16 y;
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    _Float16 rounded = (_Float16)x;
    __builtin_memcpy(&y, &rounded, sizeof y);
#endif
    return y;
  }
  template <class S> static __device__ __forceinline__ f16 from(S x) { return from(sticky((double)x)); }
};
template <class T, class S> __device__ __forceinline__ T narrow(S x) { return Narrow<T>::from(x); }

// A scalar operand travels as its bits in the dtype of the arrays it meets.
template <class T> __device__ __forceinline__ T unpacked(i64 word) { return *(const T*)&word; }

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

// The first element of this thread, and how far it is to its next one.
__device__ __forceinline__ i64 first() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ i64 stride() { return (i64)gridDim.x * blockDim.x; }

// Where the elements of up to four arrays lie: sizes of the axes, outermost first, and each array's steps in elements.
enum { MOST_AXES = 32 };
struct Geometry {
  i64 rank;
  i64 sizes[MOST_AXES];
  i64 steps[4][MOST_AXES];
};

// Turns the number of an element into its place in each of COUNT arrays. Not inlined: a hundred kernels call it.
template <int COUNT> __device__ __noinline__ void places(const Geometry& g, i64 element, i64 (&place)[COUNT]) {
  for (int a = 0; a < COUNT; ++a) place[a] = 0;
#pragma unroll 1
  for (int axis = (int)g.rank - 1; axis >= 0; --axis) {
    i64 size = g.sizes[axis], rest, at;
    if (((element | size) >> 32) == 0) {  // half the width is a quarter of the time
      rest = (unsigned)element / (unsigned)size;
      at = element - rest * size;
    } else {
      rest = element / size;
      at = element - rest * size;
    }
    for (int a = 0; a < COUNT; ++a) place[a] += at * g.steps[a][axis];
    element = rest;
  }
}

// Sums and maxima over a block whose threads are whole warps. `scratch` is shared memory for one value of each warp and
// may be used again after the call. Every thread gets the result; the order of the additions is fixed.
struct Sum {
  template <class T> static __device__ __forceinline__ T of(T a, T b) { return a + b; }
};
struct Greatest {  // NaN wins
  template <class T> static __device__ __forceinline__ T of(T a, T b) { return (a > b || a != a) ? a : b; }
};

template <class F, class T> __device__ __forceinline__ T over_warp(T value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = F::of(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

template <class F, class T> __device__ __forceinline__ T over_block(T value, T* scratch) {
  value = over_warp<F>(value);
  int warps = blockDim.x / 32;
  if (warps == 1) return value;
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[0];
  for (int warp = 1; warp < warps; ++warp) value = F::of(value, scratch[warp]);
  __syncthreads();
  return value;
}

// Lists of dtypes: M(type, suffix) for each.
#define FLOATS(M) M(float, f32) M(double, f64) M(f16, f16) M(bf16, bf16)
#define WHOLES(M) M(int, i32) M(i64, i64) M(u8, u8)
#define NUMBERS(M) FLOATS(M) WHOLES(M)
#define EVERY(M) NUMBERS(M) M(bool, b8)
