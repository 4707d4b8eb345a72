// The state of the one launch that runs at a time.
#pragma once

#include <stdint.h>
#include <string.h>

#include "../abi.h"
#include "fiber.h"
#include "shared_memory.h"

namespace on_host {

enum class State : unsigned char { ready, at_barrier, at_vote, exited };

// One cache line each: many of them are looked at in turn.
struct alignas(64) Thread {
    Fiber* fiber;
    const Site* site;
    unsigned long long value;
    Index index;
    unsigned mask;
    unsigned short lane, warp;
    State state;
    Vote vote;
    unsigned char source;
};

struct Warp {
    unsigned live, voting;
};

// xorshift64*: the same numbers for the same seed everywhere.
struct Numbers {
    uint64_t state;

    unsigned below(unsigned bound) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return unsigned((state * 0x2545F4914F6CDD1Dull >> 32) * bound >> 32);
    }
};

// Threads in the order in which they are to run.
struct Queue {
    unsigned short threads[most_threads];
    int head, tail;

    bool empty() const { return head == tail; }
    void clear() { head = tail = 0; }
    void add(int thread) { threads[tail++] = static_cast<unsigned short>(thread); }
    int take() { return threads[head++]; }
    // The threads of `other`, which is empty then, come before or after all that are here.
    void admit(Queue& other, bool first) {
        int own = tail - head, more = other.tail - other.head;
        memmove(threads + (first ? more : 0), threads + head, own * sizeof *threads);
        memcpy(threads + (first ? 0 : own), other.threads + other.head, more * sizeof *threads);
        head = 0;
        tail = own + more;
        other.clear();
    }
    void shuffle(Numbers& numbers) {
        for (int i = tail - 1; i > head; --i) {
            int j = head + int(numbers.below(unsigned(i - head + 1)));
            unsigned short moved = threads[i];
            threads[i] = threads[j];
            threads[j] = moved;
        }
    }
};

// Blocks one after another; of the running block, threads that have not begun, that can run on, and that wait.
struct Machine {
    const Launch* launch;
    const Kernel* kernel;
    Registers registers;
    Fibers fibers;
    Fiber caller;
    Fiber* fiber;
    Thread* current;
    Thread threads[most_threads];
    Warp warps[most_threads / 32];
    Index block_size;
    Index block;
    int count, live;
    Queue beginning, round, woken;
    Numbers numbers;
    unsigned long long block_count, blocks_begun, block_stride, block_first;
    int at_barrier, barrier_sum, barrier_result;
    const Site* barrier_site;
    StaticShared static_shared;
    unsigned long long serial;
    DynamicShared dynamic_shared;
    Fault fault;
    char message[1024];
};

extern Machine machine;

// Ends the launch: the caller gets `kind` and the text, with the kernel, block and, if given, thread before it.
[[noreturn]] void fail(Fault kind, const Thread* thread, const char* format, ...) __attribute__((format(printf, 3, 4)));

// The beginning of the next block, false after the last.
bool next_block();

// What the fiber does that every launch begins on, and every fiber that is started because another waits.
void run_threads();

// Marks a waiting thread as able to run on.
inline void wake(Thread& thread) {
    thread.state = State::ready;
    machine.woken.add(int(&thread - machine.threads));
}

void release_barrier();
void settle_votes(Warp& warp);
void check_leaver(const Thread& thread);

// Called when threads wait and none can run: wakes some, or fails.
void resolve_standstill();

}  // namespace on_host
