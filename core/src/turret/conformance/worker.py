"""The process in which cases run, so that a crash or a hang is the end of one case and not of the run.

Started by file name with a JSON request on stdin; answers on the stdout it was started with, one JSON object a line:
{"opened": facts}, or {"refused": reason}; {"start": id} and {"result": result} for each case; {"advice": lines} where
it was asked for; {"closing": true}, and {"refused": reason} once more where the backend does not close.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from typing import Any


def main() -> None:
    """Runs one request and leaves without exit handlers, which hang in some device libraries."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    faulthandler.enable()

    def tell(**message: Any) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    from turret.conformance.session import serve

    serve(request, tell)
    answers.close()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
