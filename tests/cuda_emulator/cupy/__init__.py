"""A stand-in for the part of CuPy that the cuda plugin uses, over memory and threads of the host."""

from . import cuda as cuda
from . import emulated as emulated
from ._array import broadcast_to as broadcast_to
from ._array import ndarray as ndarray
from ._raw import RawModule as RawModule

__version__ = "0.0+emulated"
EMULATED = True
