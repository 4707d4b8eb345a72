// Attention in memory linear in the number of queries, for float32.

#include "flash_attention.cuh"

DOTS(float, f32)
ATTENTION(float, f32, 64, 64, 64, 64)
ATTENTION(float, f32, 128, 64, 64, 32)
