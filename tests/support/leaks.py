"""What a test leaves behind: threads, child processes, descriptors, variables, the working directory."""

from __future__ import annotations

import gc
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

#: Threads that libraries start once for a whole process and never end, by the beginning of their names.
LIBRARY_THREADS = (
    "pytest-timeout",
    "execnet",
    "tokio",
    "asyncio_",
    "AnyIO",
    "ThreadPoolExecutor",
    "Dummy-",
)
#: Descriptors that libraries open once for a whole process: by the beginning of what they lead to.
LIBRARY_FILES = ("/dev/", "anon_inode:", "/proc/", "/sys/", "/usr/", "pipe:", "socket:")
#: Variables that pytest and libraries set themselves.
LIBRARY_VARIABLES = ("PYTEST_", "TORCHINDUCTOR_", "KMP_", "TRITON_", "TORCH_", "COLUMNS", "LINES")
#: Processes that serve all tests of this one, by words of their commands.
LASTING_PROCESSES = ("resource_tracker", "verbs_of_tests")
GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process holds at one moment."""

    threads: frozenset[int]
    children: frozenset[int]
    files: frozenset[str]
    variables: dict[str, str]
    directory: str


def holdings() -> Holdings:
    """Look at this process."""
    return Holdings(
        threads=frozenset(one.ident or 0 for one in threading.enumerate()),
        children=_children(),
        files=_files(),
        variables={
            name: value
            for name, value in os.environ.items()
            if not name.startswith(LIBRARY_VARIABLES)
        },
        directory=str(Path.cwd()),
    )


def leaked(before: Holdings) -> list[str]:
    """What is held now and was not held before; threads and processes get a moment to end."""
    found = _new(before)
    deadline = time.monotonic() + GRACE_S
    while found and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
        found = _new(before)
    return found


def _new(before: Holdings) -> list[str]:
    now = holdings()
    found = [
        f"thread {one.name}"
        for one in threading.enumerate()
        if one.ident not in before.threads
        and one.is_alive()
        and not one.name.startswith(LIBRARY_THREADS)
    ]
    found += [
        f"process {pid}: {_command(pid)[:120]}" for pid in sorted(now.children - before.children)
    ]
    found += [f"open file {name}" for name in sorted(now.files - before.files)]
    for name in sorted(now.variables.keys() | before.variables.keys()):
        if now.variables.get(name) != before.variables.get(name):
            found.append(f"variable {name}")
    if now.directory != before.directory:
        found.append(f"working directory {now.directory}")
    return found


def _children() -> frozenset[int]:
    me = os.getpid()
    found = set()
    for task in Path(f"/proc/{me}/task").iterdir():
        try:
            found |= {int(pid) for pid in (task / "children").read_text().split()}
        except OSError:
            continue  # the thread has ended
    # A process without a command line is a zombie: mostly an orphan that this process inherited.
    return frozenset(
        pid
        for pid in found
        if (command := _command(pid)) and not any(one in command for one in LASTING_PROCESSES)
    )


def _files() -> frozenset[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            leads_to = str(entry.readlink())
        except OSError:
            continue  # closed since
        if not leads_to.startswith(LIBRARY_FILES):
            found.add(leads_to)
    return frozenset(found)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return "(ended)"
