// Attention in memory linear in the number of queries, for float64.

#include "flash_attention.cuh"

DOTS(double, f64)
ATTENTION(double, f64, 64, 32, 32, 32)
