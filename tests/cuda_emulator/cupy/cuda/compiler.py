"""Sources and their compiled kernels."""

from __future__ import annotations

import functools

from engine import CompileError, Program, compile_source

_IGNORED = ("-std=", "--std=", "--fmad=", "-fmad=", "--generate-line-info", "-lineinfo")


class CompileException(Exception):
    """A source does not compile; the text is the compiler's."""

    def __init__(self, msg: str, source: str, name: str, options: tuple[str, ...], backend: str = "nvrtc") -> None:
        super().__init__()
        self._msg = msg
        self.source = source
        self.name = name
        self.options = options
        self.backend = backend

    def __str__(self) -> str:
        return self._msg

    def get_message(self) -> str:
        return self._msg


@functools.cache
def compiled(code: str, options: tuple[str, ...]) -> Program:
    """The kernels of a source, compiled once in a process. Raises: CompileException."""
    defines: dict[str, str] = {}
    for option in options:
        if option.startswith("-D"):
            name, _, value = option[2:].partition("=")
            defines[name] = value or "1"
        elif not option.startswith(_IGNORED):
            raise CompileException(f"error: unrecognized option {option} found", code, "turret.cu", options)
    try:
        return compile_source(code, defines)
    except CompileError as error:
        raise CompileException(str(error), code, "turret.cu", options) from error
