"""Every error that turret raises on purpose, as one tree.

A message says what was got, what was wanted and what to do next.
"""

from __future__ import annotations


class TurretError(Exception):
    """Root of the tree: catching it catches everything turret raises on purpose."""


class BackendNotFound(TurretError):
    """No installed plugin has this name."""


class BackendUnavailable(TurretError):
    """The plugin is there, but its device or library cannot be used here."""


class PluginError(TurretError):
    """A plugin broke a rule of the interface or raised while it was loaded."""


class SpiMismatch(PluginError):
    """A plugin was written for another version of the backend interface."""


class CapabilityMissing(TurretError):
    """An operation needs a capability that nobody provides."""


class Unsupported(TurretError):
    """A documented limit: the request is understood and refused."""


class ShapeError(TurretError):
    """A shape does not fit the operation."""


class DTypeError(TurretError):
    """A dtype does not fit the operation, or the device does not have it."""


class BackendMismatch(TurretError):
    """Arrays of two backends met in one operation."""


class GraphError(TurretError):
    """The autograd graph cannot answer: freed, absent or malformed."""


class StaleGraph(GraphError):
    """A parameter was changed after the forward pass that is being differentiated."""


class CaptureError(TurretError):
    """A step reads host values, or keeps state, where it is being captured."""


class NonFiniteError(TurretError):
    """A loss, gradient or update is infinite or not a number."""


class OutOfMemory(TurretError):
    """The device has no room for the result."""


class ConfigError(TurretError):
    """A configuration value is unknown, malformed or contradicts another one."""


class DataError(TurretError):
    """A corpus, token stream or index is not what the consumer needs."""


class CheckpointError(TurretError):
    """A checkpoint is missing, damaged, foreign or for another model."""


class MissingExtra(TurretError):
    """An optional library is needed that is not installed."""


class ServeError(TurretError):
    """The server cannot take or finish a request."""


class SandboxError(TurretError):
    """A tool run was refused or ended outside its limits."""
