"""Examines backends with the whole suite and stores what was found for the reference pages.

python scripts/conformance_reports.py cpu tpu    runs the suite, writes docs/reference/reports/ and the pages made of it
python scripts/conformance_reports.py --faults cpu   hunts the wrong backends of the catalogue and writes faults.md
python scripts/conformance_reports.py --check    runs nothing; fails and says which stored reports are not of this code
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import generate_reference
from reference import reports
from reference.faults import KILLS
from turret.conformance.stored import read
from turret.conformance.suite import all_cases
from turret.spi import ConfigError


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 where a backend fails or, with `--check`, a report is old; a failing report is stored as well."""
    parser = argparse.ArgumentParser(description="Store conformance reports, or check those that are stored.")
    parser.add_argument("--check", action="store_true", help="run nothing, fail where a report is not of this code")
    parser.add_argument(
        "--faults", metavar="BACKEND", help="hunt the faults on this backend and store which case finds them"
    )
    parser.add_argument("backends", nargs="*", metavar="BACKEND", help="as in cpu or cuda:1")
    options = parser.parse_args(arguments)
    if bool(options.check) + bool(options.backends) + bool(options.faults) != 1:
        parser.error("give either backends, --faults BACKEND or --check")
    if options.check:
        return check()
    if options.faults:
        return max(hunt(options.faults), generate_reference.main(["faults"]))
    status = max([examine(backend) for backend in options.backends])
    return max(status, generate_reference.main(["backends"]))


def check() -> int:
    """Says on stderr what is old."""
    faults = reports.outdated(reports.stored(), {case.id for case in all_cases()})
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def hunt(backend: str) -> int:
    """Runs `turret conformance faults` and stores which case finds each; returns its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kills.json"
        command = [sys.executable, "-m", "turret", "conformance", "faults", "--backend", backend, "--json", str(path)]
        status = subprocess.run(command, check=False).returncode
        found = json.loads(path.read_text(encoding="utf-8"))
    killed = {each["fault"]: each["killed_by"] for each in found["kills"] if each["expressible"]}
    table = {"backend": found["backend"], "seed": found["seed"], "killed": killed}
    KILLS.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return status


def examine(backend: str) -> int:
    """Runs `turret conformance` and stores its report, unless nothing was executed; returns its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", "turret", "conformance", backend, "--jobs", "2", "--json", str(path)]
        status = subprocess.run(command, check=False).returncode
        try:
            report = read(path)
        except ConfigError as error:
            print(f"{backend}: nothing to store: {error}", file=sys.stderr)
            return status or 1
    if not report.executed:
        print(f"{backend}: nothing was executed, so nothing is stored", file=sys.stderr)
        return status or 1
    reports.FOLDER.mkdir(parents=True, exist_ok=True)
    (reports.FOLDER / f"{reports.stem(backend)}.json").write_text(reports.slim(report), encoding="utf-8")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
