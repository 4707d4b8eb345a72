// Reinterpretation of bits, bit counting, and conversions that name their rounding.
#pragma once

namespace on_host {
template <class To, class From>
static inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// A device saturates, and turns NaN into zero (32 bits) or the smallest number (64 bits).
template <class To, class From>
static inline To saturated(From x, To smallest, To largest, To of_nan) {
    if (x != x) return of_nan;
    if (x <= From(smallest)) return smallest;
    return x >= From(largest) ? largest : To(x);
}
}  // namespace on_host

static inline int __float_as_int(float x) { return on_host::same_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return on_host::same_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return on_host::same_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return on_host::same_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return on_host::same_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return on_host::same_bits<double>(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
static inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)(x)); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }

static inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1u) << (31 - bit);
    return reversed;
}

static inline int __mulhi(int x, int y) { return int((long long)(x) * y >> 32); }
static inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned((unsigned long long)(x) * y >> 32); }
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)(x) * y >> 64);
}

static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    unsigned long long both = (unsigned long long)(high) << 32 | low;
    return unsigned(both << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    unsigned long long both = (unsigned long long)(high) << 32 | low;
    return unsigned(both >> (shift & 31));
}

static inline int __float2int_rn(float x) {
    return on_host::saturated<int>(double(rintf(x)), -2147483647 - 1, 2147483647, 0);
}
static inline int __float2int_rz(float x) {
    return on_host::saturated<int>(double(truncf(x)), -2147483647 - 1, 2147483647, 0);
}
static inline int __float2int_ru(float x) { return __float2int_rz(ceilf(x)); }
static inline int __float2int_rd(float x) { return __float2int_rz(floorf(x)); }
static inline int __double2int_rn(double x) {
    return on_host::saturated<int>(rint(x), -2147483647 - 1, 2147483647, 0);
}
static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(unsigned x) { return float(x); }
static inline float __ll2float_rn(long long x) { return float(x); }
static inline double __int2double_rn(int x) { return double(x); }
static inline float __double2float_rn(double x) { return float(x); }
