"""The accelerators behind the slots of this machine's pool: found once, watched, and never renumbered.

A thread asks the drivers every few seconds, since a driver in trouble may not answer; `nodes` reads what it
found last. Which device has which number is kept in the home, so that a restarted control plane gives no
device to two jobs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.core.gang.devices import (
    OUTSIDE_USE,
    Accelerator,
    DeviceSlots,
    DeviceState,
    with_devices,
)
from phalanx.core.gang.placement import Node
from phalanx.kit.clock import Clock
from phalanx.kit.units import format_size
from phalanx.launch.accelerators import Found
from phalanx.launch.files import write_file
from phalanx.launch.identity import boot_id

_LOG = logging.getLogger(__name__)
#: Interval between two looks at the drivers, seconds.
LOOK_S = 2.0
#: A driver that has not answered for so long closes the nodes, seconds.
SILENT_S = 30.0
LOST = "its device is lost"
BUSY = "its device is used by another program"
SILENT = "the driver of its accelerators does not answer"


class NoDevices:
    """A machine without accelerators: its slots are CPU worker places."""

    def nodes(self, base: Node) -> tuple[Node, ...]:
        """The nodes of the pool, made of the machine's node without accelerators."""
        return (base,)

    def states(self) -> Sequence[DeviceState]:
        """The device behind every slot as it was last seen."""
        return ()

    def close(self) -> None:
        """Stop watching."""


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """How the local pool uses accelerators."""

    #: where the numbers of the devices are kept
    path: Path
    #: slots that the operator asked for; None: one for each device that is fit for use
    num_slots: int | None = None


class LocalDevices(NoDevices):
    """The accelerators of this machine. Safe for several threads."""

    def __init__(
        self,
        settings: DeviceSettings,
        find: Callable[[], Found],
        is_ours: Callable[[int], bool],
        clock: Clock,
        first: Found,
    ) -> None:
        self._settings, self._find, self._is_ours, self._clock = settings, find, is_ours, clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._slots = _read(settings.path)
        self._states: tuple[DeviceState, ...] = ()
        self._seen_at = clock.monotonic()
        self._problems = first.problems  # those that were logged
        self.take(first)
        self._thread = threading.Thread(target=self._watch, name="accelerators", daemon=True)
        self._thread.start()

    def nodes(self, base: Node) -> tuple[Node, ...]:
        """See `NoDevices`: one node for each kind of device."""
        with self._lock:
            states, silent = self._states, self._clock.monotonic() - self._seen_at > SILENT_S
        names = list(dict.fromkeys(state.node for state in states))
        found = []
        for name in names:
            own = [state for state in states if state.node == name]
            node = replace(base, id=name, host=base.id if len(names) > 1 else base.host)
            found.append(replace(with_devices(node, own), closed=SILENT if silent else ""))
        return tuple(found)

    def states(self) -> Sequence[DeviceState]:
        """See `NoDevices`."""
        with self._lock:
            return self._states

    def close(self) -> None:
        """See `NoDevices`."""
        self._stop.set()
        self._thread.join(SILENT_S)

    def take(self, found: Found) -> None:
        """Use what the drivers have just said."""
        slots = self._slots.with_found("local", found.devices)
        if slots is not self._slots:
            self._slots = slots
            _write(self._settings.path, slots)
        if found.problems != self._problems:
            self._problems = found.problems
            for problem in found.problems:
                _LOG.warning("accelerators: %s", problem)
        states = self._judged({device.id: device for device in found.devices})
        with self._lock:
            self._states, self._seen_at = states, self._clock.monotonic()

    # -- inside ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.take(self._find())
            except Exception:
                _LOG.exception("the accelerators cannot be read")

    def _judged(self, found: dict[str, Accelerator]) -> tuple[DeviceState, ...]:
        wanted = self._settings.num_slots
        if wanted is None:
            return tuple(
                DeviceState(node, slot, found.get(one), one, self._closed(found.get(one)))
                for node, ids in self._slots.nodes.items()
                for slot, one in enumerate(ids)
            )
        # The operator has decided how many jobs may use the devices: only lost ones are closed.
        every = [one for ids in self._slots.nodes.values() for one in ids]
        use = [one for one in every if one in found] or every
        chosen = [use[slot % len(use)] for slot in range(wanted)]
        return tuple(
            DeviceState("local", slot, found.get(one), one, _unfit(found.get(one)))
            for slot, one in enumerate(chosen)
        )

    def _closed(self, device: Accelerator | None) -> str:
        unfit = _unfit(device)
        if unfit or device is None:
            return unfit
        outside = [used for pid, used in device.users if not self._is_ours(pid)]
        if not outside:
            return ""
        unknown = None in outside
        used = device.memory_bytes - device.free_bytes if unknown else sum(u or 0 for u in outside)
        return BUSY if used >= OUTSIDE_USE * device.memory_bytes else ""


def _unfit(device: Accelerator | None) -> str:
    if device is None:
        return LOST
    return device.problem


def described(state: DeviceState) -> str:
    """One device in a line: its model, its memory, and why it is not offered."""
    device = state.device
    if device is None:
        return f"{state.id}: {state.closed}"
    memory = f"{format_size(device.free_bytes)} of {format_size(device.memory_bytes)} free"
    return f"{device.model}, {memory}" + (f": {state.closed}" if state.closed else "")


def _read(path: Path) -> DeviceSlots:
    """The numbers of this boot: after another one nothing of the earlier jobs runs any more."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        body = json.loads(path.read_bytes())
        if body["boot_id"] == boot_id():
            nodes = {str(name): tuple(map(str, ids)) for name, ids in body["nodes"].items()}
            return DeviceSlots(nodes, {str(k): str(v) for k, v in body["kinds"].items()})
    return DeviceSlots()


def _write(path: Path, slots: DeviceSlots) -> None:
    body = {"boot_id": boot_id(), "nodes": dict(slots.nodes), "kinds": dict(slots.kinds)}
    try:
        write_file(path, json.dumps(body).encode())
    except OSError as error:
        _LOG.warning("the numbers of the accelerators cannot be kept in %s: %s", path, error)
