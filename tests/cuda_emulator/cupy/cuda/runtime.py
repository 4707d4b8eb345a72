"""The runtime under the name by which it is imported."""

from cupy_backends.cuda.api.runtime import CUDARuntimeError as CUDARuntimeError
from cupy_backends.cuda.api.runtime import deviceSynchronize as deviceSynchronize
from cupy_backends.cuda.api.runtime import driverGetVersion as driverGetVersion
from cupy_backends.cuda.api.runtime import getDevice as getDevice
from cupy_backends.cuda.api.runtime import getDeviceCount as getDeviceCount
from cupy_backends.cuda.api.runtime import getDeviceProperties as getDeviceProperties
from cupy_backends.cuda.api.runtime import memGetInfo as memGetInfo
from cupy_backends.cuda.api.runtime import runtimeGetVersion as runtimeGetVersion
from cupy_backends.cuda.api.runtime import setDevice as setDevice
