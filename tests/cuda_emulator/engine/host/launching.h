// How a kernel is called with arguments that lie one after another in memory, and how a program describes itself.
#pragma once

namespace on_host {

template <class T>
constexpr Kind kind_of = __is_class(T) || __is_union(T) ? struct_kind : integer_kind;
template <class T>
constexpr Kind kind_of<T*> = pointer_kind;
template <>
constexpr Kind kind_of<float> = float_kind;
template <>
constexpr Kind kind_of<double> = float_kind;

template <int... I>
struct Positions {};

template <int count>
using First = Positions<__integer_pack(count)...>;

template <class... P>
struct Signature {
    static constexpr int count = sizeof...(P);

    // Each argument at the next multiple of its alignment, as in a struct.
    static constexpr int offset(int position) {
        constexpr int sizes[] = {int(sizeof(P))..., 0}, alignments[] = {int(alignof(P))..., 1};
        int end = 0;
        for (int i = 0;; ++i) {
            int start = (end + alignments[i] - 1) / alignments[i] * alignments[i];
            if (i == position) return start;
            end = start + sizes[i];
        }
    }

    template <int... I>
    static void call(void (*kernel)(P...), const unsigned char* frame, Positions<I...>) {
        kernel(*reinterpret_cast<const P*>(frame + offset(I))...);
    }

    template <int... I>
    static const Parameter* describe(Positions<I...>) {
        static const Parameter parameters[] = {{int(sizeof(P)), offset(I), kind_of<P>}..., {0, 0, 0}};
        return parameters;
    }
};

template <class... P>
constexpr Signature<P...> signature(void (*)(P...)) {
    return {};
}

template <auto kernel>
struct Entry {
    using Of = decltype(signature(kernel));
    using Order = First<Of::count>;

    static void call(const unsigned char* frame) { Of::call(kernel, frame, Order{}); }
    static const Parameter* parameters() { return Of::describe(Order{}); }
};

}  // namespace on_host

#define ON_HOST_KERNEL(kernel) \
    { #kernel, on_host::Entry<kernel>::call, on_host::Entry<kernel>::parameters(), on_host::Entry<kernel>::Of::count }

extern "C" {
ON_HOST_HIDDEN on_host::Index on_host_thread, on_host_block, on_host_block_size, on_host_grid_size;
ON_HOST_HIDDEN unsigned on_host_lane;
ON_HOST_HIDDEN unsigned long long on_host_serial;
ON_HOST_HIDDEN unsigned char* on_host_dynamic;
}

#define ON_HOST_PROGRAM(...)                                                                                    \
    static const on_host::Kernel on_host_kernels[] = {__VA_ARGS__};                                             \
    extern "C" ON_HOST_EXPORT const on_host::Program on_host_program = {                \
        on_host_kernels,                                                                                        \
        int(sizeof on_host_kernels / sizeof *on_host_kernels),                                                  \
        {&on_host_thread, &on_host_block, &on_host_block_size, &on_host_grid_size, &on_host_lane,               \
         &on_host_serial, &on_host_dynamic},                                                                    \
    };
