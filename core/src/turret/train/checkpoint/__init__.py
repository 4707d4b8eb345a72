"""Checkpoint files: one folder per step, written all or nothing and verified byte for byte when read."""

from turret.train.checkpoint.content import CheckpointContent
from turret.train.checkpoint.manifest import FORMAT, VERSION, FileRecord, Manifest
from turret.train.checkpoint.read import find_checkpoint, read_checkpoint, read_manifest
from turret.train.checkpoint.store import CheckpointStore, LatestGood
from turret.train.checkpoint.write import write_checkpoint

__all__ = [
    "FORMAT",
    "VERSION",
    "CheckpointContent",
    "CheckpointStore",
    "FileRecord",
    "LatestGood",
    "Manifest",
    "find_checkpoint",
    "read_checkpoint",
    "read_manifest",
    "write_checkpoint",
]
