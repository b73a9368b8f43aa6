"""Run a container's program in the root folder of an image, as the first process of a PID namespace.

A folder stands for an image: a test puts a static shell into it, or mounts the Python of this machine. It
needs the rights of root: `problem` says where they are missing. Started as
`python -m phalanx.testing.kubernetes.image_root`, with a request as JSON on standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

_CLONE_NEWNS, _CLONE_NEWPID = 0x00020000, 0x20000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1
_DEVICES = ("null", "zero", "full", "random", "urandom")
# A kubelet writes these two for every pod.
_NETWORK = ("/etc/hosts", "/etc/resolv.conf")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class ImageRoot:
    """An image: the folder with its files, and its configuration."""

    root: Path
    env: Mapping[str, str] = field(default_factory=dict)
    #: folders of this machine that the image has at the same paths, to read only
    shared: tuple[Path, ...] = ()

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        mounts: Mapping[str, Path],
        log: int,
    ) -> subprocess.Popen[bytes]:
        """Start a program with the file systems of a pod; `mounts` are files and folders by their path."""
        request = {
            "root": str(self.root),
            "shared": [str(one) for one in self.shared],
            "mounts": {path: str(source) for path, source in mounts.items()},
            "argv": list(argv),
            "env": {"PATH": _PATH, "HOME": "/", **self.env, **env},
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "phalanx.testing.kubernetes.image_root"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(json.dumps(request).encode())
        return process


def problem() -> str:
    """Why programs cannot be run in a root folder here; empty: they can."""
    if os.geteuid() != 0:
        return "programs in a root folder of their own need the rights of root"
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return "" if done.returncode == 0 else "this machine permits no namespaces: " + str(done.stderr)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc(), name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}", str(arguments))


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    words = (source.encode(), target.encode(), kind.encode())
    _call("mount", *words, ctypes.c_ulong(flags), None)


def _bind(source: Path, target: Path, *, read_only: bool = False) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(str(source), str(target), "", _MS_BIND)
    if read_only:
        _mount("", str(target), "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY)


def _inside(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _enter(request: Mapping[str, Any]) -> None:
    """Make the file systems of the container, and its root that of this process."""
    root = Path(request["root"])
    for one in request["shared"]:
        _bind(Path(one), _inside(root, one), read_only=True)
    devices = root / "dev"
    devices.mkdir(exist_ok=True)
    _mount("tmpfs", str(devices), "tmpfs", 0)
    for name in _DEVICES:
        _bind(Path("/dev", name), devices / name)
    for folder in ("shm", "pts"):
        (devices / folder).mkdir()
    (devices / "fd").symlink_to("/proc/self/fd")
    (root / "proc").mkdir(exist_ok=True)
    _mount("proc", str(root / "proc"), "proc", 0)
    for name in _NETWORK:
        if Path(name).exists():
            _bind(Path(name).resolve(), _inside(root, name), read_only=True)
    for path, source in sorted(request["mounts"].items()):
        _bind(Path(source), _inside(root, path))
    os.chroot(root)
    os.chdir("/")


def _become(request: Mapping[str, Any]) -> NoReturn:
    try:
        _call("prctl", _PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        _enter(request)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except OSError as error:
        os.write(2, f"the container cannot be started: {error}\n".encode())
    os._exit(128)


def main() -> int:
    """Run one program to its end; returns its exit code, and 128 and the number of a signal."""
    request = json.loads(sys.stdin.buffer.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    _call("unshare", _CLONE_NEWNS | _CLONE_NEWPID)
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    pid = os.fork()
    if pid == 0:
        _become(request)

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, forward)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
