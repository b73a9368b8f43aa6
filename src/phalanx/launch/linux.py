"""Linux functions of the launcher: unique process identities, process trees, parent death."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def become_subreaper() -> None:
    """Orphans below this process become its children, however often they daemonise."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int) -> None:
    """SIGKILL this process when its parent dies; leaves at once when that has happened already.

    To be called in a freshly forked child. The signal is bound to the forking *thread*.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(137)


def load() -> None:
    """Resolve the C library now, so that a forked child needs no import."""
    _libc()


def flush_file_system(path: str | os.PathLike[str]) -> None:
    """Write all cached data of the file system of `path` to disk; cheaper than an fsync of each file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _libc().syncfs(descriptor)
    finally:
        os.close(descriptor)


def wakeup_on_child_exit() -> int:
    """A descriptor that turns readable when a child ends; read it empty before `reaped`."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def ignore_signals_to_end() -> None:
    """Ignore the signals that a terminal or a system manager sends: the parent decides the end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def num_threads() -> int:
    """Threads of this process, those of C libraries included."""
    return len(os.listdir("/proc/self/task"))


@dataclass(frozen=True, slots=True)
class Entry:
    """One process in /proc. `gone`: a zombie without living threads."""

    pid: int
    parent: int
    session: int
    gone: bool
    start_ticks: int


def _parse(pid: int, stat: bytes) -> Entry:
    fields = stat[stat.rindex(b")") + 2 :].split()
    dead = fields[0] in (b"Z", b"X", b"x") and int(fields[17]) <= 1
    return Entry(pid, int(fields[1]), int(fields[3]), dead, int(fields[19]))


def entry(pid: int) -> Entry | None:
    """The process with this number, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return _parse(pid, file.read())
    except (FileNotFoundError, ProcessLookupError):
        return None


def holds_files(pid: int) -> bool:
    """Whether a process lives and has not begun to die: the kernel closes its files first of all."""
    try:
        return bool(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def processes() -> dict[int, Entry]:
    """Every process that can be seen."""
    found: dict[int, Entry] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (one := entry(int(name))) is not None:
            found[one.pid] = one
    return found


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    return [one.pid for one in processes().values() if one.parent == pid]


def below(root: int) -> list[Entry]:
    """All descendants of `root`, without itself."""
    children: dict[int, list[Entry]] = {}
    for one in processes().values():
        children.setdefault(one.parent, []).append(one)
    found, todo = [], [root]
    while todo:
        for one in children.get(todo.pop(), []):
            found.append(one)
            todo.append(one.pid)
    return found


def reaped() -> Iterator[tuple[int, int]]:
    """Number and wait status of every child that has ended."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
            yield found


def kill_below(root: int, spare: frozenset[int], reap: Callable[[], None]) -> int:
    """SIGKILL everything below `root` but `spare`, again and again until nothing lives.

    `root` has to be a subreaper, so that nothing can leave the tree. `reap` collects root's own dead
    children. Returns how many kills were sent.
    """
    sent, wait_s = 0, 0.001
    while True:
        reap()
        living = [one.pid for one in below(root) if not one.gone and one.pid not in spare]
        if not living:
            return sent
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                sent += 1
        time.sleep(wait_s)
        wait_s = min(0.05, wait_s * 1.5)


def replace_environment(name: str, value: str) -> None:
    """Give a variable of this process another value of equal length, also where `/proc` shows it.

    Raises OSError where the process was not started with the variable, or its value has another length.
    """
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    block = ctypes.string_at(begin, end - begin)
    head = f"\0{name}=".encode()
    at = (b"\0" + block).find(head)
    old = block[at + len(head) - 1 :].partition(b"\0")[0]
    if not begin or at < 0 or len(old) != len(value.encode()):
        raise OSError(f"{name} cannot be replaced in the environment of this process")
    ctypes.memmove(begin + at + len(head) - 1, value.encode(), len(old))
    os.environ[name] = value  # noqa: TID251 - the same variable as Python sees it


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor but 0, 1, 2 and `kept`."""
    wanted = {0, 1, 2, *kept}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in wanted:
            with contextlib.suppress(OSError):
                os.close(int(name))


def executable(pid: int) -> str:
    """The base name of what a process runs; empty when that cannot be read."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def tagged(marker: str) -> list[int]:
    """Living processes that were started with `marker` (`NAME=value`) in their environment."""
    wanted = marker.encode() + b"\0"
    found: list[int] = []
    for pid, one in processes().items():
        if one.gone or pid == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read()
        except OSError:
            continue
        if environ.startswith(wanted) or b"\0" + wanted in environ:
            found.append(pid)
    return found
