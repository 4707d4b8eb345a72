from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import os
from turret.cli.conformance.foreign import printing_to_stderr
print("before")
with printing_to_stderr():
    print("python")
    os.write(1, b"number\\n")
print("after")
"""


@pytest.mark.parametrize("closed", ["", "<&-", "2>&-", ">&-", "<&- >&- 2>&-"])
def test_what_plugins_print_is_kept_off_the_findings(closed: str) -> None:
    code = f"import turret.cli.app as a; a._stand_in_for_closed_streams()\n{CODE}"
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("" if ">&-" in closed.replace("2>&-", "") else "before\nafter\n")
    if not closed:
        assert sorted(done.stderr.split()) == ["number", "python"]
