// Barriers and the operations of a warp: who waits for whom, and what it means when nobody can run on.
#include "machine.h"

namespace on_host {

void give_way();

namespace {

constexpr const char* named[] = {"__syncwarp", "a ballot", "a shuffle", "__activemask"};

unsigned bit(const Thread& thread) { return 1u << thread.lane; }

Thread& lane_of(const Warp& warp, int lane) { return machine.threads[(&warp - machine.warps) * 32 + lane]; }

// A shuffle needs all lanes it names; the others do not count lanes that have exited.
unsigned awaited(const Thread& thread, const Warp& warp) {
    return thread.vote == Vote::shuffle ? thread.mask : thread.mask & warp.live;
}

bool all_arrived(const Thread& thread, const Warp& warp) {
    unsigned lanes = awaited(thread, warp);
    if ((warp.voting & lanes) != lanes) return false;
    for (unsigned left = lanes; left; left &= left - 1) {
        const Thread& other = lane_of(warp, __builtin_ctz(left));
        if (other.vote != thread.vote || other.mask != thread.mask) return false;
    }
    return true;
}

// Gives each of the lanes what it asked for and lets it run on.
void complete(Warp& warp, Vote vote, unsigned lanes) {
    unsigned long long values[32];
    unsigned ballot = 0;
    for (unsigned left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        values[lane] = lane_of(warp, lane).value;
        ballot |= unsigned(values[lane] & 1) << lane;
    }
    unsigned long long undefined = 0x0101010101010101ull * (unsigned char)(machine.launch->garbage);
    bool backwards = machine.launch->order == reverse;
    warp.voting &= ~lanes;
    for (unsigned left = lanes; left;) {
        int lane = backwards ? 31 - __builtin_clz(left) : __builtin_ctz(left);
        left &= ~(1u << lane);
        Thread& thread = lane_of(warp, lane);
        if (vote == Vote::ballot) thread.value = ballot;
        if (vote == Vote::active) thread.value = lanes;
        if (vote == Vote::shuffle) thread.value = lanes >> thread.source & 1 ? values[thread.source] : undefined;
        wake(thread);
    }
}

// Lanes that have come to the same __activemask and can go no further without it are active together.
bool complete_an_active_mask(Warp& warp) {
    int id = -1;
    unsigned together = 0;
    for (unsigned left = warp.voting; left; left &= left - 1) {
        const Thread& thread = lane_of(warp, __builtin_ctz(left));
        if (thread.vote != Vote::active || (together && thread.site->id != id)) continue;
        id = thread.site->id;
        together |= bit(thread);
    }
    if (together) complete(warp, Vote::active, together);
    return together != 0;
}

[[noreturn]] void fail_at_vote(const Thread& thread, const Warp& warp) {
    const char* what = named[int(thread.vote)];
    unsigned missing = 0, elsewhere = 0;
    for (unsigned left = awaited(thread, warp); left; left &= left - 1) {
        const Thread& other = lane_of(warp, __builtin_ctz(left));
        if (other.state == State::at_barrier) missing |= bit(other);
        else if (other.vote != thread.vote || other.mask != thread.mask) elsewhere |= bit(other);
    }
    if (elsewhere && thread.vote == Vote::shuffle)
        fail(bad_lane, &thread, "%s of %s (line %d) names lanes that do not execute it: mask %08x, lanes %08x wait in "
             "another operation of the warp or with another mask", what, thread.site->function, thread.site->line,
             thread.mask, elsewhere);
    fail(deadlock, &thread, "%s of %s (line %d) can never complete: mask %08x; lanes %08x wait at __syncthreads, lanes "
         "%08x in another operation of the warp", what, thread.site->function, thread.site->line, thread.mask, missing,
         elsewhere);
}

}  // namespace

void release_barrier() {
    Machine& m = machine;
    m.barrier_result = m.barrier_sum;
    m.at_barrier = m.barrier_sum = 0;
    bool backwards = m.launch->order == reverse;
    for (int i = 0; i < m.count; ++i) {
        Thread& thread = m.threads[backwards ? m.count - 1 - i : i];
        if (thread.state == State::at_barrier) wake(thread);
    }
}

void settle_votes(Warp& warp) {
    for (unsigned left = warp.voting; left; left &= left - 1) {
        const Thread& thread = lane_of(warp, __builtin_ctz(left));
        if (thread.state != State::at_vote || thread.vote == Vote::active || !all_arrived(thread, warp)) continue;
        complete(warp, thread.vote, awaited(thread, warp));
    }
}

void check_leaver(const Thread& leaver) {
    const Warp& warp = machine.warps[leaver.warp];
    for (unsigned left = warp.voting; left; left &= left - 1) {
        const Thread& thread = lane_of(warp, __builtin_ctz(left));
        if (thread.vote == Vote::shuffle && (thread.mask & bit(leaver)))
            fail(bad_lane, &thread, "a shuffle of %s (line %d) names lanes that have exited: mask %08x, lane %d has",
                 thread.site->function, thread.site->line, thread.mask, leaver.lane);
    }
}

void resolve_standstill() {
    Machine& m = machine;
    bool some = false;
    for (int i = 0; i * 32 < m.count; ++i)
        if (m.warps[i].voting) some |= complete_an_active_mask(m.warps[i]);
    if (some) return;
    for (int i = 0; i < m.count; ++i)
        if (m.threads[i].state == State::at_vote) fail_at_vote(m.threads[i], m.warps[m.threads[i].warp]);
    fail(deadlock, nullptr, "%d threads wait at a barrier that %d have to reach", m.at_barrier, m.live);
}

}  // namespace on_host

using namespace on_host;

int on_host_barrier(const Site* site, int value) {
    Machine& m = machine;
    Thread& self = *m.current;
    if (m.at_barrier && m.barrier_site->id != site->id)
        fail(divergent_barrier, &self, "reached the __syncthreads of %s (line %d) while %d threads of the block wait at "
             "another, of %s (line %d)", site->function, site->line, m.at_barrier, m.barrier_site->function,
             m.barrier_site->line);
    m.barrier_site = self.site = site;
    m.barrier_sum += value;
    self.state = State::at_barrier;
    if (++m.at_barrier == m.live) release_barrier();
    give_way();
    return m.barrier_result;
}

unsigned long long on_host_warp(const Site* site, Vote vote, unsigned mask, unsigned long long value, int source) {
    Thread& self = *machine.current;
    Warp& warp = machine.warps[self.warp];
    if (vote != Vote::active && !(mask & bit(self)))
        fail(bad_lane, &self, "%s of %s (line %d) is executed by lane %d, which its mask %08x does not name",
             named[int(vote)], site->function, site->line, self.lane, mask);
    if (vote == Vote::shuffle && (mask & ~warp.live))
        fail(bad_lane, &self, "a shuffle of %s (line %d) names lanes that have exited: mask %08x, lanes %08x have",
             site->function, site->line, mask, mask & ~warp.live);
    self.site = site;
    self.vote = vote;
    self.mask = mask;
    self.value = value;
    self.source = static_cast<unsigned char>(source);
    self.state = State::at_vote;
    warp.voting |= bit(self);
    if (vote != Vote::active && all_arrived(self, warp)) complete(warp, vote, awaited(self, warp));
    give_way();
    return self.value;
}

void on_host_trap(const Site* site, const char* what) {
    fail(trap, machine.current, "%s in %s (line %d)", what, site->function, site->line);
}
