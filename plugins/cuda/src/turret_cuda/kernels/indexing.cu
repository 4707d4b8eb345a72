// Rows and elements by index. What only moves is moved in words of 1 to 16 bytes, without looking at it.

#include "turret.cuh"

struct alignas(16) Word16 {
  unsigned long long low, high;
};

// i / size, in half the width where that is enough, which is a quarter of the time.
__device__ __forceinline__ i64 over(i64 i, i64 size) {
  return ((i | size) >> 32) == 0 ? (i64)((unsigned)i / (unsigned)size) : i / size;
}

#define GATHER(T, BYTES)                                                                                   \
  extern "C" __global__ void gather_rows_##BYTES(const T* table, const int* ids, T* out, i64 words,        \
                                                 i64 count) {                                              \
    for (i64 i = first(); i < count; i += stride()) {                                                      \
      i64 token = over(i, words);                                                                          \
      out[i] = table[ids[token] * words + (i - token * words)];                                            \
    }                                                                                                      \
  }

#define GATHER_LAST(T, BYTES)                                                                              \
  extern "C" __global__ void gather_last_##BYTES(const T* x, const int* ids, T* out, i64 step, i64 count,  \
                                                 const __grid_constant__ Geometry g) {                     \
    for (i64 i = first(); i < count; i += stride()) {                                                      \
      i64 row[1];                                                                                          \
      places(g, i, row);                                                                                   \
      out[i] = x[row[0] + ids[i] * step];                                                                  \
    }                                                                                                      \
  }

// Of the tokens with one id the last wins.
extern "C" __global__ void unclaim(const int* ids, int* winners, i64 tokens) {
  for (i64 i = first(); i < tokens; i += stride()) winners[ids[i]] = -1;
}
extern "C" __global__ void claim(const int* ids, int* winners, i64 tokens) {
  for (i64 i = first(); i < tokens; i += stride()) atomicMax(winners + ids[i], (int)i);
}

#define SET(T, BYTES)                                                                                      \
  extern "C" __global__ void set_rows_##BYTES(const T* rows, const int* ids, const int* winners, T* out,   \
                                              i64 words, i64 count) {                                      \
    for (i64 i = first(); i < count; i += stride()) {                                                      \
      i64 token = over(i, words), id = ids[token];                                                         \
      if (winners[id] == token) out[id * words + (i - token * words)] = rows[i];                           \
    }                                                                                                      \
  }

#define MOVE(T, BYTES) GATHER(T, BYTES) SET(T, BYTES)
MOVE(unsigned char, 1)
MOVE(unsigned short, 2)
MOVE(unsigned int, 4)
MOVE(unsigned long long, 8)
MOVE(Word16, 16)
GATHER_LAST(unsigned char, 1)
GATHER_LAST(unsigned short, 2)
GATHER_LAST(unsigned int, 4)
GATHER_LAST(unsigned long long, 8)

// Tokens sorted by id, those of one id in the order they came in: a stable radix sort, 8 bits of the id a pass. A block
// takes a tile of 256 tokens. `offsets` is (256 digits, tiles): how many there are, then where the first of them goes.
enum { TILE = 256 };

__device__ __forceinline__ void load_digits(const int* ids, i64 tokens, i64 tile, i64 shift, int* digits) {
  i64 i = tile * TILE + threadIdx.x;
  digits[threadIdx.x] = i < tokens ? (ids[i] >> shift) & 255 : -1;
  __syncthreads();
}

__device__ __forceinline__ int count_of(int digit, const int* digits, int end) {
  int count = 0;
  for (int i = 0; i < end; ++i) count += digits[i] == digit;
  return count;
}

extern "C" __global__ void tally(const int* ids, int* offsets, i64 tokens, i64 tiles, i64 shift) {
  __shared__ int digits[TILE];
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    load_digits(ids, tokens, tile, shift, digits);
    offsets[threadIdx.x * tiles + tile] = count_of(threadIdx.x, digits, TILE);
    __syncthreads();
  }
}

