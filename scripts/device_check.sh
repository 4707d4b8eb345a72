#!/usr/bin/env bash
# Checks turret on this machine's NVIDIA GPU, within eight minutes, into one JSON file: scripts/device_check.sh --help
# Needs this checkout and a Python with NumPy, pluggy, Numba and CuPy; installs nothing and asks no network.
# PYTHON=... chooses the interpreter, otherwise .venv/bin/python or python3. --rehearse runs the same on the emulator.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-}"
if [ -z "$python" ]; then
  python="$root/.venv/bin/python"
  [ -x "$python" ] || python=python3
fi
path="$root/scripts"
for word in "$@"; do
  [ "$word" != --rehearse ] || path="$path:$root/tests/cuda_emulator"
done
export PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -P -m device_check "$@"
