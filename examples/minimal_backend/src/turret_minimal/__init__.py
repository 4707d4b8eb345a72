"""The smallest complete backend, written to be read."""

__version__ = "0.1.0"
