"""The smallest conformance cases of every native slot, run in one process that a sanitizer can watch."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Iterable

ENOUGH = 100
"""Elements that make more than three warps, so that the last one is ragged."""


def main() -> None:
    """stdin: {"spec", "cases", "seconds"}. stdout: {"ran": how many, "failed": [ids]}.

    After so many seconds the cases that follow are left.
    """
    from turret.conformance.execute import Rules
    from turret.conformance.session import open_session
    from turret.conformance.suite import all_cases

    request = json.loads(sys.stdin.readline())
    by_id = {case.id: case for case in all_cases()}
    deadline, ran, failed = time.monotonic() + request["seconds"], 0, []
    with open_session(request["spec"]) as session:
        for name in request["cases"]:
            if time.monotonic() > deadline:
                break
            ran += 1
            if session.run(by_id[name], Rules()).status.bad:
                failed.append(name)
    print(json.dumps({"ran": ran, "failed": failed}), flush=True)


def chosen(ids: Iterable[str], native: Iterable[str]) -> list[str]:
    """One case of each check of the slots: the smallest with `ENOUGH` elements, where there is none the largest."""
    checks: dict[str, list[str]] = {}
    for each in ids:
        slot, check, _ = each.split("/", 2)
        if slot in native:
            checks.setdefault(f"{slot}/{check}", []).append(each)
    return [min(found, key=_preference) for found in checks.values()]


def _preference(case: str) -> tuple[bool, int, str]:
    variant = re.sub(r"(?:b?f|i|u)\d+|axis-?\d+", "", case.split("/", 2)[2])
    size = math.prod(int(number) for number in re.findall(r"\d+", variant))
    return size < ENOUGH, size if size >= ENOUGH else -size, case


if __name__ == "__main__":
    main()
