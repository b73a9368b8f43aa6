"""The listening sockets of a process tree, read from /proc."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """One listening socket of a process of the platform."""

    process: str  # what the process is, such as `rank` or `supervisor`
    kind: str  # tcp, udp or unix
    address: str  # of the interface, or the path
    port: int
    pid: int

    @property
    def where(self) -> str:
        """The interfaces on which it can be reached."""
        if self.kind == "unix":
            return "abstract" if self.address.startswith("@") else "path"
        own = ipaddress.ip_address(self.address.removeprefix("::ffff:"))
        if own.is_unspecified:
            return "every interface"
        return "loopback" if own.is_loopback else "one interface"

    @property
    def entry(self) -> str:
        """How the catalogue names it."""
        return f"{self.process} {self.kind} {self.where}"


# In this order: the first pattern that is in the command line names the process.
_PROCESSES = (
    (r"gcs_server", "Ray GCS"),
    (r"raylet/raylet|/raylet ", "raylet"),
    (r"ray::|default_worker\.py", "Ray worker"),
    (r"dashboard/agent|dashboard_agent", "Ray dashboard agent"),
    (r"runtime_env/agent|runtime_env_agent", "Ray runtime environment agent"),
    (r"dashboard", "Ray dashboard"),
    (r"ray\.util\.client\.server", "Ray client server"),
    (r"ray.*(log_monitor|monitor)\.py", "Ray monitor"),
    (r"ray\.scripts\.scripts start|ray start", "Ray start"),
    (r"orted", "Open MPI daemon"),
    (r"mpirun", "mpirun"),
    (r"phalanx\.train\.frameworks\.(mpi|ray|tensorflow)(?!\.(rank|hooks))", "rank starter"),
    (r"fork_server", "warm process"),
    (r"phalanx\.supervise\.ranks\.rendezvous", "Horovod store"),
    (r"phalanx\.supervise", "supervisor"),
    (r"bin/phalanx |standalone", "control plane"),
    (r"reaper", "reaper"),
    (r"stranger_.*\.py", "rank"),
)


def name_of(words: str, parent: str) -> str:
    """What a process is, from its command line and that of its parent."""
    for pattern, name in _PROCESSES:
        if re.search(pattern, words):
            # A forked rank has the command line of the warm process.
            return "rank" if name == "warm process" and "fork_server" in parent else name
    return "other"


def _words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def listening(roots: list[int]) -> list[ListeningSocket]:
    """Every listening socket of these processes and those below them."""
    found: dict[tuple[str, str, int], ListeningSocket] = {}
    for pid in sorted(_family(roots)):
        try:
            words, parent = _words(pid), _words(psutil.Process(pid).ppid() or pid)
            inodes = _inodes(pid)
            rows = [*_inet(pid, "tcp"), *_inet(pid, "tcp6"), *_unix(pid)]
        except (OSError, psutil.NoSuchProcess):
            continue
        for inode, kind, address, port in rows:
            if inode in inodes:
                one = ListeningSocket(name_of(words, parent), kind, address, port, pid)
                # Children inherit sockets: the parent, which is met first, has it.
                found.setdefault((kind, address, port), one)
    return list(found.values())


def _family(roots: list[int]) -> set[int]:
    pids = set()
    for root in roots:
        try:
            process = psutil.Process(root)
            pids |= {root, *(child.pid for child in process.children(recursive=True))}
        except psutil.NoSuchProcess:
            continue
    return pids


def _inodes(pid: int) -> set[int]:
    found = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(entry.path)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def _inet(pid: int, table: str) -> list[tuple[int, str, str, int]]:
    rows = []
    for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] != _LISTEN:
            continue
        text, port = words[1].split(":")
        parts = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
        own = ipaddress.ip_address(b"".join(parts))
        mapped = own.ipv4_mapped if isinstance(own, ipaddress.IPv6Address) else None
        address = str(own) if mapped is None else f"::ffff:{mapped}"
        rows.append((int(words[9]), "tcp", address, int(port, 16)))
    return rows


def _unix(pid: int) -> list[tuple[int, str, str, int]]:
    rows = []
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        # Streams that listen have the flag SO_ACCEPTCON; datagram sockets receive from everyone.
        listens = int(words[3], 16) & 0x10000 or words[4] == "0002"
        if listens and len(words) > 7:
            rows.append((int(words[6]), "unix", words[7], 0))
    return rows
