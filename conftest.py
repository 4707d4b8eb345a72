"""What every test starts from: the same hypothesis examples at each run, and no TURRET_ variable from outside."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("repeatable")

for name in [name for name in os.environ if name.startswith("TURRET_")]:
    del os.environ[name]
