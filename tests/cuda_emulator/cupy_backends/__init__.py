"""The lower half of the stand-in for CuPy: errors, the runtime API and the machine that it drives."""
