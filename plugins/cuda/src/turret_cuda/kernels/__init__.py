"""CUDA kernels: one `.cu` file for each kind of work, read as text and compiled for the device at hand."""
