// The mathematical functions of a device, by those of the host's C library.
#pragma once

#define ON_HOST_UNARY(name)                                   \
    extern "C" double name(double) noexcept;                  \
    extern "C" float name##f(float) noexcept;                 \
    static inline float name(float x) { return name##f(x); }

#define ON_HOST_BINARY(name)                                              \
    extern "C" double name(double, double) noexcept;                      \
    extern "C" float name##f(float, float) noexcept;                      \
    static inline float name(float x, float y) { return name##f(x, y); }

ON_HOST_UNARY(exp)
ON_HOST_UNARY(exp2)
ON_HOST_UNARY(expm1)
ON_HOST_UNARY(log)
ON_HOST_UNARY(log2)
ON_HOST_UNARY(log10)
ON_HOST_UNARY(log1p)
ON_HOST_UNARY(sqrt)
ON_HOST_UNARY(cbrt)
ON_HOST_UNARY(sin)
ON_HOST_UNARY(cos)
ON_HOST_UNARY(tan)
ON_HOST_UNARY(asin)
ON_HOST_UNARY(acos)
ON_HOST_UNARY(atan)
ON_HOST_UNARY(sinh)
ON_HOST_UNARY(cosh)
ON_HOST_UNARY(tanh)
ON_HOST_UNARY(erf)
ON_HOST_UNARY(erfc)
ON_HOST_UNARY(fabs)
ON_HOST_UNARY(floor)
ON_HOST_UNARY(ceil)
ON_HOST_UNARY(trunc)
ON_HOST_UNARY(round)
ON_HOST_UNARY(rint)
ON_HOST_UNARY(nearbyint)
ON_HOST_BINARY(fmax)
ON_HOST_BINARY(fmin)
ON_HOST_BINARY(fmod)
ON_HOST_BINARY(pow)
ON_HOST_BINARY(atan2)
ON_HOST_BINARY(hypot)
ON_HOST_BINARY(copysign)
ON_HOST_BINARY(nextafter)
#undef ON_HOST_UNARY
#undef ON_HOST_BINARY

extern "C" {
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
double ldexp(double, int) noexcept;
float ldexpf(float, int) noexcept;
void sincos(double, double*, double*) noexcept;
void sincosf(float, float*, float*) noexcept;
long lrint(double) noexcept;
long lrintf(float) noexcept;
long long llrint(double) noexcept;
long long llrintf(float) noexcept;
int abs(int) noexcept;
long labs(long) noexcept;
long long llabs(long long) noexcept;
}

static inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
static inline float ldexp(float x, int exponent) { return ldexpf(x, exponent); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline long abs(long x) { return labs(x); }
static inline long long abs(long long x) { return llabs(x); }
static inline float abs(float x) { return fabsf(x); }
static inline double abs(double x) { return fabs(x); }

static inline bool isfinite(float x) { return __builtin_isfinite(x); }
static inline bool isfinite(double x) { return __builtin_isfinite(x); }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline bool isinf(double x) { return __builtin_isinf(x); }
static inline bool isnan(float x) { return __builtin_isnan(x); }
static inline bool isnan(double x) { return __builtin_isnan(x); }
static inline bool signbit(float x) { return __builtin_signbit(x); }
static inline bool signbit(double x) { return __builtin_signbit(x); }

static inline float __expf(float x) { return expf(x); }
static inline float __exp10f(float x) { return powf(10.0f, x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

#if defined(__x86_64__)
#define ON_HOST_ROUNDED(value) __asm__("" : "+x"(value))
#else
#define ON_HOST_ROUNDED(value) __asm__("" : "+m"(value))
#endif

// Operations that the compiler may not fuse with the next one, as on a device.
#define ON_HOST_UNFUSED(type, name, expression)       \
    static inline type name(type x, type y) {         \
        type result = expression;                     \
        ON_HOST_ROUNDED(result);                      \
        return result;                                \
    }
ON_HOST_UNFUSED(float, __fadd_rn, x + y)
ON_HOST_UNFUSED(float, __fsub_rn, x - y)
ON_HOST_UNFUSED(float, __fmul_rn, x* y)
ON_HOST_UNFUSED(float, __fdiv_rn, x / y)
ON_HOST_UNFUSED(double, __dadd_rn, x + y)
ON_HOST_UNFUSED(double, __dsub_rn, x - y)
ON_HOST_UNFUSED(double, __dmul_rn, x* y)
ON_HOST_UNFUSED(double, __ddiv_rn, x / y)
#undef ON_HOST_UNFUSED
#undef ON_HOST_ROUNDED

static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }

// The pairs of types are those of CUDA: what is ambiguous there is ambiguous here.
#define ON_HOST_MIN_MAX(result, left, right)                                                            \
    static inline result min(left x, right y) { return (result)x < (result)y ? (result)x : (result)y; } \
    static inline result max(left x, right y) { return (result)x > (result)y ? (result)x : (result)y; }
ON_HOST_MIN_MAX(int, int, int)
ON_HOST_MIN_MAX(unsigned, unsigned, unsigned)
ON_HOST_MIN_MAX(unsigned, int, unsigned)
ON_HOST_MIN_MAX(unsigned, unsigned, int)
ON_HOST_MIN_MAX(long, long, long)
ON_HOST_MIN_MAX(unsigned long, unsigned long, unsigned long)
ON_HOST_MIN_MAX(unsigned long, long, unsigned long)
ON_HOST_MIN_MAX(unsigned long, unsigned long, long)
ON_HOST_MIN_MAX(long long, long long, long long)
ON_HOST_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
ON_HOST_MIN_MAX(unsigned long long, long long, unsigned long long)
ON_HOST_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef ON_HOST_MIN_MAX

static inline float min(float x, float y) { return fminf(x, y); }
static inline float max(float x, float y) { return fmaxf(x, y); }
static inline double min(double x, double y) { return fmin(x, y); }
static inline double max(double x, double y) { return fmax(x, y); }
static inline double min(float x, double y) { return fmin(double(x), y); }
static inline double max(float x, double y) { return fmax(double(x), y); }
static inline double min(double x, float y) { return fmin(x, double(y)); }
static inline double max(double x, float y) { return fmax(x, double(y)); }
