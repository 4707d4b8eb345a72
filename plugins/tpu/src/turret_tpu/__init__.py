"""The TPU backend of turret."""

__version__ = "0.1.0"
