"""A stranger: a process of another user, or in another network namespace, that tries every socket."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

NOBODY = 65534
_CLONE_NEWNET = 0x40000000
_PATIENCE_S = 2.0
INSIDE, OUTSIDE = "10.213.7.1", "10.213.7.2"
# What a framework's own client would begin with: torch's store (hello, then list all keys), HTTP, gRPC,
# and bytes that mean nothing.
OPENINGS = (
    b"",
    b"\x08\x07\xf7\x4f\x85\x3c" + b"\x12" * 64,
    b"GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b'{"rank": 1}\n{"command": "touch /tmp/phalanx-stranger"}\n',
    bytes(range(256)) * 4,
)


def apart(work: Callable[[], Any], *, uid: int = 0, netns: str = "") -> Any:
    """The result of `work` in a child process that is another user, or in another namespace."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if netns:
                with open(f"/run/netns/{netns}") as file:
                    if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET) != 0:
                        os._exit(3)
            if uid:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            result = json.dumps(work()).encode()
        except BaseException as error:
            result = json.dumps({"error": repr(error)}).encode()
        with contextlib.suppress(OSError):
            os.write(writing, result)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    return json.loads(data)


def tried(targets: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    """What each target says to each opening: `refused`, or the bytes that came, and whether it closed."""
    rows = [(target, opening) for target in targets for opening in OPENINGS]
    with ThreadPoolExecutor(64) as pool:
        return list(pool.map(lambda row: _tried(*row), rows))


def _tried(target: tuple[str, int], opening: bytes) -> dict[str, Any]:
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    found: dict[str, Any] = {"target": list(target), "said": len(opening), "state": "refused"}
    with socket.socket(family) as line:
        line.settimeout(_PATIENCE_S)
        try:
            line.connect(target)
        except OSError:
            return found
        got = b""
        try:
            line.sendall(opening)
            while chunk := line.recv(4096):
                got += chunk
            state = "closed"
        except TimeoutError:
            state = "open"
        except OSError:
            state = "closed"
    return {**found, "state": state, "got": len(got), "begins": got[:40].decode("latin-1")}


def unix_tried(path: str) -> str:
    """Whether a Unix socket can be reached: `refused`, `denied` or `open`."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind) as line:
            try:
                line.connect("\0" + path[1:] if path.startswith("@") else path)
            except PermissionError:
                return "denied"
            except OSError:
                continue
            return "open"
    return "refused"


@contextlib.contextmanager
def namespace(name: str) -> Iterator[str]:
    """A network namespace that reaches this machine at `INSIDE` over a link of its own."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)

    link, other = f"{name}a", f"{name}b"
    ip("netns", "add", name)
    try:
        ip("link", "add", link, "type", "veth", "peer", "name", other)
        ip("link", "set", other, "netns", name)
        ip("addr", "add", f"{INSIDE}/30", "dev", link)
        ip("link", "set", link, "up")
        ip("-n", name, "addr", "add", f"{OUTSIDE}/30", "dev", other)
        ip("-n", name, "link", "set", other, "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            ip("link", "del", link)
        ip("netns", "del", name)


@contextlib.contextmanager
def machines(name: str, count: int) -> Iterator[list[tuple[str, str]]]:
    """Network namespaces on one bridge, each with its address, as machines of one network."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)

    bridge, made = f"{name}s", []
    ip("link", "add", bridge, "type", "bridge")
    try:
        ip("link", "set", bridge, "up")
        for number in range(1, count + 1):
            one, link = f"{name}{number}", f"{name}l{number}"
            ip("netns", "add", one)
            made.append((one, f"10.213.8.{number}"))
            ip("link", "add", link, "type", "veth", "peer", "name", "gang0", "netns", one)
            ip("link", "set", link, "master", bridge, "up")
            ip("-n", one, "addr", "add", f"10.213.8.{number}/24", "dev", "gang0")
            ip("-n", one, "link", "set", "gang0", "up")
            ip("-n", one, "link", "set", "lo", "up")
        yield made
    finally:
        for one, _ in made:
            ip("netns", "del", one)
        ip("link", "del", bridge)


def held(targets: Sequence[tuple[str, int]], each: int) -> Callable[[], None]:
    """Open silent connections to every target as another user and keep them; returns their end."""
    reading, writing = os.pipe()
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        with contextlib.suppress(BaseException):
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            lines = []
            for address, port in targets:
                for _ in range(each):
                    line = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
                    line.settimeout(1.0)
                    with contextlib.suppress(OSError):
                        line.connect((address, port))
                        lines.append(line)
            os.write(tell, b"x")
            os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    os.close(tell)
    os.read(ready, 1)
    os.close(ready)

    def end() -> None:
        os.close(writing)
        os.waitpid(pid, 0)

    return end
