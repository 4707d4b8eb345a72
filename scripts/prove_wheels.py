"""Proves that built wheels work: a fresh environment, outside the checkout, from the wheels alone.

    python scripts/prove_wheels.py dist

Installs `core[cpu]` the way the README says, then asks the installed `turret` for its version and backends, trains
three steps, generates from the result, takes a backend from nothing through the conformance suite, and lists backends
whose array library is not there, with what is missing. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = ("--layers", "1", "--heads", "2", "--width", "16", "--ff", "32", "--context", "16")
TRAIN = ("train", "--out", "run", *MODEL, "--batch", "2", "--steps", "3", "--log", "json")
ABSENT = {"cuda": "CuPy", "metal": "mlx", "tpu": "jax"}
GENERATE = ("generate", "run", "--prompt", "The", "--max-new-tokens", "8", "--seed", "1")


def clean_environment() -> dict[str, str]:
    """The process's variables without those that could let the checkout or a backend choice leak in."""
    leaks = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {key: value for key, value in os.environ.items() if key not in leaks and not key.startswith("TURRET_")}


def version_of_core(wheels: Path) -> str:
    """The version in the name of the one `core` wheel.

    Raises: SystemExit where there is none or more than one.
    """
    found = sorted(wheels.glob("core-*-py3-none-any.whl"))
    if len(found) != 1:
        raise SystemExit(f"{len(found)} wheels of core in {wheels}, wanted one: run `make wheels`")
    return found[0].name.split("-")[1]


def prove(wheels: Path) -> None:
    """Raises SystemExit at the first thing that does not work."""
    version = version_of_core(wheels)
    with tempfile.TemporaryDirectory(prefix="turret-wheels-") as folder:
        home = Path(folder)
        venv.create(home / "env", with_pip=True)
        scripts = home / "env" / ("Scripts" if os.name == "nt" else "bin")
        work = home / "work"
        work.mkdir()

        def run(*command: str | Path) -> str:
            print("$", *(str(part).replace(str(home), "") for part in command), file=sys.stderr)
            done = subprocess.run(
                command, cwd=work, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
            )
            if done.returncode != 0:
                raise SystemExit(f"the wheels do not work: that command ended with {done.returncode}")
            return done.stdout

        pip = (scripts / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
        run(*pip, "--constraint", ROOT / "constraints.txt", "--find-links", wheels, f"core[cpu]=={version}")
        home_of_turret = run(scripts / "python", "-c", "import turret; print(turret.__file__)").strip()
        if home not in Path(home_of_turret).resolve().parents:
            raise SystemExit(f"turret was imported from {home_of_turret}, not from the fresh environment")
        said = run(scripts / "turret", "--version")
        if version not in said:
            raise SystemExit(f"turret --version said {said!r}, wanted {version}")
        json.loads(run(scripts / "turret", "backends", "--json"))
        result = json.loads(run(scripts / "turret", *TRAIN))
        if result["steps"] != 3 or result["backend"] != "cpu":
            raise SystemExit(f"the training run reported {result}, wanted 3 steps on cpu")
        if not run(scripts / "turret", *GENERATE).startswith("The"):
            raise SystemExit("turret generate did not continue its prompt")
        run(scripts / "turret", "new-backend", "proof")
        run(*pip, "--editable", "turret-proof")
        run(scripts / "turret", "conformance", "proof", "--profile", "training")
        others = [wheel for name in ABSENT for wheel in sorted(wheels.glob(f"turret_{name}-*.whl"))]
        run(*pip, "--no-deps", *others)
        rows = {row["name"]: row for row in json.loads(run(scripts / "turret", "backends", "--probe", "--json"))}
        for name, library in ABSENT.items():
            row = rows[name]
            if row["state"] != "loadable" or library not in row["note"] or f"core[{name}]" not in row["note"]:
                raise SystemExit(
                    f"{name} without {library} is listed as {row}, wanted it loadable and how to install it"
                )
    print(f"core[cpu]=={version} from {wheels.name}/ works in a fresh environment")


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Install the wheels in a fresh environment and use them.")
    parser.add_argument("wheels", type=Path, help="the folder that holds them")
    prove(parser.parse_args().wheels.resolve())


if __name__ == "__main__":
    main()
