"""The program that runs one probe in a process of its own, so that it can raise, hang or crash there.

Reads {"path", "probe", "device"} as JSON from stdin and writes {"reason"} as JSON to the stdout it was started with.
It stands alone: started by file name, it imports nothing of turret but what the probe itself imports.
"""

from __future__ import annotations

import importlib
import json
import operator
import os
import sys


def reason(probe: str, device: str) -> str | None:
    """What the probe answers; an answer that is neither a reason nor None is itself a reason."""
    module, _, name = probe.partition(":")
    answer = operator.attrgetter(name)(importlib.import_module(module))(device)
    if answer is None or (isinstance(answer, str) and answer):
        return answer
    return f"its probe answered {answer!r}, wanted a reason or None"


def main() -> None:
    """Answers one request and leaves without running exit handlers, which hang in some device libraries."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    answer = os.dup(1)
    os.dup2(2, 1)
    os.write(answer, json.dumps({"reason": reason(request["probe"], request["device"])}).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
