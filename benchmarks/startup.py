"""How long turret takes to start: medians over fresh processes, with NumPy's own import beside it.

python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

CALLS = {
    "python": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import turret": ["-c", "import turret"],
    "import turret, use it": ["-c", "import turret; turret.Tensor"],
    "turret --help": ["-m", "turret", "--help"],
    "turret backends": ["-m", "turret", "backends"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in CALLS}
    for turn in range(options.rounds + 1):
        for name, arguments in CALLS.items():
            ms = _run(arguments)
            if turn > 0:  # the first turn fills caches
                times[name].append(ms)
    medians = {name: statistics.median(ms) for name, ms in times.items()}
    if options.json:
        print(json.dumps(medians, indent=2))
        return
    for name, ms in medians.items():
        print(f"{name:24} {ms:6.0f} ms")
    print(f"turret over numpy        {medians['import turret, use it'] - medians['import numpy']:6.0f} ms")


def _run(arguments: list[str]) -> float:
    # An installed program has its bytecode cached; some shells forbid writing it.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environ)
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    main()
