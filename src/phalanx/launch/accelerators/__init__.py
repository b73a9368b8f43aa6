"""The accelerators of this machine, read from their drivers.

`discovery` asks every driver; `nvidia` and `amd` each read one through its vendor's library. A machine
without a driver, or without the library, has no accelerators; a driver that fails says why. Nothing here
decides which job gets a device: see `core.gang.devices` and `docs/dev/accelerators.md`.
"""

from phalanx.launch.accelerators.discovery import Found, answered, discover

__all__ = ["Found", "answered", "discover"]
