"""Key-value caches."""

from .contiguous import ContiguousCache as ContiguousCache
