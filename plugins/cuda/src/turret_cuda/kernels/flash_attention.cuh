// Attention in memory linear in the number of queries: scores are made a tile at a time, in registers, and rebuilt for
// the gradients. Source: Dao et al. 2022, algorithms 1 and 4.
//
// A block owns ROWS rows of its results (queries, or keys) and goes over tiles of COLUMNS rows of the other side. Every
// sum is added up by one thread, or by the lanes of one warp, in one order. Rows behind an end are zeros.

#include "turret.cuh"

enum {
  LINES = 8, LANES = 16,  // threads of a block: a thread has every LINES-th row and every LANES-th column of a tile
  THREADS = LINES * LANES,
  DEPTH = 32,  // how much of a product's depth is in shared memory at once
  PITCH = DEPTH / 4 + 1  // from row to row there, in units of four: one more, so that neighbours lie in other banks
};

template <class T> struct alignas(4 * sizeof(T)) Four { T at[4]; };

// WIDTH: how many elements of a head a block computes; a longer head is the work of several.
template <class T, int ROWS_, int COLUMNS_, int WIDTH_> struct Tiles {
  typedef Wide<T> W;
  enum {
    ROWS = ROWS_, COLUMNS = COLUMNS_, WIDTH = WIDTH_,
    DOWN = ROWS / LINES, ACROSS = COLUMNS / LANES, ALONG = WIDTH / (4 * LANES),
    WEIGHTS_PITCH = COLUMNS / 4 + 1,
    WEIGHTS = ROWS * WEIGHTS_PITCH,
    PRODUCT = (ROWS + COLUMNS) * PITCH, MIXED = DEPTH * WIDTH / 4,
    STAGE = PRODUCT > MIXED ? PRODUCT : MIXED
  };
  typedef W Scores[DOWN][ACROSS];
  typedef Four<W> Results[DOWN][ALONG];
};

// Steps in elements between sequences, tokens and heads of one array; the elements of a head are neighbours.
struct Lie { i64 batch, token, head; };

struct Call {
  Lie q, k, v, dy;
  i64 batches, heads, shared, queries, keys, size, offset;  // shared: key-value heads
  i64 parts;  // blocks that share a tile, each with WIDTH elements of its heads
};

template <class T> __device__ __forceinline__ const T* at(const T* x, const Lie& lie, i64 batch, i64 token, i64 head) {
  return x + batch * lie.batch + token * lie.token + head * lie.head;
}

__device__ __forceinline__ i64 lesser(i64 a, i64 b) { return a < b ? a : b; }
__device__ __forceinline__ int line() { return threadIdx.x / LANES; }
__device__ __forceinline__ int lane() { return threadIdx.x % LANES; }

// ROWS rows of QUADS * 4 elements to shared memory; zeros behind their ends. Words where all addresses allow it.
template <int ROWS, int QUADS, int STEP, class T>
__device__ __forceinline__ void fetch(Four<Wide<T>>* to, const T* from, i64 step, i64 rows_left, i64 columns_left) {
  int rows = (int)lesser(rows_left, ROWS), columns = (int)lesser(columns_left, 4 * QUADS);
  if ((((i64)from | step * (i64)sizeof(T)) & (4 * sizeof(T) - 1)) == 0 && columns_left % 4 == 0) {
    const Four<T>* words = (const Four<T>*)from;
    Four<T> none = {};
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * QUADS; i += THREADS) {
      int row = i / QUADS, quad = i % QUADS;
      Four<T> x = row < rows && 4 * quad < columns ? words[row * (step / 4) + quad] : none;
      for (int k = 0; k < 4; ++k) to[row * STEP + quad].at[k] = wide(x.at[k]);
    }
    return;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < ROWS * QUADS * 4; i += THREADS) {
    int row = i / (QUADS * 4), column = i % (QUADS * 4);
    Wide<T>* here = (Wide<T>*)(to + row * STEP) + column;
    *here = row < rows && column < columns ? wide(from[row * step + column]) : (Wide<T>)0;
  }
}

