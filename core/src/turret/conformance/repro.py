"""One case as a folder that runs without the suite: script, arrays, versions."""

from __future__ import annotations

from pathlib import Path

from turret.spi import ConfigError

from .examine import Request, plan
from .execute import Rules
from .results import Result
from .runner import TIMEOUT_S, run
from .suite import all_cases


def write(case: str, backend: str, folder: Path, *, seed: int = 0, timeout_s: float = TIMEOUT_S) -> Result:
    """Runs the case in a process of its own and leaves the script of it in `folder`, also where the process dies.

    Raises: ConfigError for an unknown case, a folder that is not empty, or a backend that cannot be opened.
    """
    found = {each.id: each for each in all_cases()}
    if case not in found:
        raise ConfigError(f"no case {case!r}; `turret conformance --list` shows all ids")
    target = folder.absolute()  # a plugin may change the working folder
    planned = plan(Request(backend=backend))
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ConfigError(f"{folder} exists and is not an empty folder; give another --out")
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}; give another --out") from error
    outcome = run(planned.spec, [found[case]], Rules(seed=seed), timeout_s=timeout_s, record=target)
    if not outcome.results:
        raise ConfigError("; ".join(outcome.problems))
    return outcome.results[0]
