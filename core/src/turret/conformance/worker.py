"""The process in which cases run, so that a crash or a hang is the end of one case and not of the run.

Started by file name in a session of its own, with a JSON request as a line on stdin; ends with all that it started when
stdin ends. Answers on the stdout it was started with, one JSON object a line:
{"opened": facts}, or {"refused": reason}; {"start": id} and {"result": result} for each case; {"idle": true} when there
is none left, and waits for a line with a list of ids, empty for none; {"advice": lines} where it was asked for;
{"closing": true}, and {"closed": true}, or {"refused": reason} once more.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import traceback
from types import TracebackType
from typing import Any


def main() -> None:
    """Runs one request and leaves without exit handlers, which hang in some device libraries."""
    request = json.loads(sys.stdin.readline())
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    further: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lifeline, further), daemon=True).start()
    sys.path[:] = request["path"]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    faulthandler.enable()
    sys.excepthook = _end_at_once
    own = os.getpid()

    def tell(**message: Any) -> None:
        if os.getpid() != own:
            os._exit(1)  # forked inside a case, and come back from there
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    from turret.conformance.session import serve

    serve(request, tell, further.get)
    answers.close()
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a backend may have closed it
        sys.stderr.flush()
    os._exit(0)


def _listen(lifeline: int, further: queue.SimpleQueue[list[str]]) -> None:
    """Passes on what else is to be run; when the process that asked is gone, takes all of this session along."""
    heard = b""
    with contextlib.suppress(OSError):
        while part := os.read(lifeline, 1 << 16):
            *lines, heard = (heard + part).split(b"\n")
            for line in lines:
                further.put(json.loads(line))
        if sys.platform == "win32":
            os._exit(1)
        os.killpg(0, signal.SIGKILL)


def _end_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Tells of the exception and leaves; threads of a backend would be waited for."""
    try:
        traceback.print_exception(kind, error, trace)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
