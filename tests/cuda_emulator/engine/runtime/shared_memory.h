// Shared memory of a block: filled with garbage before it, red zones looked at after it.
#pragma once

#include <string.h>
#include <sys/mman.h>

#include "../abi.h"

namespace on_host {

// No number of any type that is a likely index or value: NaN as 16, 32 and 64 bits.
constexpr unsigned char zone_pattern[2] = {0xFE, 0xFF};

inline void paint(unsigned char* zone, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) zone[i] = zone_pattern[i % 2];
}

inline bool painted(const unsigned char* zone, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i)
        if (zone[i] != zone_pattern[i % 2]) return false;
    return true;
}

// The static arrays that threads of the running block have come to.
class StaticShared {
  public:
    void forget() {
        first_ = nullptr;
        bytes_ = 0;
    }

    // Fills an array with garbage, and answers how many bytes the block uses now.
    int prepare(SharedArray& array, unsigned long long block, int garbage) {
        memset(array.start, garbage, size_t(array.zone_at));
        paint(array.start, zone_bytes);
        paint(array.start + array.zone_at, zone_bytes);
        array.block = block;
        array.next = first_;
        first_ = &array;
        return bytes_ += array.bytes;
    }

    bool intact() const {
        for (const SharedArray* array = first_; array; array = array->next)
            if (!painted(array->start, zone_bytes) || !painted(array->start + array->zone_at, zone_bytes)) return false;
        return true;
    }

  private:
    SharedArray* first_ = nullptr;
    int bytes_ = 0;
};

// Ends at memory that is not mapped, so that most accesses past its end stop where they happen.
class DynamicShared {
  public:
    // Lays out room for `bytes`; false where the memory is refused.
    bool lay_out(int bytes) {
        if (!memory_) {
            void* memory = mmap(nullptr, 2 * guard + most, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (memory == MAP_FAILED) return false;
            memory_ = static_cast<unsigned char*>(memory);
            if (mprotect(memory_ + guard, most, PROT_READ | PROT_WRITE) != 0) return false;
        }
        bytes_ = size_t(bytes);
        start_ = memory_ + guard + most - (bytes_ + 15) / 16 * 16;
        return true;
    }

    void refill(int garbage) const {
        if (bytes_ == 0) return;
        paint(start_ - before, before);
        memset(start_, garbage, bytes_);
        paint(start_ + bytes_, tail());
    }

    bool intact() const { return bytes_ == 0 || (painted(start_ - before, before) && painted(start_ + bytes_, tail())); }

    bool behind(const void* address) const {
        return memory_ && address >= memory_ + guard + most && address < memory_ + 2 * guard + most;
    }

    unsigned char* start() const { return start_; }

  private:
    static constexpr size_t guard = 64 << 10, most = 256 << 10, before = 256;

    size_t tail() const { return (16 - bytes_ % 16) % 16; }

    unsigned char *memory_ = nullptr, *start_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace on_host
