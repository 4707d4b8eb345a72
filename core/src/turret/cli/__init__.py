"""The command line: one module per sub-command, loaded when it is called."""

from .app import main as main
