// CUDA C++ as NVRTC takes it, for a C++17 compiler of the host. Included before a source by the engine.
#pragma once

#include "abi.h"
#include "host/keywords.h"
#include "host/vectors.h"
#include "host/warp.h"
#include "host/memory.h"
#include "host/device_math.h"
#include "host/bits.h"
#include "host/launching.h"
