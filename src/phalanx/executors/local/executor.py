"""The executor of this machine: start, find and kill supervisors, with all state in folders."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from phalanx.core.gang.devices import DeviceState
from phalanx.core.gang.placement import Node
from phalanx.errors import ExecutorUnavailable, LaunchError
from phalanx.executors.local.devices import DeviceSettings, LocalDevices, NoDevices
from phalanx.executors.local.standby import NoStandby, StandbySupervisor
from phalanx.executors.local.templates import ForkedSupervisor, StudyTemplates
from phalanx.executors.protocol import SupervisorRef, SupervisorStatus
from phalanx.kit.clock import Clock
from phalanx.launch import linux
from phalanx.launch.accelerators import Found, answered
from phalanx.launch.files import last_line, write_file
from phalanx.launch.identity import ASSIGNMENT_NAME, EXIT_NAME, LOG_NAME, SupervisorRecord, is_held
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import ExitRecord

NODE_ID = "local"
POOL = "local"
ADDRESS = "127.0.0.1"
# In the home: which device has which slot.
DEVICES_NAME = "accelerators.json"
_STARTED_WITHIN_S = 30.0
# How long after the start of a job no standby is started beside it.
_YOUNG_S = 4.0


class LocalExecutor:
    """The `Executor` of this machine: one splittable node. Safe for several threads.

    Which supervisors exist is read from the node folders, so a restarted control plane finds them.
    """

    def __init__(
        self,
        home: HomeLayout,
        *,
        num_slots: int,
        clock: Clock,
        num_cpus: int | None = None,
        keep_warm: int = 0,
        find: Callable[[], Found] | None = None,
        share_devices: bool = False,
    ) -> None:
        """`find` reads the drivers of accelerators; None: the slots are CPU worker places.

        Where it finds some, the slots are devices, one each, or with `share_devices` `num_slots` slots on
        all of them.
        """
        self._home = home
        self._num_slots = num_slots
        self._num_cpus = num_cpus or os.cpu_count() or 1
        self._clock = clock
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[bytes] | ForkedSupervisor] = []
        self._gone: set[SupervisorRef] = set()
        # Environment entries of the processes of live supervisors.
        self._markers: set[str] = set()
        self._starting: set[Path] = set()
        self._standby = StandbySupervisor(self._num_cpus) if keep_warm > 0 else NoStandby()
        self._templates = StudyTemplates(clock)
        asked = num_slots if share_devices else None
        self._devices = self._watched(DeviceSettings(home.root / DEVICES_NAME, asked), find)

    def _watched(self, settings: DeviceSettings, find: Callable[[], Found] | None) -> NoDevices:
        first = None if find is None else answered(find)
        if find is None or first is None or not first.devices:
            return NoDevices()
        return LocalDevices(settings, find, self._is_ours, self._clock, first)

    def devices(self) -> Sequence[DeviceState]:
        """See `DeviceReporter`."""
        return self._devices.states()

    def inventory(self) -> Sequence[Node]:
        """This machine: one node, or one for each kind of its accelerators."""
        page = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        node = Node(
            id=NODE_ID,
            pool=POOL,
            address=ADDRESS,
            num_slots=self._num_slots,
            num_cpus=self._num_cpus,
            memory_bytes=page,
            splittable=True,
        )
        return self._devices.nodes(node)

    def start(self, node: Node, assignment: Assignment) -> None:
        """See `Executor`. Returns when the supervisor holds its folder."""
        node_dir = Path(assignment.node_dir)
        with self._lock:
            if node_dir in self._starting:
                raise ExecutorUnavailable(f"{node_dir.name} is being started")
            self._starting.add(node_dir)
        try:
            self._start(node_dir, assignment)
        finally:
            with self._lock:
                self._starting.discard(node_dir)

    def _start(self, node_dir: Path, assignment: Assignment) -> None:
        if self._record(SupervisorRef.of(assignment)) is not None:
            return
        try:
            node_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            Path(assignment.workdir).mkdir(mode=0o700, parents=True, exist_ok=True)
            path = node_dir / ASSIGNMENT_NAME
            write_file(path, assignment.model_dump_json().encode())
            child = (
                self._templates.take(assignment, path)
                or self._standby.take(assignment, path)
                or _spawn(path, node_dir)
            )
        except OSError as error:
            raise LaunchError(f"the supervisor could not be started: {error}") from error
        with self._lock:
            self._reap()
            self._children.append(child)
        self._templates.keep(assignment, child.poll)
        self._await_record(node_dir, child)
        if (record := self._record(SupervisorRef.of(assignment))) is not None:
            self._markers.add(record.marker)

    def may_replace(self, pool: str) -> bool:
        """See `NodeReplacer`."""
        return True

    def stop(self, ref: SupervisorRef) -> None:
        """See `Executor`. The reaper kills the rest; a second call kills what is left from here."""
        record = self._record(ref)
        if record is None or ref in self._gone:
            return
        if record.supervisor.is_alive():
            _kill([record.supervisor.pid])
        else:
            _kill(linux.tagged(record.marker))

    def poll(self, refs: Sequence[SupervisorRef]) -> Sequence[SupervisorStatus]:
        """See `Executor`."""
        with self._lock:
            self._reap()
            # Supervisors that are not polled any more need not be remembered.
            self._gone.intersection_update(refs)
        statuses = [self._status(ref) for ref in refs]
        # A standby that warms up takes CPU time that a starting job needs more.
        if not any(one.alive and self._is_young(one.ref) for one in statuses):
            self._standby.keep()
        self._templates.tend()
        return statuses

    def keep_standby(self) -> None:
        """Start the standby supervisor, where one is kept and none waits."""
        self._standby.keep()

    def close(self) -> None:
        """End the standby and the templates of studies. Supervisors with work stay."""
        self._standby.close()
        self._templates.close()
        self._devices.close()
        with self._lock:
            self._reap()

    # -- inside ------------------------------------------------------------------------------------

    def _node_dir(self, ref: SupervisorRef) -> Path:
        return self._home.node_dir(ref.job, ref.attempt, ref.node_rank, ref.incarnation)

    def _record(self, ref: SupervisorRef) -> SupervisorRecord | None:
        try:
            return SupervisorRecord.read(self._node_dir(ref))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ExecutorUnavailable(f"the record of {ref} cannot be read: {error}") from error

    def _status(self, ref: SupervisorRef) -> SupervisorStatus:
        node_dir = self._node_dir(ref)
        exit = _read_exit(node_dir)
        if ref in self._gone:
            return SupervisorStatus(ref, alive=False, exit=exit)
        record = self._record(ref)
        if record is None:
            # Between its start and its record a supervisor holds the lock, or not even that.
            with self._lock:
                starting = node_dir in self._starting
            return SupervisorStatus(ref, alive=starting or is_held(node_dir), exit=exit)
        self._markers.add(record.marker)
        if record.supervisor.is_alive():
            return SupervisorStatus(ref, alive=True, exit=exit)
        if record.reaper is not None and record.reaper.is_alive():
            return SupervisorStatus(ref, True, exit, "the reaper kills the processes that are left")
        left = linux.tagged(record.marker)
        _kill(left)  # the reaper was killed as well
        if left:
            return SupervisorStatus(ref, True, exit, f"{len(left)} processes are being killed")
        self._gone.add(ref)
        self._markers.discard(record.marker)
        return SupervisorStatus(ref, alive=False, exit=_read_exit(node_dir))

    def _is_ours(self, pid: int) -> bool:
        """Whether a process was started by a supervisor of this executor."""
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                own = file.read().decode("utf-8", "replace").split("\0")
        except FileNotFoundError:
            return True  # it has ended, or belongs to another process namespace: not known
        except OSError:
            return False  # another user's
        return not self._markers.isdisjoint(own)

    def _is_young(self, ref: SupervisorRef) -> bool:
        try:
            began_at = (self._node_dir(ref) / "g000").stat().st_mtime_ns // 1000
        except OSError:
            return True
        return 0 <= self._clock.now() - began_at < _YOUNG_S * 1_000_000

    def _await_record(
        self, node_dir: Path, child: subprocess.Popen[bytes] | ForkedSupervisor
    ) -> None:
        deadline = self._clock.monotonic() + _STARTED_WITHIN_S
        while SupervisorRecord.read(node_dir) is None:
            # One that finds its folder taken leaves: then the record comes from another one, which a
            # control plane started before it was killed.
            if child.poll() is not None and not is_held(node_dir):
                if SupervisorRecord.read(node_dir) is not None:
                    return
                tail = last_line(node_dir / LOG_NAME) or "the log is empty"
                raise LaunchError(f"the supervisor ended at once: {tail}")
            if self._clock.monotonic() > deadline:
                raise ExecutorUnavailable("the supervisor has not locked its folder yet")
            time.sleep(0.005)

    def _reap(self) -> None:
        self._children = [child for child in self._children if child.poll() is None]


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _spawn(assignment: Path, node_dir: Path) -> subprocess.Popen[bytes]:
    with open(node_dir / LOG_NAME, "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "phalanx.supervise", "--assignment", str(assignment)],
            cwd=node_dir,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _read_exit(node_dir: Path) -> ExitRecord | None:
    try:
        return ExitRecord.model_validate_json((node_dir / EXIT_NAME).read_bytes())
    except (OSError, ValueError):
        return None
