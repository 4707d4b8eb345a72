"""Finding, checking, probing, choosing and opening backends."""

from .discovery import Entry as Entry
from .opened import OpenBackend as OpenBackend
from .scope import current as current
from .scope import installed as installed
from .scope import open_backend as open_backend
from .scope import register as register
from .scope import use_backend as use_backend
from .selection import Registry as Registry
from .trace import Trace as Trace
from .trace import trace as trace
