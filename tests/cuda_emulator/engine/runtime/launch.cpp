// One launch: its blocks in their order, faults of the machine caught, one entry for Python.
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "machine.h"

namespace on_host {
namespace {

pthread_t runner;
bool running = false;
const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction previous[4];

void describe_fault(int signal, void* address) {
    const Thread* thread = machine.current;
    if (signal == SIGFPE) fail(trap, thread, "integer division by zero, or of the smallest number by -1");
    if (signal == SIGILL) fail(illegal_address, thread, "misaligned access: the address is no multiple of the type's size");
    if (machine.fibers.below_a_stack(address))
        fail(illegal_address, thread, "local variables or recursion beyond the stack of %zu bytes", stack_bytes);
    if (machine.dynamic_shared.behind(address))
        fail(illegal_address, thread, "access past the %d bytes of dynamic shared memory", machine.launch->shared_bytes);
    fail(illegal_address, thread, "access to %p", address);
}

// On its own stack, and with its signal open, so that leaving for the caller is an ordinary jump.
void on_fault(int signal, siginfo_t* info, void*) {
    if (running && pthread_equal(pthread_self(), runner)) describe_fault(signal, info->si_addr);
    for (int i = 0; i < 4; ++i)
        if (caught[i] == signal) sigaction(signal, &previous[i], nullptr);
}

void catch_faults() {
    static thread_local bool has_stack = false;
    static unsigned char stack[64 << 10] __attribute__((aligned(64)));
    if (!has_stack) {
        stack_t alternative{};
        alternative.ss_sp = stack;
        alternative.ss_size = sizeof stack;
        has_stack = sigaltstack(&alternative, nullptr) == 0;
    }
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    runner = pthread_self();
    for (int i = 0; i < 4; ++i) sigaction(caught[i], &action, &previous[i]);
    running = true;
}

void release_faults() {
    running = false;
    for (int i = 0; i < 4; ++i) sigaction(caught[i], &previous[i], nullptr);
}

unsigned long long greatest_common_divisor(unsigned long long a, unsigned long long b) {
    while (b) {
        unsigned long long rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// Blocks in random order are every stride-th one, from a random first: all of them, since the stride shares no divisor.
void order_blocks() {
    Machine& m = machine;
    const Index grid = m.launch->grid;
    m.block_count = 1ull * grid.x * grid.y * grid.z;
    m.blocks_begun = 0;
    m.block_first = 0;
    m.block_stride = 1;
    if (m.launch->order != shuffled) return;
    unsigned bound = m.block_count > 0x7fffffff ? 0x7fffffff : unsigned(m.block_count);
    m.block_first = m.numbers.below(bound);
    m.block_stride = 1 + m.numbers.below(bound);
    while (greatest_common_divisor(m.block_stride, m.block_count) != 1) ++m.block_stride;
}

void lay_out_threads() {
    Machine& m = machine;
    const Index size = m.launch->block;
    m.count = int(size.x * size.y * size.z);
    if (m.block_size.x == size.x && m.block_size.y == size.y && m.block_size.z == size.z) return;
    m.block_size = size;
    for (unsigned i = 0; i < unsigned(m.count); ++i) {
        m.threads[i].index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
        m.threads[i].lane = i % 32;
        m.threads[i].warp = static_cast<unsigned short>(i / 32);
    }
}

void check_red_zones() {
    Machine& m = machine;
    if (!m.static_shared.intact())
        fail(illegal_address, nullptr, "a thread has written outside of an array in static shared memory");
    if (!m.dynamic_shared.intact())
        fail(illegal_address, nullptr, "a thread has written outside of the %d bytes of dynamic shared memory",
             m.launch->shared_bytes);
}

}  // namespace

void fail(Fault kind, const Thread* thread, const char* format, ...) {
    Machine& m = machine;
    int end = snprintf(m.message, sizeof m.message, "kernel %s, block (%u, %u, %u)", m.kernel->name, m.block.x,
                       m.block.y, m.block.z);
    if (thread)
        end += snprintf(m.message + end, sizeof m.message - end, ", thread (%u, %u, %u)", thread->index.x,
                        thread->index.y, thread->index.z);
    end += snprintf(m.message + end, sizeof m.message - end, ": ");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(m.message + end, sizeof m.message - end, format, arguments);
    va_end(arguments);
    m.fault = kind;
    leave_for(m.caller);
}

bool next_block() {
    Machine& m = machine;
    const Launch& launch = *m.launch;
    if (m.blocks_begun > 0) check_red_zones();
    if (m.blocks_begun == m.block_count) return false;
    unsigned __int128 at = (unsigned __int128)(m.blocks_begun++) * m.block_stride + m.block_first;
    unsigned long long number = (unsigned long long)(at % m.block_count);
    if (launch.order == reverse) number = m.block_count - 1 - number;
    m.block = {unsigned(number % launch.grid.x), unsigned(number / launch.grid.x % launch.grid.y),
               unsigned(number / (1ull * launch.grid.x * launch.grid.y))};
    *m.registers.block = m.block;
    *m.registers.serial = ++m.serial;
    m.static_shared.forget();
    m.dynamic_shared.refill(launch.garbage);

    m.live = m.count;
    m.at_barrier = m.barrier_sum = 0;
    for (int first = 0; first < m.count; first += 32)
        m.warps[first / 32] = {m.count - first >= 32 ? ~0u : (1u << (m.count - first)) - 1, 0};
    m.beginning.clear();
    for (int i = 0; i < m.count; ++i) m.beginning.add(launch.order == reverse ? m.count - 1 - i : i);
    if (launch.order == shuffled) m.beginning.shuffle(m.numbers);
    return true;
}

}  // namespace on_host

using namespace on_host;

void on_host_prepare(SharedArray* array) {
    Machine& m = machine;
    const Launch& launch = *m.launch;
    int bytes = m.static_shared.prepare(*array, m.serial, launch.garbage);
    if (bytes + launch.shared_bytes > launch.most_shared_bytes)
        fail(launch_limit, m.current, "%d bytes of static and %d of dynamic shared memory: at most %d together", bytes,
             launch.shared_bytes, launch.most_shared_bytes);
}

// Runs a launch; answers the kind of the fault that ended it, or zero. The text is on_host_message's.
extern "C" ON_HOST_EXPORT int on_host_launch(const Launch* launch) {
    Machine& m = machine;
    m.launch = launch;
    m.kernel = &launch->program->kernels[launch->kernel];
    m.registers = launch->program->registers;
    m.numbers.state = launch->seed * 0x9E3779B97F4A7C15ull + 0x2545F4914F6CDD1Dull;
    if (m.numbers.state == 0) m.numbers.state = 1;
    m.round.clear();
    m.woken.clear();
    m.fault = none;
    lay_out_threads();
    order_blocks();
    *m.registers.block_size = launch->block;
    *m.registers.grid_size = launch->grid;
    m.fiber = m.dynamic_shared.lay_out(launch->shared_bytes) ? m.fibers.start(run_threads) : nullptr;
    if (!m.fiber) {
        snprintf(m.message, sizeof m.message, "no memory for stacks and shared memory of the emulator");
        return trap;
    }
    *m.registers.dynamic = m.dynamic_shared.start();
    next_block();
    catch_faults();
    change(m.caller, *m.fiber);
    release_faults();
    if (m.fault != none) m.fibers.give_back_all();
    return m.fault;
}

extern "C" ON_HOST_EXPORT const char* on_host_message() { return machine.message; }
