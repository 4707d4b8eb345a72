// Atomic operations, fences and cached loads. One thread runs at a time, so each is a plain access.
#pragma once

#define ON_HOST_ATOMIC(name, type, updated)                        \
    static inline type name(type* address, type operand) {         \
        type old = *static_cast<volatile type*>(address);          \
        *static_cast<volatile type*>(address) = (updated);         \
        return old;                                                \
    }

#define ON_HOST_ATOMICS_OF_INTEGERS(type)                              \
    ON_HOST_ATOMIC(atomicMax, type, old > operand ? old : operand)     \
    ON_HOST_ATOMIC(atomicMin, type, old < operand ? old : operand)     \
    ON_HOST_ATOMIC(atomicOr, type, old | operand)                      \
    ON_HOST_ATOMIC(atomicAnd, type, old & operand)                     \
    ON_HOST_ATOMIC(atomicXor, type, old ^ operand)

#define ON_HOST_ATOMIC_CAS(type)                                             \
    static inline type atomicCAS(type* address, type expected, type value) { \
        type old = *static_cast<volatile type*>(address);                    \
        if (old == expected) *static_cast<volatile type*>(address) = value;  \
        return old;                                                          \
    }

ON_HOST_ATOMICS_OF_INTEGERS(int)
ON_HOST_ATOMICS_OF_INTEGERS(unsigned)
ON_HOST_ATOMICS_OF_INTEGERS(long long)
ON_HOST_ATOMICS_OF_INTEGERS(unsigned long long)

ON_HOST_ATOMIC(atomicAdd, int, int(unsigned(old) + unsigned(operand)))
ON_HOST_ATOMIC(atomicAdd, unsigned, old + operand)
ON_HOST_ATOMIC(atomicAdd, unsigned long long, old + operand)
ON_HOST_ATOMIC(atomicAdd, float, old + operand)
ON_HOST_ATOMIC(atomicAdd, double, old + operand)
ON_HOST_ATOMIC(atomicSub, int, int(unsigned(old) - unsigned(operand)))
ON_HOST_ATOMIC(atomicSub, unsigned, old - operand)
ON_HOST_ATOMIC(atomicExch, int, operand)
ON_HOST_ATOMIC(atomicExch, unsigned, operand)
ON_HOST_ATOMIC(atomicExch, unsigned long long, operand)
ON_HOST_ATOMIC(atomicExch, float, operand)
ON_HOST_ATOMIC(atomicInc, unsigned, old >= operand ? 0 : old + 1)
ON_HOST_ATOMIC(atomicDec, unsigned, old == 0 || old > operand ? operand : old - 1)
ON_HOST_ATOMIC_CAS(int)
ON_HOST_ATOMIC_CAS(unsigned)
ON_HOST_ATOMIC_CAS(unsigned long long)
ON_HOST_ATOMIC_CAS(unsigned short)

#undef ON_HOST_ATOMIC
#undef ON_HOST_ATOMICS_OF_INTEGERS
#undef ON_HOST_ATOMIC_CAS

static inline void __threadfence() { __asm__ volatile("" ::: "memory"); }
static inline void __threadfence_block() { __asm__ volatile("" ::: "memory"); }
static inline void __threadfence_system() { __asm__ volatile("" ::: "memory"); }

template <class T>
static inline T __ldg(const T* address) {
    return *address;
}
template <class T>
static inline T __ldcg(const T* address) {
    return *address;
}
template <class T>
static inline void __stcg(T* address, T value) {
    *address = value;
}
