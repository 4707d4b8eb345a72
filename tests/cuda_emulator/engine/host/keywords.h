// The words that CUDA adds to C++, the built-in variables, and what is in every NVRTC program without an #include.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))

#define ON_HOST_HIDDEN __attribute__((visibility("hidden")))
#define ON_HOST_SITE                                                       \
    ({                                                                     \
        static const ::on_host::Site here{__COUNTER__, __func__, __LINE__}; \
        &here;                                                             \
    })

using size_t = decltype(sizeof 0);
using ptrdiff_t = decltype(static_cast<char*>(nullptr) - static_cast<char*>(nullptr));

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};

// A thread sees constants; the runtime changes them while the thread is not running. Hence two names of one symbol.
extern const uint3 threadIdx __asm__("on_host_thread") ON_HOST_HIDDEN;
extern const uint3 blockIdx __asm__("on_host_block") ON_HOST_HIDDEN;
extern const dim3 blockDim __asm__("on_host_block_size") ON_HOST_HIDDEN;
extern const dim3 gridDim __asm__("on_host_grid_size") ON_HOST_HIDDEN;
constexpr int warpSize = 32;

namespace on_host {
extern const unsigned lane __asm__("on_host_lane") ON_HOST_HIDDEN;
extern const unsigned long long serial __asm__("on_host_serial") ON_HOST_HIDDEN;
extern unsigned char* const dynamic_shared __asm__("on_host_dynamic") ON_HOST_HIDDEN;

// Stands for `extern __shared__ T name[]` at file scope, where the address is not known yet.
template <class T>
struct DynamicShared {
    operator T*() const { return reinterpret_cast<T*>(dynamic_shared); }
};
}  // namespace on_host

// What `__shared__ type name[...]` in a function becomes; `symbol` is a name that nothing else has.
#define ON_HOST_SHARED(symbol, name, dimensions, ...)                                                            \
    static struct {                                                                                              \
        unsigned char before[::on_host::zone_bytes];                                                             \
        __VA_ARGS__ value dimensions;                                                                            \
        unsigned char after[::on_host::zone_bytes];                                                              \
    } symbol;                                                                                                    \
    static ::on_host::SharedArray symbol##_entry{symbol.before, int(sizeof symbol.value),                        \
                                                 int(__builtin_offsetof(decltype(symbol), after)), 0, nullptr};  \
    if (symbol##_entry.block != ::on_host::serial) on_host_prepare(&symbol##_entry);                             \
    auto& name = symbol.value;

#define __trap() on_host_trap(ON_HOST_SITE, "__trap()")
#define assert(...) ((__VA_ARGS__) ? (void)0 : on_host_trap(ON_HOST_SITE, "assert(" #__VA_ARGS__ ")"))

extern "C" {
void* memcpy(void*, const void*, size_t) noexcept;
void* memset(void*, int, size_t) noexcept;
}