// sums[row][column]: products of the rows of a and of b.
template <class Tile, class T>
__device__ __forceinline__ void product(typename Tile::Scores& sums, const T* a, i64 a_step, i64 a_rows, const T* b,
                                        i64 b_step, i64 b_rows, i64 depth, Four<Wide<T>>* stage) {
  typedef Wide<T> W;
  for (int i = 0; i < Tile::DOWN; ++i)
    for (int j = 0; j < Tile::ACROSS; ++j) sums[i][j] = 0;
#pragma unroll 1
  for (i64 from = 0; from < depth; from += DEPTH) {
    __syncthreads();
    fetch<Tile::ROWS, DEPTH / 4, PITCH>(stage, a + from, a_step, a_rows, depth - from);
    fetch<Tile::COLUMNS, DEPTH / 4, PITCH>(stage + Tile::ROWS * PITCH, b + from, b_step, b_rows, depth - from);
    __syncthreads();
    int quads = depth - from < DEPTH ? (int)(depth - from + 3) / 4 : DEPTH / 4;
#pragma unroll 1
    for (int quad = 0; quad < quads; ++quad) {
      Four<W> right[Tile::ACROSS];
      for (int j = 0; j < Tile::ACROSS; ++j) right[j] = stage[(Tile::ROWS + lane() + j * LANES) * PITCH + quad];
      for (int i = 0; i < Tile::DOWN; ++i) {
        Four<W> left = stage[(line() + i * LINES) * PITCH + quad];
        for (int j = 0; j < Tile::ACROSS; ++j)
          for (int k = 0; k < 4; ++k) sums[i][j] += left.at[k] * right[j].at[k];
      }
    }
  }
}

// Puts weights, which are in registers as scores are, where `mix` reads them.
template <class Tile>
__device__ __forceinline__ void share(const typename Tile::Scores& values, Four<typename Tile::W>* weights) {
  typedef typename Tile::W W;
  for (int i = 0; i < Tile::DOWN; ++i) {
    W* row = (W*)(weights + (line() + i * LINES) * Tile::WEIGHTS_PITCH);
    for (int j = 0; j < Tile::ACROSS; ++j) row[lane() + j * LANES] = values[i][j];
  }
}

// Adds the products of weights (ROWS, COLUMNS) and x (COLUMNS, WIDTH), of which there are `rows` and `columns`.
template <class Tile, class T>
__device__ __forceinline__ void mix(typename Tile::Results& out, const Four<Wide<T>>* weights, const T* x, i64 step,
                                    i64 rows, i64 columns, Four<Wide<T>>* stage) {
  typedef Wide<T> W;
#pragma unroll 1
  for (int from = 0; from < Tile::COLUMNS && from < rows; from += DEPTH) {
    __syncthreads();
    fetch<DEPTH, Tile::WIDTH / 4, Tile::WIDTH / 4>(stage, x + from * step, step, rows - from, columns);
    __syncthreads();
#pragma unroll 1
    for (int quad = 4 * lane() < columns ? 0 : DEPTH / 4; quad < DEPTH / 4; ++quad) {
      Four<W> mine[4][Tile::ALONG];
      for (int k = 0; k < 4; ++k)
        for (int n = 0; n < Tile::ALONG; ++n)
          mine[k][n] = stage[(4 * quad + k) * (Tile::WIDTH / 4) + lane() + n * LANES];
      for (int i = 0; i < Tile::DOWN; ++i) {
        Four<W> weight = weights[(line() + i * LINES) * Tile::WEIGHTS_PITCH + from / 4 + quad];
        for (int k = 0; k < 4; ++k)
          for (int n = 0; n < Tile::ALONG; ++n)
            for (int m = 0; m < 4; ++m) out[i][n].at[m] += weight.at[k] * mine[k][n].at[m];
      }
    }
  }
}

// Writes a thread's results to rows of a dense array, times `factor` of each row.
template <class Tile, class T>
__device__ __forceinline__ void write(T* to, i64 step, i64 rows_left, i64 columns_left,
                                      const typename Tile::Results& results, const Wide<T> (&factor)[Tile::DOWN]) {
  int rows = (int)lesser(rows_left, Tile::ROWS), columns = (int)lesser(columns_left, Tile::WIDTH);
  for (int i = 0; i < Tile::DOWN; ++i)
    for (int n = 0; n < Tile::ALONG; ++n)
      for (int m = 0; m < 4; ++m) {
        int row = line() + i * LINES, column = 4 * (lane() + n * LANES) + m;
        if (row < rows && column < columns) to[row * step + column] = narrow<T>(results[i][n].at[m] * factor[i]);
      }
}

