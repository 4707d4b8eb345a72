// Which thread of which block runs next, and on which stack.
#include "machine.h"

namespace on_host {

Machine machine;

namespace {

// Who was woken last runs on first: a warp gets as far ahead of the others as barriers let it, which is what a race
// needs to show. In shuffled order that is left to chance.
Thread& next_ready() {
    Machine& m = machine;
    bool shuffles = m.launch->order == shuffled;
    if (m.round.empty() && m.woken.empty()) resolve_standstill();
    if (!m.woken.empty()) {
        if (shuffles) m.woken.shuffle(m.numbers);
        m.round.admit(m.woken, !shuffles || m.numbers.below(2));
    }
    return m.threads[m.round.take()];
}

void publish(Thread& thread) {
    machine.current = &thread;
    *machine.registers.thread = thread.index;
    *machine.registers.lane = thread.lane;
}

void finish(Thread& thread) {
    Machine& m = machine;
    Warp& warp = m.warps[thread.warp];
    thread.state = State::exited;
    warp.live &= ~(1u << thread.lane);
    --m.live;
    if (warp.voting) {
        check_leaver(thread);
        settle_votes(warp);
    }
    if (m.at_barrier && m.at_barrier == m.live) release_barrier();
}

}  // namespace

// Lets others run until somebody wakes the current thread and its turn comes.
void give_way() {
    Machine& m = machine;
    Thread& self = *m.current;
    Fiber& left = *m.fiber;
    self.fiber = &left;
    if (!m.beginning.empty()) {
        m.fiber = m.fibers.start(run_threads);
        if (!m.fiber) fail(trap, &self, "no memory for the stacks of %d threads", m.count);
        change(left, *m.fiber);
    } else {
        Thread& next = next_ready();
        if (&next != &self) {
            m.fiber = next.fiber;
            change(left, *next.fiber);
        }
    }
    m.fiber = &left;
    publish(self);
}

void run_threads() {
    Machine& m = machine;
    auto call = m.kernel->call;
    const unsigned char* frame = m.launch->frame;
    for (;;) {
        while (!m.beginning.empty()) {
            Thread& thread = m.threads[m.beginning.take()];
            publish(thread);
            call(frame);
            finish(*m.current);
        }
        if (m.live == 0) {
            if (next_block()) continue;
            m.fibers.give_back(m.fiber);
            leave_for(m.caller);
        }
        m.fibers.give_back(m.fiber);
        Thread& next = next_ready();
        m.fiber = next.fiber;
        leave_for(*next.fiber);
    }
}

}  // namespace on_host
