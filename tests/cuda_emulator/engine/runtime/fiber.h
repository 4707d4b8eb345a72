// Stacks to run threads on, and the switch from one to another: no system call.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__x86_64__) && !defined(PORTABLE_SWITCH)
#define ASSEMBLY_SWITCH 1
#else
#include <setjmp.h>
#include <ucontext.h>
#endif

namespace on_host {

constexpr int most_threads = 1024;
constexpr size_t stack_bytes = 256 << 10, guard_bytes = 64 << 10;

// An execution that is suspended: a started fiber, or the caller of a launch.
struct Fiber {
#ifdef ASSEMBLY_SWITCH
    void* stack_pointer;
#else
    jmp_buf place;
    ucontext_t beginning;
    bool started;
#endif
    unsigned char* stack;
};

#ifdef ASSEMBLY_SWITCH

// Saves what a function must preserve on the stack it leaves, and takes it from the stack it enters.
extern "C" void on_host_switch(void** left, void* entered);
extern "C" [[noreturn]] void on_host_enter(void* entered);
__asm__(R"(
    .text
    .type on_host_switch, @function
on_host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rdi
    .type on_host_enter, @function
on_host_enter:
    movq %rdi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

inline void restart(Fiber& fiber, unsigned char* top, void (*entry)()) {
    void** words = reinterpret_cast<void**>(top);
    words[-1] = nullptr;
    words[-2] = reinterpret_cast<void*>(entry);
    fiber.stack_pointer = words - 8;
}
inline void change(Fiber& left, Fiber& entered) { on_host_switch(&left.stack_pointer, entered.stack_pointer); }
[[noreturn]] inline void leave_for(Fiber& entered) { on_host_enter(entered.stack_pointer); }

#else

inline void restart(Fiber& fiber, unsigned char* top, void (*entry)()) {
    getcontext(&fiber.beginning);
    fiber.beginning.uc_stack.ss_sp = fiber.stack;
    fiber.beginning.uc_stack.ss_size = size_t(top - fiber.stack);
    fiber.beginning.uc_link = nullptr;
    makecontext(&fiber.beginning, entry, 0);
    fiber.started = false;
}
[[noreturn]] inline void leave_for(Fiber& entered) {
    if (entered.started) _longjmp(entered.place, 1);
    entered.started = true;
    setcontext(&entered.beginning);
    abort();
}
inline void change(Fiber& left, Fiber& entered) {
    left.started = true;
    if (_setjmp(left.place) == 0) leave_for(entered);
}

#endif

// Fibers of one process, each with a stack that is made when it is first needed and below which nothing is mapped.
class Fibers {
  public:
    // A fiber that will begin with `entry`, or null where the memory for its stack is refused.
    Fiber* start(void (*entry)()) {
        if (count_ == 0) {
            if (made_ == most_threads || !make()) return nullptr;
            idle_[count_++] = &fibers_[made_++];
        }
        Fiber* fiber = idle_[--count_];
        // Tops at different distances from a page's start: the caches hold few lines of equal address within it.
        size_t shift = size_t(fiber - fibers_) % 60 * 320;
        restart(*fiber, fiber->stack + stack_bytes - shift, entry);
        return fiber;
    }

    void give_back(Fiber* fiber) { idle_[count_++] = fiber; }

    // After a launch that ended in the middle: nobody runs on any of them.
    void give_back_all() {
        for (count_ = 0; count_ < made_; ++count_) idle_[count_] = &fibers_[count_];
    }

    bool below_a_stack(const void* address) const {
        size_t distance = size_t(static_cast<const unsigned char*>(address) - memory_);
        return memory_ && distance < most_threads * pitch && distance % pitch < guard_bytes;
    }

  private:
    static constexpr size_t pitch = stack_bytes + guard_bytes;

    bool make() {
        if (!memory_) {
            void* memory = mmap(nullptr, most_threads * pitch, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (memory == MAP_FAILED) return false;
            memory_ = static_cast<unsigned char*>(memory);
        }
        Fiber& fiber = fibers_[made_];
        fiber.stack = memory_ + size_t(made_) * pitch + guard_bytes;
        return mprotect(fiber.stack, stack_bytes, PROT_READ | PROT_WRITE) == 0;
    }

    unsigned char* memory_ = nullptr;
    Fiber fibers_[most_threads];
    Fiber* idle_[most_threads];
    int made_ = 0, count_ = 0;
};

}  // namespace on_host
