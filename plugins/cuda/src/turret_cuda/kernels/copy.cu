// Moving elements without looking at them: by their width in bytes.

#include "turret.cuh"

#define COPY(T, BYTES)                                                                                     \
  extern "C" __global__ void copy_##BYTES(const T* x, T* out, i64 count, const __grid_constant__ Geometry g) {                     \
    for (i64 i = first(); i < count; i += stride()) {                                                      \
      i64 at[2];                                                                                           \
      places(g, i, at);                                                                                    \
      out[at[1]] = x[at[0]];                                                                               \
    }                                                                                                      \
  }                                                                                                        \
  extern "C" __global__ void fill_##BYTES(i64 word, T* out, i64 count) {                                   \
    for (i64 i = first(); i < count; i += stride()) out[i] = (T)word;                                      \
  }

COPY(unsigned char, 1)
COPY(unsigned short, 2)
COPY(unsigned int, 4)
COPY(unsigned long long, 8)

extern "C" __global__ void arange(int* out, i64 count) {
  for (i64 i = first(); i < count; i += stride()) out[i] = (int)i;
}

// Many arrays in one launch, each without gaps. A block takes one chunk of bytes.
enum { MOST_COPIES = 120, CHUNK_BYTES = 32768 };
struct Copied {
  const char* from;
  char* to;
  i64 bytes, first_chunk;
};
struct Copies {
  i64 rows;
  Copied row[MOST_COPIES];
};

extern "C" __global__ void __launch_bounds__(256) copy_many(const __grid_constant__ Copies table) {
  int row = 0;
  while (row + 1 < table.rows && table.row[row + 1].first_chunk <= (i64)blockIdx.x) ++row;
  const Copied& mine = table.row[row];
  i64 begin = ((i64)blockIdx.x - mine.first_chunk) * CHUNK_BYTES;
  i64 end = begin + CHUNK_BYTES < mine.bytes ? begin + CHUNK_BYTES : mine.bytes;
  i64 words = 0;
  if ((((i64)mine.from | (i64)mine.to) & 7) == 0) {
    words = (end - begin) / 8;
    const i64* from = (const i64*)(mine.from + begin);
    i64* to = (i64*)(mine.to + begin);
    for (i64 i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
  }
  for (i64 i = begin + 8 * words + threadIdx.x; i < end; i += blockDim.x) mine.to[i] = mine.from[i];
}
