// Barriers of a block and the operations of the lanes of a warp.
#pragma once

#define __syncthreads() ((void)on_host_barrier(ON_HOST_SITE, 0))
#define __syncthreads_count(predicate) on_host_barrier(ON_HOST_SITE, !!(predicate))
#define __syncthreads_or(predicate) int(on_host_barrier(ON_HOST_SITE, !!(predicate)) != 0)
#define __syncthreads_and(predicate) int(on_host_barrier(ON_HOST_SITE, !(predicate)) == 0)

#define __syncwarp(...) on_host::sync_warp(ON_HOST_SITE __VA_OPT__(, ) __VA_ARGS__)
#define __ballot_sync(mask, predicate) on_host::ballot(ON_HOST_SITE, mask, predicate)
#define __any_sync(mask, predicate) int(on_host::ballot(ON_HOST_SITE, mask, predicate) != 0)
#define __all_sync(mask, predicate) int(on_host::ballot(ON_HOST_SITE, mask, !(predicate)) == 0)
#define __activemask() unsigned(on_host_warp(ON_HOST_SITE, on_host::Vote::active, 0, 0, 0))

#define __shfl_sync(...) on_host::shuffle(ON_HOST_SITE, on_host::indexed, __VA_ARGS__)
#define __shfl_up_sync(...) on_host::shuffle(ON_HOST_SITE, on_host::up, __VA_ARGS__)
#define __shfl_down_sync(...) on_host::shuffle(ON_HOST_SITE, on_host::down, __VA_ARGS__)
#define __shfl_xor_sync(...) on_host::shuffle(ON_HOST_SITE, on_host::exclusive, __VA_ARGS__)

namespace on_host {

static inline void sync_warp(const Site* site, unsigned mask = 0xffffffffu) { on_host_warp(site, Vote::sync, mask, 0, 0); }

static inline unsigned ballot(const Site* site, unsigned mask, int predicate) {
    return unsigned(on_host_warp(site, Vote::ballot, mask, predicate != 0, 0));
}

// The lane that each kind of shuffle reads, from the description of the `shfl` instruction: only five bits of the
// operand count, and a lane whose source would lie outside its segment of `width` lanes reads itself.
struct Indexed {};
struct Up {};
struct Down {};
struct Exclusive {};
constexpr Indexed indexed;
constexpr Up up;
constexpr Down down;
constexpr Exclusive exclusive;

static inline int source_lane(Indexed, int operand, int width) {
    return int((lane & ~unsigned(width - 1)) | (unsigned(operand) & unsigned(width - 1)));
}
static inline int source_lane(Up, int operand, int width) {
    int first = int(lane & ~unsigned(width - 1)), wanted = int(lane) - (operand & 31);
    return wanted >= first ? wanted : int(lane);
}
static inline int source_lane(Down, int operand, int width) {
    int last = int(lane | unsigned(width - 1)), wanted = int(lane) + (operand & 31);
    return wanted <= last ? wanted : int(lane);
}
static inline int source_lane(Exclusive, int operand, int width) {
    int last = int(lane | unsigned(width - 1)), wanted = int(lane) ^ (operand & 31);
    return wanted <= last ? wanted : int(lane);
}

#define ON_HOST_SHUFFLE(type)                                                                                 \
    template <class How>                                                                                      \
    static inline type shuffle(const Site* site, How how, unsigned mask, type value, int operand, int width = 32) { \
        unsigned long long bits = 0;                                                                          \
        __builtin_memcpy(&bits, &value, sizeof value);                                                        \
        bits = on_host_warp(site, Vote::shuffle, mask, bits, source_lane(how, operand, width));               \
        __builtin_memcpy(&value, &bits, sizeof value);                                                        \
        return value;                                                                                         \
    }
ON_HOST_SHUFFLE(int)
ON_HOST_SHUFFLE(unsigned)
ON_HOST_SHUFFLE(long)
ON_HOST_SHUFFLE(unsigned long)
ON_HOST_SHUFFLE(long long)
ON_HOST_SHUFFLE(unsigned long long)
ON_HOST_SHUFFLE(float)
ON_HOST_SHUFFLE(double)
#undef ON_HOST_SHUFFLE

}  // namespace on_host
