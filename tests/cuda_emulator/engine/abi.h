// What a compiled program and the runtime that schedules it know of each other.
#pragma once

namespace on_host {

struct Index {
    unsigned x, y, z;
};

enum Kind : int { pointer_kind, integer_kind, float_kind, struct_kind };

struct Parameter {
    int size, offset, kind;
};

constexpr int zone_bytes = 64;

// A static array in shared memory: a red zone, the array, and `zone_at` bytes from the start another red zone. `block`
// is the block that it was last made ready for.
struct SharedArray {
    unsigned char* start;
    int bytes, zone_at;
    unsigned long long block;
    SharedArray* next;
};

struct Kernel {
    const char* name;
    void (*call)(const unsigned char* frame);
    const Parameter* parameters;
    int count;
};

// The variables of the program that the runtime sets before a thread runs on.
struct Registers {
    Index *thread, *block, *block_size, *grid_size;
    unsigned* lane;
    unsigned long long* serial;
    unsigned char** dynamic;
};

struct Program {
    const Kernel* kernels;
    int count;
    Registers registers;
};

enum Order : int { forward, reverse, shuffled };

// One launch; Python packs it, the arguments of the kernel follow at `frame`.
struct Launch {
    const Program* program;
    const unsigned char* frame;
    unsigned long long seed;
    int kernel;
    Index grid, block;
    int shared_bytes, most_shared_bytes, order, garbage;
};

enum Fault : int { none, launch_limit, illegal_address, deadlock, divergent_barrier, bad_lane, trap };

// Where in the source a thread waits; `id` differs between any two places that a program names.
struct Site {
    int id;
    const char* function;
    int line;
};

enum class Vote : unsigned char { sync, ballot, shuffle, active };

}  // namespace on_host

// Between libraries that otherwise keep their names to themselves.
#define ON_HOST_EXPORT __attribute__((visibility("default")))

// What kernels call. A thread that has to wait gives way to others inside.
extern "C" {
ON_HOST_EXPORT int on_host_barrier(const on_host::Site* site, int value);
ON_HOST_EXPORT unsigned long long on_host_warp(const on_host::Site* site, on_host::Vote vote, unsigned mask,
                                               unsigned long long value, int source);
// Before the first use of an array in a block.
ON_HOST_EXPORT void on_host_prepare(on_host::SharedArray* array);
[[noreturn]] ON_HOST_EXPORT void on_host_trap(const on_host::Site* site, const char* what);
}
