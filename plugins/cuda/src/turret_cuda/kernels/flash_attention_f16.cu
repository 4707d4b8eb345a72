// Attention in memory linear in the number of queries, for float16.

#include "flash_attention.cuh"

DOTS(f16, f16)
ATTENTION(f16, f16, 64, 64, 64, 64)
ATTENTION(f16, f16, 128, 64, 64, 32)
