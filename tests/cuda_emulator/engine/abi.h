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

// Memory between two addresses: the section that the linker made of all variables placed in it.
struct Region {
    unsigned char *start, *stop;
};

// Addresses of the red zones behind the static shared arrays of one region.
struct Zones {
    unsigned char **start, **stop;
};

constexpr int zone_bytes = 64;

struct Kernel {
    const char* name;
    void (*call)(const unsigned char* frame);
    const Parameter* parameters;
    int count;
    Region shared;
    Zones zones;
};

// The variables of the program that the runtime sets before a thread runs on.
struct Registers {
    Index *thread, *block, *block_size, *grid_size;
    unsigned* lane;
    unsigned char** dynamic;
};

struct Program {
    const Kernel* kernels;
    int count;
    Registers registers;
    Region shared;
    Zones zones;
};

enum Order : int { forward, reverse, shuffled };

// One launch; Python packs it, the arguments of the kernel follow at `frame`.
struct Launch {
    const Program* program;
    const unsigned char* frame;
    unsigned long long seed;
    int kernel;
    Index grid, block;
    int shared_bytes, order, garbage;
};

enum Fault : int { none, illegal_address, deadlock, divergent_barrier, bad_lane, trap };

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
[[noreturn]] ON_HOST_EXPORT void on_host_trap(const on_host::Site* site, const char* what);
}
