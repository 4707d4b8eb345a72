// The short vectors of CUDA, aligned as on a device.
#pragma once

#define ON_HOST_VECTOR2(type, name, bytes)                       \
    struct alignas(bytes) name {                                 \
        type x, y;                                               \
    };                                                           \
    static inline name make_##name(type x, type y) { return {x, y}; }

#define ON_HOST_VECTOR4(type, name, bytes)                       \
    struct alignas(bytes) name {                                 \
        type x, y, z, w;                                         \
    };                                                           \
    static inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }

#define ON_HOST_VECTOR3(type, name)                              \
    struct name {                                                \
        type x, y, z;                                            \
    };                                                           \
    static inline name make_##name(type x, type y, type z) { return {x, y, z}; }

ON_HOST_VECTOR2(signed char, char2, 2)
ON_HOST_VECTOR2(unsigned char, uchar2, 2)
ON_HOST_VECTOR2(short, short2, 4)
ON_HOST_VECTOR2(unsigned short, ushort2, 4)
ON_HOST_VECTOR2(int, int2, 8)
ON_HOST_VECTOR2(unsigned, uint2, 8)
ON_HOST_VECTOR2(long long, longlong2, 16)
ON_HOST_VECTOR2(unsigned long long, ulonglong2, 16)
ON_HOST_VECTOR2(float, float2, 8)
ON_HOST_VECTOR2(double, double2, 16)

ON_HOST_VECTOR3(int, int3)
ON_HOST_VECTOR3(float, float3)
ON_HOST_VECTOR3(double, double3)
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

ON_HOST_VECTOR4(signed char, char4, 4)
ON_HOST_VECTOR4(unsigned char, uchar4, 4)
ON_HOST_VECTOR4(short, short4, 8)
ON_HOST_VECTOR4(unsigned short, ushort4, 8)
ON_HOST_VECTOR4(int, int4, 16)
ON_HOST_VECTOR4(unsigned, uint4, 16)
ON_HOST_VECTOR4(float, float4, 16)
ON_HOST_VECTOR4(double, double4, 16)
ON_HOST_VECTOR4(long long, longlong4, 16)

#undef ON_HOST_VECTOR2
#undef ON_HOST_VECTOR3
#undef ON_HOST_VECTOR4
