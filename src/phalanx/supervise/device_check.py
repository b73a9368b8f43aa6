"""The check of a node's accelerators before its ranks start: those of the job must be there and fit."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from phalanx.core.gang.devices import VARIABLES, mismatch, visible
from phalanx.core.reasons import Cause
from phalanx.schemas.wire.assignments import Assignment
from phalanx.supervise.processes import ProcessTree
from phalanx.supervise.ranks.generation import Generation

if TYPE_CHECKING:
    from phalanx.launch.accelerators import Found

# A driver that has not answered for so long does not stop the ranks: they will say what is wrong.
_PATIENCE_S = 60.0


class DeviceCheck:
    """Compares the devices that the job was given with those that the drivers find, once per generation."""

    phase = "devices"

    def __init__(self, assignment: Assignment, processes: ProcessTree) -> None:
        self._assignment, self._processes = assignment, processes

    def run(self, generation: Generation, then: Callable[[], None]) -> None:
        """Call `then` when the devices are fit for use; end `generation` with a message where not."""
        if not self._assignment.devices:
            then()
            return
        generation.records.phase = self.phase
        open_ = [True]
        loop = self._processes.loop

        def conclude(problem: str) -> None:
            if not open_:
                return  # the time is over, or the answer came before that
            open_.clear()
            generation.records.phase = ""
            if problem:
                generation.fail(problem, Cause.START_FAILED)
            elif not generation.ending:
                then()

        def look() -> None:
            problem = self._problem()
            loop.call_from_outside(lambda: conclude(problem))

        threading.Thread(target=look, name="accelerators", daemon=True).start()
        loop.call_later(_PATIENCE_S, lambda: conclude(""))

    def _problem(self) -> str:
        # Only where there are devices: the bindings take time to import.
        from phalanx.launch.accelerators import discover

        return problem_of(self._assignment, discover({}))


def problem_of(assignment: Assignment, found: Found) -> str:
    """What is wrong with the devices of an assignment, in one line; empty: nothing."""
    host, kind = socket.gethostname(), assignment.device_kind
    ours = [device for device in found.devices if device.kind == kind]
    if not ours and not found.problems:
        return ""  # no library to ask here: the ranks see for themselves
    here = visible(ours, {VARIABLES[kind][-1]: ",".join(assignment.devices)})
    if len(here) < len(assignment.devices):
        lost = assignment.devices[len(here)]
        said = f" ({'; '.join(found.problems)})" if found.problems else ""
        return f"accelerator {lost} of {host} is lost: its driver finds {len(ours)} others{said}"
    unfit = next((device for device in here if device.problem), None)
    if unfit is not None:
        return f"accelerator {unfit.id} of {host} cannot be used: {unfit.problem}"
    said = mismatch(assignment.slot_type, assignment.device_memory_bytes, here)
    return f"node {host} {said}: correct the pool file, or repair the node" if said else ""
