"""Key-value caches."""

from .contiguous import ContiguousCache as ContiguousCache
from .static import StaticCache as StaticCache
