"""Metal kernels: their sources, made by small functions, and what starts them."""
