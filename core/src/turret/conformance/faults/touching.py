"""The target of the fault whose mere import touches the device. Nothing imports it but who opens that target."""

from __future__ import annotations

import os
import threading

from .opening import open_broken as open_broken

os.environ["TURRET_CONFORMANCE_TOUCHED"] = "1"
threading.Thread(target=threading.Event().wait, daemon=True, name="device").start()
