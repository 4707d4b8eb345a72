from __future__ import annotations

import sys
from pathlib import Path

EMULATOR = Path(__file__).resolve().parents[1] / "cuda_emulator"
if str(EMULATOR) not in sys.path:
    sys.path.insert(0, str(EMULATOR))  # `import cupy` is the emulator's in this process; others do not inherit it
