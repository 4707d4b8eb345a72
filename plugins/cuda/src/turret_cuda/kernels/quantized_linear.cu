// Weights in 4-bit NormalFloat: packed, unpacked, and multiplied with a few rows while they are unpacked. Two values are
// a byte, the first in its upper half. Source: Dettmers et al. 2023 (QLoRA), section 3.

#include "rows.cuh"

enum { LEVELS = 16, SCALE_LEVELS = 256, GROUP = 256, ZERO = 7 };  // ZERO: the code of the level 0

// Levels of values and of coded scales, ascending, and the middles between them: at or below a middle the lower level
// is nearest. The last middle stands for none. No coded scale is below `least`.
struct Tables {
  float levels[LEVELS], middles[LEVELS], scale_levels[SCALE_LEVELS], scale_middles[SCALE_LEVELS], least;
};

// Scales of blocks of 2^shift values: float32, or codes with a scale for each GROUP of them and one offset.
struct Scales {
  const void* values;
  const float *groups, *offset;
  i64 shift;
};

// Rounded after the product and after the sum, as where each is a kernel of its own. NaN stays NaN.
__device__ __forceinline__ float scale_of(i64 element, const Scales& scales, const float* levels, float least) {
  i64 block = element >> scales.shift;
  if (!scales.groups) return ((const float*)scales.values)[block];
  float level = levels[((const u8*)scales.values)[block]];
  float scale = __fadd_rn(__fmul_rn(level, scales.groups[block / GROUP]), *scales.offset);
  return scale < least ? least : scale;
}

__device__ __forceinline__ float divisor(float scale) { return scale == 0 ? 1.0f : scale; }

__device__ __forceinline__ int nearest(float unit, const Tables& tables) {
  int code = 0;
#pragma unroll
  for (int k = 0; k < LEVELS - 1; ++k) code += tables.middles[k] < unit;
  return code;
}

// A warp has a block of values.
template <class T>
__device__ __forceinline__ void pack(const Tables& tables, const T* x, u8* codes, float* scales, i64 count, i64 block) {
  int lane = threadIdx.x % 32;
  for (i64 own = first() / 32; own * block < count; own += stride() / 32) {
    i64 begin = own * block, end = begin + block < count ? begin + block : count;
    float scale = 0;
    for (i64 i = begin + lane; i < end; i += 32) scale = Greatest::of(scale, fabsf(narrow<float>(wide(x[i]))));
    scale = over_warp<Greatest>(scale);
    if (lane == 0) scales[own] = scale;
    for (i64 i = begin + 2 * lane; i < end; i += 64) {
      int high = nearest(narrow<float>(wide(x[i])) / divisor(scale), tables), low = ZERO;
      if (i + 1 < end) low = nearest(narrow<float>(wide(x[i + 1])) / divisor(scale), tables);
      codes[i / 2] = (u8)(high << 4 | low);
    }
  }
}

// The mean of all scales, by one block.
extern "C" __global__ void __launch_bounds__(1024) mean(const float* scales, float* offset, i64 count) {
  __shared__ double scratch[32];
  double sum = 0;
  for (i64 i = threadIdx.x; i < count; i += blockDim.x) sum += scales[i];
  sum = over_block<Sum>(sum, scratch);
  if (threadIdx.x == 0) *offset = (float)(sum / count);
}

// A block of GROUP threads has a group of scales.
extern "C" __global__ void __launch_bounds__(GROUP)
    pack_scales(const __grid_constant__ Tables tables, const float* scales, const float* offset, u8* codes,
                float* groups, i64 count) {
  __shared__ float scratch[32];
  for (i64 group = blockIdx.x; group * GROUP < count; group += gridDim.x) {
    i64 i = group * GROUP + threadIdx.x;
    float centred = i < count ? scales[i] - *offset : 0.0f;
    float scale = over_block<Greatest>(fabsf(centred), scratch), unit = centred / divisor(scale);
    int code = 0;
    for (int step = SCALE_LEVELS / 2; step > 0; step /= 2)
      if (tables.scale_middles[code + step - 1] < unit) code += step;
    if (i < count) codes[i] = (u8)code;
    if (threadIdx.x == 0) groups[group] = scale;
  }
}

// out: (rows, columns), the part of a weight of `width` columns that begins at (row, column).
template <class T>
__device__ __forceinline__ void unpack(const Tables& tables, const u8* codes, const Scales& scales, T* out, i64 row,
                                       i64 rows, i64 column, i64 columns, i64 width, float* levels) {
  if (threadIdx.x < LEVELS) levels[threadIdx.x] = tables.levels[threadIdx.x];
  __syncthreads();
  const int MOST = Few<T>::MOST;
  i64 words = (columns + MOST - 1) / MOST;
  for (i64 i = first(); i < rows * words; i += stride()) {
    i64 down = i / words, across = i % words * MOST, element = (row + down) * width + column + across, block = -1;
    Few<T> some = {};
    float scale = 0;
    for (int k = 0; k < MOST; ++k, ++element) {
      if (k >= columns - across) break;
      if (element >> scales.shift != block) {
        block = element >> scales.shift;
        scale = scale_of(element, scales, tables.scale_levels, tables.least);
      }
      int pair = codes[element / 2];
      some.at[k] = narrow<T>(levels[element % 2 ? pair & 15 : pair >> 4] * scale);
    }
    put(out + down * columns + across, some, columns - across);
  }
}

