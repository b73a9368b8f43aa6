"""Ask the drivers of this machine for its accelerators."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from phalanx.core.gang.devices import Accelerator, visible

_LOG = logging.getLogger(__name__)
#: How long the start of a control plane waits for the drivers' first answer, seconds.
FIRST_S = 20.0


@dataclass(frozen=True, slots=True)
class Found:
    """The accelerators that drivers report; `problems` say what could not be read."""

    devices: tuple[Accelerator, ...] = ()
    problems: tuple[str, ...] = ()


def discover(env: Mapping[str, str]) -> Found:
    """Return the accelerators that the variables in `env` leave to this process. Never raises.

    It may take as long as a driver needs to answer, so callers with a deadline use a thread.
    """
    from phalanx.launch.accelerators import amd, nvidia

    devices: list[Accelerator] = []
    problems: list[str] = []
    for read in (nvidia.read, amd.read):
        found, problem = read()
        devices += found
        problems += [problem] if problem else []
    return Found(visible(devices, env), tuple(problems))


def answered(find: Callable[[], Found]) -> Found | None:
    """What the drivers say at first; None where they do not answer in time."""
    said: list[Found] = []
    thread = threading.Thread(target=lambda: said.append(find()), name="accelerators", daemon=True)
    thread.start()
    thread.join(FIRST_S)
    if not said:
        _LOG.warning("the drivers of accelerators do not answer: slots are CPUs")
        return None
    for problem in said[0].problems:
        _LOG.warning("accelerators: %s", problem)
    return said[0]
