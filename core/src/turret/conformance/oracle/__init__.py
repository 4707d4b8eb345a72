"""Truth in float64: one module per slot, one function per method, each written from the paper it cites."""