// y = x weight^T + bias for up to ROWS rows of x. A warp has an output, and each of its lanes 32 neighbouring values of
// one block at a time; the rows of x are in shared memory, with a gap after every eight words so that lanes read from
// different banks. `width` is a multiple of 32, and codes begin at a multiple of 16 bytes.
enum { OUTPUTS = 8, OF_LANE = 32, SPAN = 32 * OF_LANE };
struct alignas(16) Four { float at[4]; };
__device__ __forceinline__ int spot(int word) { return word + word / (OF_LANE / 4); }
enum { PITCH = SPAN / 4 + SPAN / OF_LANE };

template <class T, int ROWS>
__device__ __forceinline__ void linear(const Tables& tables, const T* x, const u8* codes, const Scales& scales,
                                       const T* bias, T* y, i64 count, i64 outputs, i64 width, Four* staged,
                                       float* levels, float* scale_levels) {
  const int MOST = Few<T>::MOST;
  int lane = threadIdx.x % 32;
  i64 output = (i64)blockIdx.x * OUTPUTS + threadIdx.x / 32;
  if (threadIdx.x < LEVELS) levels[threadIdx.x] = tables.levels[threadIdx.x];
  if (scales.groups)
    for (int i = threadIdx.x; i < SCALE_LEVELS; i += blockDim.x) scale_levels[i] = tables.scale_levels[i];
  float sums[ROWS] = {};
  for (i64 from = 0; from < width; from += SPAN) {
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * (SPAN / MOST); i += blockDim.x) {
      int row = i / (SPAN / MOST), column = i % (SPAN / MOST) * MOST;
      if (row >= count || column >= width - from) continue;
      Few<T> some = few(x + row * width + from + column, width - from - column);
      for (int k = 0; k < MOST; ++k)
        staged[row * PITCH + spot((column + k) / 4)].at[k % 4] = wide(some.at[k]);
    }
    __syncthreads();
    i64 column = from + lane * OF_LANE, element = output * width + column;
    if (output >= outputs || column >= width) continue;
    Few<unsigned> words = *(const Few<unsigned>*)(codes + element / 2);
    float parts[ROWS] = {};
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      float values[4];
      for (int k = 0; k < 2; ++k) {
        unsigned pair = words.at[w / 2] >> (16 * (w % 2) + 8 * k);
        values[2 * k] = levels[pair >> 4 & 15], values[2 * k + 1] = levels[pair & 15];
      }
      for (int row = 0; row < ROWS; ++row) {
        if (row >= count) break;
        Four mine = staged[row * PITCH + spot(lane * (OF_LANE / 4) + w)];
        for (int k = 0; k < 4; ++k) parts[row] += values[k] * mine.at[k];
      }
    }
    float scale = scale_of(element, scales, scale_levels, tables.least);
    for (int row = 0; row < ROWS; ++row) sums[row] += scale * parts[row];
  }
  for (int row = 0; row < ROWS; ++row) {
    float sum = over_warp<Sum>(sums[row]);
    if (lane == 0 && row < count && output < outputs)
      y[row * outputs + output] = narrow<T>(bias ? sum + wide(bias[output]) : sum);
  }
}

#define PACKED const u8 *codes, const void *scales, const float *groups, const float *offset, i64 shift
#define PACK(T, NAME)                                                                                      \
  extern "C" __global__ void pack_##NAME(const __grid_constant__ Tables tables, const T* x, u8* codes,     \
                                         float* scales, i64 count, i64 block) {                            \
    pack(tables, x, codes, scales, count, block);                                                          \
  }                                                                                                        \
  extern "C" __global__ void unpack_##NAME(const __grid_constant__ Tables tables, PACKED, T* out, i64 row, \
                                           i64 rows, i64 column, i64 columns, i64 width) {                 \
    __shared__ float levels[LEVELS];                                                                       \
    Scales all = {scales, groups, offset, shift};                                                          \
    unpack(tables, codes, all, out, row, rows, column, columns, width, levels);                            \
  }
#define LINEAR(T, NAME, ROWS)                                                                              \
  extern "C" __global__ void __launch_bounds__(32 * OUTPUTS)                                               \
      linear_##NAME##_##ROWS(const __grid_constant__ Tables tables, PACKED, const T* x, const T* bias,     \
                             T* y, i64 count, i64 outputs, i64 width) {                                    \
    __shared__ Four staged[ROWS * PITCH];                                                                  \
    __shared__ float levels[LEVELS], scale_levels[SCALE_LEVELS];                                           \
    Scales all = {scales, groups, offset, shift};                                                          \
    linear<T, ROWS>(tables, x, codes, all, bias, y, count, outputs, width, staged, levels, scale_levels);  \
  }
#define FEW_ROWS(T, NAME) LINEAR(T, NAME, 1) LINEAR(T, NAME, 2) LINEAR(T, NAME, 4) LINEAR(T, NAME, 8)

FLOATS(PACK)
FEW_ROWS(float, f32)
FEW_ROWS(f16, f16)
FEW_ROWS(bf16, bf16)
