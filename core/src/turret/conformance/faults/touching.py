"""A plugin module whose mere import touches the device. Nothing imports it but who lists the plugins while it is shown.

It cannot know which array library it would load, so that it leaves the other two traces: a variable and a thread.
"""

from __future__ import annotations

import os
import threading

from turret.spi import BackendInfo, hookimpl

NAME, DISTRIBUTION = "touching", "turret-touching"

os.environ["TURRET_CONFORMANCE_TOUCHED"] = "1"
threading.Thread(target=threading.Event().wait, daemon=True, name="device").start()


@hookimpl
def turret_backends() -> list[BackendInfo]:
    """The backend that the fault pretends to be."""
    return [
        BackendInfo(
            name=NAME,
            distribution=DISTRIBUTION,
            spi=">=1.0,<2",
            target="turret.conformance.faults.opening:open_broken",
            probe="turret.conformance.faults.opening:why_not",
        )
    ]