// Each number becomes the sum of those before it. One block.
extern "C" __global__ void scan(int* numbers, i64 count) {
  __shared__ int sums[2][1024];
  int before = 0, thread = threadIdx.x, last = blockDim.x - 1;
  for (i64 start = 0; start < count; start += blockDim.x) {
    i64 i = start + thread;
    int own = i < count ? numbers[i] : 0, side = 0;
    sums[0][thread] = own;
    __syncthreads();
    for (int distance = 1; distance < blockDim.x; distance *= 2) {
      int sum = sums[side][thread];
      if (thread >= distance) sum += sums[side][thread - distance];
      side = 1 - side;
      sums[side][thread] = sum;
      __syncthreads();
    }
    if (i < count) numbers[i] = before + sums[side][thread] - own;
    before += sums[side][last];
    __syncthreads();
  }
}

// `order` says which token each of `ids` belongs to; null: they are in their first order.
extern "C" __global__ void arrange(const int* ids, const int* order, const int* offsets, int* sorted_ids,
                                   int* sorted_order, i64 tokens, i64 tiles, i64 shift) {
  __shared__ int digits[TILE];
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    load_digits(ids, tokens, tile, shift, digits);
    i64 i = tile * TILE + threadIdx.x;
    if (i < tokens) {
      int digit = digits[threadIdx.x];
      i64 to = offsets[digit * tiles + tile] + count_of(digit, digits, threadIdx.x);
      sorted_ids[to] = ids[i];
      sorted_order[to] = order ? order[i] : (int)i;
    }
    __syncthreads();
  }
}

// Where the tokens of the id at `start` end.
__device__ __forceinline__ i64 end_of(const int* sorted_ids, i64 tokens, i64 start) {
  i64 low = start, high = tokens;  // sorted_ids[low] is this id, sorted_ids[high] is not
  while (high - low > 1) {
    i64 middle = (low + high) / 2;
    if (sorted_ids[middle] == sorted_ids[start])
      low = middle;
    else
      high = middle;
  }
  return high;
}

// The first token of each id adds all rows of that id to the base's row, one after the other; the others do nothing.
// A block takes `blockDim.x` columns of a token. Eight rows are on their way at a time.
template <class T>
__device__ __forceinline__ void add_rows(T* out, const T* rows, const int* sorted_ids, const int* order, i64 tokens,
                                         i64 columns) {
  enum { AT_ONCE = 8 };
  i64 pieces = (columns + blockDim.x - 1) / blockDim.x;
  for (i64 unit = blockIdx.x; unit < tokens * pieces; unit += gridDim.x) {
    i64 start = unit / pieces, column = (unit - start * pieces) * blockDim.x + threadIdx.x;
    if (column >= columns || (start > 0 && sorted_ids[start - 1] == sorted_ids[start])) continue;
    i64 end = end_of(sorted_ids, tokens, start);
    T* to = out + sorted_ids[start] * columns + column;
    Wide<T> total = wide(*to), values[AT_ONCE];
    for (i64 at = start; at < end; at += AT_ONCE) {
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k)
        if (at + k < end) values[k] = wide(rows[order[at + k] * columns + column]);
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k)
        if (at + k < end) total += values[k];
    }
    *to = narrow<T>(total);
  }
}

#define ADD_ROWS(T, NAME)                                                                                  \
  extern "C" __global__ void add_rows_##NAME(T* out, const T* rows, const int* sorted_ids,                 \
                                             const int* order, i64 tokens, i64 columns) {                  \
    add_rows<T>(out, rows, sorted_ids, order, tokens, columns);                                            \
  }

FLOATS(ADD_ROWS)
// Integers wrap, which in C++ only unsigned ones do.
ADD_ROWS(unsigned, i32)
ADD_ROWS(unsigned long long, i64)
