// Attention in memory linear in the number of queries, for bfloat16.

#include "flash_attention.cuh"

DOTS(bf16, bf16)
ATTENTION(bf16, bf16, 64, 64, 64, 64)
ATTENTION(bf16, bf16, 128, 64, 64, 32)
