"""What the plugin uses of `cupy.cuda`."""

from cupy_backends.cuda.api import driver as driver
from cupy_backends.cuda.api import runtime as runtime

from . import compiler as compiler
from . import device as device
from . import function as function
from . import memory as memory
from . import stream as stream
from .device import Device as Device
from .function import Function as Function
from .memory import Memory as Memory
from .memory import MemoryPointer as MemoryPointer
from .memory import MemoryPool as MemoryPool
from .memory import UnownedMemory as UnownedMemory
from .stream import Event as Event
from .stream import Graph as Graph
from .stream import Stream as Stream
from .stream import get_current_stream as get_current_stream
