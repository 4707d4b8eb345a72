"""Packed NF4 weights: made, unpacked, moved, stored and loaded."""

from . import bitsandbytes as bitsandbytes
from .files import load_packed as load_packed
from .files import save_packed as save_packed
from .weight import PackedWeight as PackedWeight
