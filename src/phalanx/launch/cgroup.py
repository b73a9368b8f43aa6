"""A control group for all processes of one reaper, where the system permits it.

Version 2 groups can be killed as one: not even a process that forks all the time slips through, which a
walk over /proc may need several rounds for. Where no group can be made (no version 2 mount, not
delegated to us, a read-only container) there is none, and the walk does the work alone.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NO_GROUP = "there is no control group of version 2 that may be written"
NOT_DELEGATED = (
    "the controllers cpu and memory of control groups are not delegated "
    "(systemd: Delegate=yes, or systemd-run --user --scope)"
)
_CONTROLLERS = frozenset(("cpu", "memory"))
_PERIOD_US = 100_000


class ControlGroup:
    """No group: where the system permits none, the walk over /proc does the work alone."""

    def limit(self, cpus: int, memory_bytes: int) -> str:
        """Let all processes in it use at most so many CPUs and bytes; 0: no limit.

        Returns why that cannot be enforced; empty: it is.
        """
        return NO_GROUP

    def join(self) -> None:
        """Put the calling process in; called by a child before it executes its program."""

    def kill(self) -> None:
        """SIGKILL to every process in it, at once."""

    def remove(self) -> None:
        """Delete the group, if nothing is left in it."""


class CgroupV2(ControlGroup):
    """A version 2 group of our own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def limit(self, cpus: int, memory_bytes: int) -> str:
        """See `ControlGroup`."""
        try:
            if cpus:
                (self.path / "cpu.max").write_text(f"{cpus * _PERIOD_US} {_PERIOD_US}")
            if memory_bytes:
                (self.path / "memory.max").write_text(str(memory_bytes))
        except OSError:
            return NOT_DELEGATED
        return ""

    def join(self) -> None:
        """Put the calling process in; one that cannot is found by the walk over /proc."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.procs").write_text("0")

    def kill(self) -> None:
        """SIGKILL to every process in it, through `cgroup.kill` (Linux 5.14)."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.kill").write_text("1")

    def remove(self) -> None:
        """See `ControlGroup`."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def group_name(reaper_pid: int) -> str:
    """The name of the group of a reaper's processes."""
    return f"phalanx-{reaper_pid}"


def make_group(name: str, proc: Path = Path("/proc/self")) -> ControlGroup:
    """A group called `name` below the caller's own, or none where that is not allowed."""
    own = _own_group(proc)
    if own is None:
        return ControlGroup()
    parent = _limiting(own) or own
    path = parent / name
    _sweep(parent, name.rpartition("-")[0])
    try:
        path.mkdir()
    except OSError:
        return ControlGroup()
    if not os.access(path / "cgroup.kill", os.W_OK):
        CgroupV2(path).remove()
        return ControlGroup()
    return CgroupV2(path)


def why_no_limits(proc: Path = Path("/proc/self")) -> str:
    """Why groups below the caller's cannot limit CPUs and memory; empty: they can."""
    own = _own_group(proc)
    if own is None:
        return NO_GROUP
    parent = _limiting(own)
    writable = parent is not None and os.access(parent, os.W_OK | os.X_OK)
    return "" if writable else NOT_DELEGATED


def _limiting(own: Path) -> Path | None:
    """The caller's group, or the one above it, where groups below it may limit CPUs and memory.

    A group that has processes of its own cannot pass its controllers on, so the caller's rarely does.
    """
    for group in (own, own.parent):
        with contextlib.suppress(OSError):
            passed = (group / "cgroup.subtree_control").read_text().split()
            if set(passed) >= _CONTROLLERS and os.access(group / "cgroup.procs", os.W_OK):
                return group
    return None


def _sweep(parent: Path, prefix: str) -> None:
    """Delete groups that a killed reaper left behind: only empty ones can be."""
    for left in parent.glob(f"{prefix}-*"):
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            CgroupV2(left).remove()


def oom_kills(proc: Path = Path("/proc/self"), name: str = "") -> int | None:
    """How often the kernel has killed in the caller's memory group, or below it, for want of memory.

    Where `make_group` has made the group `name`, and it can limit memory, only those in it count.

    None where the system does not count. Groups of version 2 count what is below them, those of
    version 1 only themselves.
    """
    group, file = _own_group(proc), "memory.events"
    if name and group is not None:
        limited = (_limiting(group) or group) / name
        group = limited if (limited / file).exists() else group
    if group is None or not (group / file).exists():
        group, file = _own_group(proc, "memory"), "memory.oom_control"
    if group is None:
        return None
    try:
        rows = dict(line.split() for line in (group / file).read_text().splitlines())
        return int(rows["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def _own_group(proc: Path, controller: str = "") -> Path | None:
    """The folder of the caller's version 2 group, or of a version 1 controller's."""
    try:
        mounts = (proc / "mountinfo").read_text().splitlines()
        groups = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return None
    kind = f"{'cgroup' if controller else 'cgroup2'} "
    rows = (line.split(":", 2) for line in groups if line.count(":") >= 2)
    own = next((row[2] for row in rows if controller in row[1].split(",")), None)
    if own is None:
        return None
    for line in mounts:
        # "<id> <parent> <device> <root> <mount point> … - <type> …": proc_pid_mountinfo(5)
        left, _, right = line.partition(" - ")
        if right.startswith(kind) and controller in ("", *right.split()[2].split(",")):
            root, point = left.split()[3:5]
            below = own if root == "/" else own.removeprefix(root)
            return Path(point) / below.lstrip("/")
    return None
