"""The CUDA backend of turret."""

__version__ = "0.1.0"
