// A library with cuBLAS's entry points for products: calls are handed to the emulator's queues, which run them later.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum DataType { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };
enum ComputeType { COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32F_FAST_TF32 = 77 };

constexpr std::size_t WORKSPACE_ALIGNMENT = 256;

struct Handle {
    std::uint64_t stream;
    int math_mode;
};

// As the emulator reads it: nine 64-bit words, then ten 32-bit ones.
struct Call {
    std::uint64_t a, b, c;
    std::int64_t stride_a, stride_b, stride_c;
    double alpha, beta;
    std::int64_t pointers;  // 1: a, b and c are tables of addresses, one for each product
    std::int32_t transpose_a, transpose_b, m, n, k, lda, ldb, ldc, batch, type, type_c, compute;
};

using Submit = int (*)(const Call*, std::uint64_t stream);
Submit submit = nullptr;

float from_half(std::uint16_t bits) {
    const std::uint32_t sign = std::uint32_t(bits & 0x8000) << 16;
    const std::uint32_t magnitude = bits & 0x7fff;
    std::uint32_t word;
    if (magnitude >= 0x7c00) {
        word = 0x7f800000 | (magnitude & 0x3ff) << 13;
    } else if (magnitude >= 0x400) {
        word = (magnitude << 13) + 0x38000000;
    } else {
        const float tiny = float(magnitude) * 5.9604644775390625e-8f;
        std::memcpy(&word, &tiny, 4);
    }
    word |= sign;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

std::uint16_t to_half(float value) {
    std::uint32_t word;
    std::memcpy(&word, &value, 4);
    const std::uint16_t sign = (word >> 16) & 0x8000;
    word &= 0x7fffffff;
    if (word > 0x7f800000) return sign | 0x7e00;
    if (word >= 0x477ff000) return sign | 0x7c00;
    if (word < 0x38800000) {
        float magnitude;
        std::memcpy(&magnitude, &word, 4);
        const float shifted = magnitude + 0.5f;  // the addition rounds to a multiple of 2^-24, ties to even
        std::uint32_t rounded;
        std::memcpy(&rounded, &shifted, 4);
        return sign | std::uint16_t(rounded - 0x3f000000);
    }
    word += 0xfff + ((word >> 13) & 1);
    return sign | std::uint16_t((word - 0x38000000) >> 13);
}

float from_brain(std::uint16_t bits) {
    const std::uint32_t word = std::uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

std::uint16_t to_brain(float value) {
    std::uint32_t word;
    std::memcpy(&word, &value, 4);
    if ((word & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return std::uint16_t((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

// To the 10 bits of mantissa that a tensor core keeps of a float, nearest, ties away from zero.
float to_tf32(float value) {
    std::uint32_t word;
    std::memcpy(&word, &value, 4);
    if ((word & 0x7f800000) != 0x7f800000) word = (word + 0x1000) & 0xffffe000;
    std::memcpy(&value, &word, 4);
    return value;
}

template <typename T>
T load(const void* at, std::int64_t index, int type) {
    switch (type) {
        case R_64F: return T(static_cast<const double*>(at)[index]);
        case R_16F: return from_half(static_cast<const std::uint16_t*>(at)[index]);
        case R_16BF: return from_brain(static_cast<const std::uint16_t*>(at)[index]);
        default: return T(static_cast<const float*>(at)[index]);
    }
}

template <typename T>
void store(void* at, std::int64_t index, int type, T value) {
    switch (type) {
        case R_64F: static_cast<double*>(at)[index] = value; break;
        case R_16F: static_cast<std::uint16_t*>(at)[index] = to_half(float(value)); break;
        case R_16BF: static_cast<std::uint16_t*>(at)[index] = to_brain(float(value)); break;
        default: static_cast<float*>(at)[index] = float(value);
    }
}

// Fills `out`, `across` values for each of k steps, from an operand whose value (i, p) lies at i * step_i + p * step_p.
template <typename T>
void gather(std::vector<T>& out, const void* from, std::int64_t across, std::int64_t k, std::int64_t step_i,
            std::int64_t step_p, const Call& call) {
    out.resize(across * k);
    for (std::int64_t p = 0; p < k; ++p)
        for (std::int64_t i = 0; i < across; ++i)
            out[p * across + i] = load<T>(from, i * step_i + p * step_p, call.type);
    if constexpr (sizeof(T) == sizeof(float))
        if (call.compute == COMPUTE_32F_FAST_TF32)
            for (T& value : out) value = to_tf32(value);
}

// One tile of `accumulate`, whole vectors wide and four rows high, that stays in registers.
template <typename T>
void accumulate_tile(T* sums, const T* left, const T* right, std::int64_t wide, std::int64_t high, std::int64_t k) {
    typedef T Vector __attribute__((vector_size(32)));
    constexpr int LANES = 32 / sizeof(T);
    Vector tile[4][2] = {};
    for (std::int64_t p = 0; p < k; ++p) {
        Vector low, upper;
        std::memcpy(&low, left + p * wide, sizeof low);
        std::memcpy(&upper, left + p * wide + LANES, sizeof upper);
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            tile[r][0] += low * right[p * high + r];
            tile[r][1] += upper * right[p * high + r];
        }
    }
    for (int r = 0; r < 4; ++r) std::memcpy(sums + r * wide, tile[r], sizeof tile[r]);
}

// sums[j * wide + i] = sum over p of left[p * wide + i] * right[p * high + j], each sum in the order of p.
template <typename T>
void accumulate(std::vector<T>& sums, const std::vector<T>& left, const std::vector<T>& right, std::int64_t wide,
                std::int64_t high, std::int64_t k) {
    constexpr std::int64_t WIDTH = 64 / sizeof(T), ROWS = 4;
    sums.resize(wide * high);
    for (std::int64_t i = 0; i < wide; i += WIDTH)
        for (std::int64_t j = 0; j < high; j += ROWS) {
            if (i + WIDTH <= wide && j + ROWS <= high) {
                accumulate_tile(&sums[j * wide + i], left.data() + i, right.data() + j, wide, high, k);
                continue;
            }
            for (std::int64_t r = j; r < std::min(j + ROWS, high); ++r)
                for (std::int64_t c = i; c < std::min(i + WIDTH, wide); ++c) {
                    T sum = 0;
                    for (std::int64_t p = 0; p < k; ++p) sum += left[p * wide + c] * right[p * high + r];
                    sums[r * wide + c] = sum;
                }
        }
}

template <typename T>
void multiply(const Call& call, const void* a, const void* b, void* c) {
    static thread_local std::vector<T> left, right, sums;
    gather(left, a, call.m, call.k, call.transpose_a ? call.lda : 1, call.transpose_a ? 1 : call.lda, call);
    gather(right, b, call.n, call.k, call.transpose_b ? 1 : call.ldb, call.transpose_b ? call.ldb : 1, call);
    const bool tall = call.m >= call.n;
    if (tall)
        accumulate(sums, left, right, call.m, call.n, call.k);
    else
        accumulate(sums, right, left, call.n, call.m, call.k);
    const T alpha = T(call.alpha), beta = T(call.beta);
    for (std::int64_t j = 0; j < call.n; ++j)
        for (std::int64_t i = 0; i < call.m; ++i) {
            const std::int64_t at = j * call.ldc + i;
            T value = alpha * sums[tall ? j * call.m + i : i * call.n + j];
            if (beta != T(0)) value += beta * load<T>(c, at, call.type_c);
            store(c, at, call.type_c, value);
        }
}

bool supported(int type, int type_b, int type_c, int compute) {
    if (type != type_b) return false;
    switch (compute) {
        case COMPUTE_64F: return type == R_64F && type_c == R_64F;
        case COMPUTE_32F_FAST_TF32: return type == R_32F && type_c == R_32F;
        case COMPUTE_32F:
            return (type == R_32F && type_c == R_32F) ||
                   ((type == R_16F || type == R_16BF) && (type_c == type || type_c == R_32F));
        default: return false;
    }
}

bool operation(int op) { return op >= 0 && op <= 2; }

// Checks a call, reads its factors and hands it on.
int hand_over(Handle* handle, Call call, int type_b, const void* alpha, const void* beta) {
    if (handle == nullptr || submit == nullptr) return NOT_INITIALIZED;
    if (!operation(call.transpose_a) || !operation(call.transpose_b)) return INVALID_VALUE;
    if (call.m < 0 || call.n < 0 || call.k < 0 || call.batch < 0) return INVALID_VALUE;
    if (call.lda < std::max(1, call.transpose_a ? call.k : call.m)) return INVALID_VALUE;
    if (call.ldb < std::max(1, call.transpose_b ? call.n : call.k)) return INVALID_VALUE;
    if (call.ldc < std::max(1, call.m)) return INVALID_VALUE;
    if (alpha == nullptr || beta == nullptr) return INVALID_VALUE;
    if (!supported(call.type, type_b, call.type_c, call.compute)) return NOT_SUPPORTED;
    const int factor = call.compute == COMPUTE_64F ? R_64F : R_32F;
    call.alpha = load<double>(alpha, 0, factor);
    call.beta = load<double>(beta, 0, factor);
    if (call.m == 0 || call.n == 0 || call.batch == 0) return SUCCESS;
    return submit(&call, handle->stream) == 0 ? SUCCESS : EXECUTION_FAILED;
}

std::uint64_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }

std::int64_t item_bytes(int type) { return type == R_64F ? 8 : type == R_32F ? 4 : 2; }

}  // namespace

extern "C" {

void emulator_connect(Submit to) { submit = to; }

void emulator_run(const Call* call) {
    for (std::int64_t each = 0; each < call->batch; ++each) {
        std::uint64_t a, b, c;
        if (call->pointers) {
            a = static_cast<const std::uint64_t*>(pointer(call->a))[each];
            b = static_cast<const std::uint64_t*>(pointer(call->b))[each];
            c = static_cast<const std::uint64_t*>(pointer(call->c))[each];
        } else {
            a = call->a + each * call->stride_a * item_bytes(call->type);
            b = call->b + each * call->stride_b * item_bytes(call->type);
            c = call->c + each * call->stride_c * item_bytes(call->type_c);
        }
        if (call->compute == COMPUTE_64F)
            multiply<double>(*call, pointer(a), pointer(b), pointer(c));
        else
            multiply<float>(*call, pointer(a), pointer(b), pointer(c));
    }
}

int cublasCreate_v2(Handle** handle) {
    if (handle == nullptr) return INVALID_VALUE;
    *handle = new Handle{0, 0};
    return SUCCESS;
}

int cublasDestroy_v2(Handle* handle) {
    if (handle == nullptr) return NOT_INITIALIZED;
    delete handle;
    return SUCCESS;
}

int cublasSetStream_v2(Handle* handle, void* stream) {
    if (handle == nullptr) return NOT_INITIALIZED;
    handle->stream = address(stream);
    return SUCCESS;
}

int cublasGetStream_v2(Handle* handle, void** stream) {
    if (handle == nullptr) return NOT_INITIALIZED;
    if (stream == nullptr) return INVALID_VALUE;
    *stream = pointer(handle->stream);
    return SUCCESS;
}

int cublasSetWorkspace_v2(Handle* handle, void* workspace, std::size_t nbytes) {
    if (handle == nullptr) return NOT_INITIALIZED;
    if (address(workspace) % WORKSPACE_ALIGNMENT || (workspace == nullptr && nbytes > 0)) return INVALID_VALUE;
    return SUCCESS;
}

int cublasSetMathMode(Handle* handle, int mode) {
    if (handle == nullptr) return NOT_INITIALIZED;
    handle->math_mode = mode;
    return SUCCESS;
}

int cublasGetVersion_v2(Handle* handle, int* version) {
    if (handle == nullptr) return NOT_INITIALIZED;
    if (version == nullptr) return INVALID_VALUE;
    *version = 130000;
    return SUCCESS;
}

int cublasGemmStridedBatchedEx(Handle* handle, int transa, int transb, int m, int n, int k, const void* alpha,
                               const void* a, int atype, int lda, long long stride_a, const void* b, int btype,
                               int ldb, long long stride_b, const void* beta, void* c, int ctype, int ldc,
                               long long stride_c, int batch, int compute, int) {
    return hand_over(handle,
                     Call{address(a), address(b), address(c), stride_a, stride_b, stride_c, 0, 0, 0, transa, transb, m,
                          n, k, lda, ldb, ldc, batch, atype, ctype, compute},
                     btype, alpha, beta);
}

int cublasGemmEx(Handle* handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* a,
                 int atype, int lda, const void* b, int btype, int ldb, const void* beta, void* c, int ctype, int ldc,
                 int compute, int algorithm) {
    return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, a, atype, lda, 0, b, btype, ldb, 0, beta,
                                      c, ctype, ldc, 0, 1, compute, algorithm);
}

int cublasGemmBatchedEx(Handle* handle, int transa, int transb, int m, int n, int k, const void* alpha,
                        const void* const a[], int atype, int lda, const void* const b[], int btype, int ldb,
                        const void* beta, void* const c[], int ctype, int ldc, int batch, int compute, int) {
    return hand_over(handle,
                     Call{address(a), address(b), address(c), 0, 0, 0, 0, 0, 1, transa, transb, m, n, k, lda, ldb, ldc,
                          batch, atype, ctype, compute},
                     btype, alpha, beta);
}

}  // extern "C"
