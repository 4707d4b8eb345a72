"""Loops that run outside the interpreter lock, compiled by Numba at their first call."""