// Over the threads that share a row.
template <class F, class W> __device__ __forceinline__ W over_lanes(W value) {
  for (int distance = LANES / 2; distance > 0; distance /= 2)
    value = F::of(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }

// The piece of work of a block: a part of a tile of rows of one head.
struct Piece { i64 part, batch, head, tile; };
__device__ __forceinline__ Piece piece(i64 parts, i64 heads, i64 batches) {
  unsigned matrices = heads * batches, rest = blockIdx.x / (unsigned)parts, matrix = rest % matrices;
  return Piece{blockIdx.x % (unsigned)parts, matrix / (unsigned)heads, matrix % (unsigned)heads, rest / matrices};
}

// How many keys of the tile from `key` on the query of line i sees.
template <class Tile>
__device__ __forceinline__ int visible(const Call& call, i64 query, i64 key, int i) {
  return (int)lesser(lesser(call.offset + query + line() + i * LINES + 1, call.keys) - key, Tile::COLUMNS);
}

// out: (B, T, H, d), top and total: (B, H, T).
template <class T, class Tile>
__device__ __forceinline__ void attend(const Call& call, const T* q, const T* k, const T* v, double scaled, T* out,
                                       Wide<T>* top, Wide<T>* total, Four<Wide<T>>* stage, Four<Wide<T>>* weights) {
  typedef Wide<T> W;
  Piece mine = piece(call.parts, call.heads, call.batches);
  // the last queries see most keys: they begin first
  i64 tiles = (call.queries + Tile::ROWS - 1) / Tile::ROWS, query = (tiles - 1 - mine.tile) * Tile::ROWS;
  i64 rows = lesser(call.queries - query, Tile::ROWS), seen = lesser(call.offset + query + rows, call.keys);
  i64 begin = mine.part * Tile::WIDTH, shared = mine.head / (call.heads / call.shared);
  W scale = (W)scaled, greatest[Tile::DOWN], sum[Tile::DOWN];
  typename Tile::Results results = {};
  for (int i = 0; i < Tile::DOWN; ++i) greatest[i] = -(W)infinity(), sum[i] = 0;
#pragma unroll 1
  for (i64 key = 0; key < seen; key += Tile::COLUMNS) {
    typename Tile::Scores scores;
    product<Tile>(scores, at(q, call.q, mine.batch, query, mine.head), call.q.token, rows,
                  at(k, call.k, mine.batch, key, shared), call.k.token, seen - key, call.size, stage);
    for (int i = 0; i < Tile::DOWN; ++i) {
      int limit = visible<Tile>(call, query, key, i);
      W before = greatest[i], most = before;
      for (int j = 0; j < Tile::ACROSS; ++j) {
        scores[i][j] = lane() + j * LANES < limit ? scores[i][j] * scale : -(W)infinity();
        if (scores[i][j] > most) most = scores[i][j];  // what is NaN shows in the sum
      }
      greatest[i] = most = over_lanes<Greatest>(most);
      if (most == -(W)infinity()) most = 0;  // a row that sees nothing yet: no difference of infinities
      W shrink = exponential(before - most);
      sum[i] *= shrink;
      for (int j = 0; j < Tile::ACROSS; ++j) sum[i] += scores[i][j] = exponential(scores[i][j] - most);
      for (int n = 0; n < Tile::ALONG; ++n)
        for (int m = 0; m < 4; ++m) results[i][n].at[m] *= shrink;
    }
    share<Tile>(scores, weights);
    mix<Tile>(results, weights, at(v, call.v, mine.batch, key, shared) + begin, call.v.token, seen - key,
              call.size - begin, stage);
  }
  W factor[Tile::DOWN];
  for (int i = 0; i < Tile::DOWN; ++i) {
    sum[i] = over_lanes<Sum>(sum[i]);
    factor[i] = sum[i] == 0 ? (W)0 : 1 / sum[i];
    i64 row = line() + i * LINES, to = (mine.batch * call.heads + mine.head) * call.queries + query + row;
    if (row < rows && mine.part == 0 && lane() == 0) top[to] = greatest[i], total[to] = sum[i];
  }
  T* here = out + ((mine.batch * call.queries + query) * call.heads + mine.head) * call.size + begin;
  write<Tile>(here, call.heads * call.size, rows, call.size - begin, results, factor);
}

// dots[(b, h, t)]: the products of dy and out over a head, which are sum(p dp). A warp has a row.
template <class T>
__device__ __forceinline__ void row_dots(const Call& call, const T* dy, const T* out, Wide<T>* dots, i64 rows) {
  for (i64 row = first() / 32; row < rows; row += stride() / 32) {
    i64 batch = row / (call.heads * call.queries), head = row / call.queries % call.heads, query = row % call.queries;
    const T *left = at(dy, call.dy, batch, query, head);
    const T *right = out + ((batch * call.queries + query) * call.heads + head) * call.size;
    Wide<T> sum = 0;
    for (i64 i = threadIdx.x % 32; i < call.size; i += 32) sum += wide(left[i]) * wide(right[i]);
    sum = over_warp<Sum>(sum);
    if (threadIdx.x % 32 == 0) dots[row] = sum;
  }
}

// The derivative by a scaled product of query and key; what an unseen value made of dp does not matter.
template <class W> __device__ __forceinline__ W slope(W p, W dp, W dot) { return p != 0 ? p * (dp - dot) : (W)0; }

template <class T, class Tile>
__device__ __forceinline__ void vjp_queries(const Call& call, const T* dy, const T* q, const T* k, const T* v,
                                            double scaled, const Wide<T>* top, const Wide<T>* total,
                                            const Wide<T>* dots, T* dq, Four<Wide<T>>* stage,
                                            Four<Wide<T>>* weights) {
  typedef Wide<T> W;
  Piece mine = piece(call.parts, call.heads, call.batches);
  i64 tiles = (call.queries + Tile::ROWS - 1) / Tile::ROWS, query = (tiles - 1 - mine.tile) * Tile::ROWS;
  i64 rows = lesser(call.queries - query, Tile::ROWS), seen = lesser(call.offset + query + rows, call.keys);
  i64 begin = mine.part * Tile::WIDTH, shared = mine.head / (call.heads / call.shared);
  const W* statistics[3] = {top, total, dots};
  for (int i = 0; i < 3; ++i) statistics[i] += (mine.batch * call.heads + mine.head) * call.queries + query + line();
  W scale = (W)scaled;
  typename Tile::Results results = {};
#pragma unroll 1
  for (i64 key = 0; key < seen; key += Tile::COLUMNS) {
    typename Tile::Scores p, ds;
    product<Tile>(p, at(q, call.q, mine.batch, query, mine.head), call.q.token, rows,
                  at(k, call.k, mine.batch, key, shared), call.k.token, seen - key, call.size, stage);
    product<Tile>(ds, at(dy, call.dy, mine.batch, query, mine.head), call.dy.token, rows,
                  at(v, call.v, mine.batch, key, shared), call.v.token, seen - key, call.size, stage);
    for (int i = 0; i < Tile::DOWN; ++i) {
      bool there = line() + i * LINES < rows;
      int limit = there ? visible<Tile>(call, query, key, i) : 0;
      W most = there ? statistics[0][i * LINES] : (W)0, inverse = there ? 1 / statistics[1][i * LINES] : (W)0;
      W dot = there ? statistics[2][i * LINES] : (W)0;
      for (int j = 0; j < Tile::ACROSS; ++j) {
        p[i][j] = lane() + j * LANES < limit ? exponential(p[i][j] * scale - most) * inverse : (W)0;
        ds[i][j] = slope(p[i][j], ds[i][j], dot);
      }
    }
    share<Tile>(ds, weights);
    mix<Tile>(results, weights, at(k, call.k, mine.batch, key, shared) + begin, call.k.token, seen - key,
              call.size - begin, stage);
  }
  W factor[Tile::DOWN];
  for (int i = 0; i < Tile::DOWN; ++i) factor[i] = scale;
  T* here = dq + ((mine.batch * call.queries + query) * call.heads + mine.head) * call.size + begin;
  write<Tile>(here, call.heads * call.size, rows, call.size - begin, results, factor);
}

// Rows are keys here, and columns queries.
template <class T, class Tile>
__device__ __forceinline__ void vjp_keys(const Call& call, const T* dy, const T* q, const T* k, const T* v,
                                         double scaled, const Wide<T>* top, const Wide<T>* total, const Wide<T>* dots,
                                         T* dk, T* dv, Four<Wide<T>>* stage, Four<Wide<T>>* weights) {
  typedef Wide<T> W;
  Piece mine = piece(call.parts, call.shared, call.batches);
  i64 key = mine.tile * Tile::ROWS, rows = lesser(call.keys - key, Tile::ROWS), begin = mine.part * Tile::WIDTH;
  i64 group = call.heads / call.shared, earliest = key > call.offset ? key - call.offset : 0;
  W scale = (W)scaled;
  typename Tile::Results by_key = {}, by_value = {};
#pragma unroll 1
  for (i64 head = mine.head * group; head < (mine.head + 1) * group; ++head) {
    i64 row_of = (mine.batch * call.heads + head) * call.queries;
#pragma unroll 1
    for (i64 query = earliest / Tile::COLUMNS * Tile::COLUMNS; query < call.queries; query += Tile::COLUMNS) {
      typename Tile::Scores p, ds;
      const T *q_here = at(q, call.q, mine.batch, query, head), *dy_here = at(dy, call.dy, mine.batch, query, head);
      product<Tile>(p, at(k, call.k, mine.batch, key, mine.head), call.k.token, rows, q_here, call.q.token,
                    call.queries - query, call.size, stage);
      product<Tile>(ds, at(v, call.v, mine.batch, key, mine.head), call.v.token, rows, dy_here, call.dy.token,
                    call.queries - query, call.size, stage);
      for (int j = 0; j < Tile::ACROSS; ++j) {
        i64 column = query + lane() + j * LANES;
        bool there = column < call.queries;
        W most = there ? top[row_of + column] : (W)0, inverse = there ? 1 / total[row_of + column] : (W)0;
        W dot = there ? dots[row_of + column] : (W)0;
        int limit = there ? (int)lesser(lesser(call.offset + column + 1, call.keys) - key, Tile::ROWS) : 0;
        for (int i = 0; i < Tile::DOWN; ++i) {
          p[i][j] = line() + i * LINES < limit ? exponential(p[i][j] * scale - most) * inverse : (W)0;
          ds[i][j] = slope(p[i][j], ds[i][j], dot);
        }
      }
      share<Tile>(p, weights);
      mix<Tile>(by_value, weights, dy_here + begin, call.dy.token, call.queries - query, call.size - begin, stage);
      __syncthreads();
      share<Tile>(ds, weights);
      mix<Tile>(by_key, weights, q_here + begin, call.q.token, call.queries - query, call.size - begin, stage);
    }
  }
  W factor[Tile::DOWN], one[Tile::DOWN];
  for (int i = 0; i < Tile::DOWN; ++i) factor[i] = scale, one[i] = 1;
  i64 here = ((mine.batch * call.keys + key) * call.shared + mine.head) * call.size + begin;
  write<Tile>(dk + here, call.shared * call.size, rows, call.size - begin, by_key, factor);
  write<Tile>(dv + here, call.shared * call.size, rows, call.size - begin, by_value, one);
}

#define KERNEL(NAME) extern "C" __global__ void __launch_bounds__(THREADS, 2) NAME
#define ATTENTION(T, NAME, WIDTH, ROWS, COLUMNS, KEYS)                                                     \
  KERNEL(attend_##NAME##_##WIDTH)(const __grid_constant__ Call call, const T* q, const T* k, const T* v,   \
                                  double scale, T* out, Wide<T>* top, Wide<T>* total) {                    \
    typedef Tiles<T, ROWS, COLUMNS, WIDTH> Tile;                                                           \
    __shared__ Four<Wide<T>> stage[Tile::STAGE], weights[Tile::WEIGHTS];                                   \
    attend<T, Tile>(call, q, k, v, scale, out, top, total, stage, weights);                                \
  }                                                                                                        \
  KERNEL(vjp_queries_##NAME##_##WIDTH)(const __grid_constant__ Call call, const T* dy, const T* q,         \
                                       const T* k, const T* v, double scale, const Wide<T>* top,           \
                                       const Wide<T>* total, const Wide<T>* dots, T* dq) {                 \
    typedef Tiles<T, ROWS, COLUMNS, WIDTH> Tile;                                                           \
    __shared__ Four<Wide<T>> stage[Tile::STAGE], weights[Tile::WEIGHTS];                                   \
    vjp_queries<T, Tile>(call, dy, q, k, v, scale, top, total, dots, dq, stage, weights);                  \
  }                                                                                                        \
  KERNEL(vjp_keys_##NAME##_##WIDTH)(const __grid_constant__ Call call, const T* dy, const T* q,            \
                                    const T* k, const T* v, double scale, const Wide<T>* top,              \
                                    const Wide<T>* total, const Wide<T>* dots, T* dk, T* dv) {             \
    typedef Tiles<T, KEYS, COLUMNS, WIDTH> Tile;                                                           \
    __shared__ Four<Wide<T>> stage[Tile::STAGE], weights[Tile::WEIGHTS];                                   \
    vjp_keys<T, Tile>(call, dy, q, k, v, scale, top, total, dots, dk, dv, stage, weights);                 \
  }

// row_dots of one dtype, and the rest for one WIDTH.
#define DOTS(T, NAME)                                                                                      \
  extern "C" __global__ void row_dots_##NAME(const __grid_constant__ Call call, const T* dy, const T* out, \
                                             Wide<T>* dots, i64 rows) {                                    \
    row_dots(call, dy, out, dots, rows);                                                                   \
  }
