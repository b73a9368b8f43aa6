"""The checks of `phalanx doctor`: one result each, with a remedy when something is wrong."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import resource
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from phalanx import __version__
from phalanx.cli.client import embedded
from phalanx.errors import PermissionDenied, PlatformError
from phalanx.kit.clock import SystemClock
from phalanx.kit.units import format_size
from phalanx.launch import accept_guard
from phalanx.launch.files import distrusted
from phalanx.schemas.home import HomeLayout

_MIN_FREE = 2**30
_KEPT = 4  # `checkpoint.keep.last` by default, and the one that is being written
_LOOKED_AT = 20
_MIN_SHM = 64 * 2**20
_MIN_FILES = 1024
_MAX_SKEW_S = 2.0
_BUILT_AT_US = 1_767_225_600_000_000  # 2026-01-01: no correct clock shows less


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report of `phalanx doctor`."""

    verdict: Literal["ok", "warn", "FAIL"]
    subject: str
    said: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """The result as plain data for JSON."""
        return asdict(self)


def examine(home: Path) -> list[CheckResult]:
    """Run every check, the most important first."""
    checks: tuple[Callable[[Path], CheckResult], ...] = (
        _python,
        _torch,
        _home,
        _disk,
        _checkpoint_disk,
        _shm,
        _files,
        _port,
        _guard,
        _cores,
        _accelerators,
        _limits,
        _clock,
        _server,
    )
    return [check(home) for check in checks]


def _python(home: Path) -> CheckResult:
    said = f"{sys.version.split()[0]} at {sys.executable}; Phalanx {__version__}"
    return CheckResult("ok", "python", said)


def _torch(home: Path) -> CheckResult:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return CheckResult(
            "warn", "torch", "not installed for this Python", "pip install 'phalanx[train]'"
        )
    if not version.startswith("2.13."):
        return CheckResult("warn", "torch", version, "phalanx.train requires 2.13")
    return CheckResult("ok", "torch", version)


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))


def _home(home: Path) -> CheckResult:
    existing = _nearest_folder(home)
    if not existing.is_dir():
        return CheckResult("FAIL", "home", f"{existing} is not a folder", "choose another --home")
    if not os.access(existing, os.W_OK | os.X_OK):
        return CheckResult("FAIL", "home", f"{existing} is not writable", "choose another --home")
    why = distrusted(home) or distrusted(home / embedded.SERVER_FILE)
    if why:
        return CheckResult("FAIL", "home", why, f"choose another --home, or chmod -R go-w {home}")
    if os.path.exists(home) and home.stat().st_mode & 0o077:
        return CheckResult("warn", "home", f"other users can read {home}", f"chmod 700 {home}")
    return CheckResult(
        "ok", "home", str(home) + ("" if os.path.exists(home) else " (not there yet)")
    )


def _disk(home: Path) -> CheckResult:
    free = shutil.disk_usage(_nearest_folder(home)).free
    said = f"{format_size(free)} free for the home"
    if free < _MIN_FREE:
        return CheckResult("FAIL", "disk", said, "free some space, or choose another --home")
    return CheckResult("ok", "disk", said)


def _checkpoint_disk(home: Path) -> CheckResult:
    """The disk of the checkpoints, which may be another one than that of the home."""
    folder = HomeLayout(home).checkpoints_dir
    existing = _nearest_folder(folder)
    subject = "checkpoints"
    if not existing.is_dir():
        said = f"{existing} is not a folder"
        return CheckResult("FAIL", subject, said, "mount or repair it")
    if not os.access(existing, os.W_OK | os.X_OK) or os.statvfs(existing).f_flag & os.ST_RDONLY:
        return CheckResult("FAIL", subject, f"{existing} is not writable", "mount it for writing")
    free, size = shutil.disk_usage(existing).free, _largest_checkpoint(folder)
    said = f"{format_size(free)} free in {existing}"
    if free < max(_MIN_FREE, size):
        return CheckResult("FAIL", subject, said, "free some space")
    if free < _KEPT * size:
        said += f"; {_KEPT} checkpoints of {format_size(size)} need {format_size(_KEPT * size)}"
        return CheckResult("warn", subject, said, "free some space, or keep fewer checkpoints")
    return CheckResult("ok", subject, said)


def _largest_checkpoint(folder: Path) -> int:
    """Bytes of the largest of the newest checkpoints of the jobs that saved last."""
    from phalanx.checkpoint import list_checkpoints

    try:
        jobs = sorted(folder.glob("*/j-*"), key=lambda path: path.stat().st_mtime)[-_LOOKED_AT:]
        newest = [found[0].manifest for path in jobs if (found := list_checkpoints(path))]
    except (OSError, PlatformError):
        return 0
    return max((manifest.size_bytes for manifest in newest), default=0)


def _shm(home: Path) -> CheckResult:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return CheckResult(
            "warn", "shared memory", "no /dev/shm", "mount it: data workers share tensors there"
        )
    said = f"{format_size(free)} free in /dev/shm"
    if free < _MIN_SHM:
        return CheckResult("warn", "shared memory", said, "enlarge it: data workers may fail")
    return CheckResult("ok", "shared memory", said)


def _files(home: Path) -> CheckResult:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _MIN_FILES:
        return CheckResult("warn", "open files", f"at most {soft}", f"ulimit -n {_MIN_FILES * 4}")
    return CheckResult("ok", "open files", f"at most {soft}")


def _port(home: Path) -> CheckResult:
    try:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen()
            port = sock.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
    except OSError as error:
        return CheckResult(
            "FAIL", "loopback", f"127.0.0.1 does not work: {error}", "check the firewall"
        )
    return CheckResult("ok", "loopback", "127.0.0.1 answers")


def _guard(home: Path) -> CheckResult:
    accept_guard.forget_failure()
    path, said = accept_guard.library()
    if path is None:
        return CheckResult(
            "warn",
            "accept guard",
            f"ranks accept connections of other users: {said}",
            "install a C compiler; see docs/explanation/security.md",
        )
    return CheckResult("ok", "accept guard", "ranks refuse connections of other users")


def _cores(home: Path) -> CheckResult:
    usable, total = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    said = f"{usable} of {total} usable; {max(4, usable)} slots by default without accelerators"
    return CheckResult("ok", "cores", said)


def _accelerators(home: Path) -> CheckResult:
    from phalanx.launch.accelerators import discover

    found = discover(os.environ)  # noqa: TID251 - what a control plane would be left
    if found.problems:
        remedy = "check the driver: nvidia-smi or rocm-smi must work for this user"
        return CheckResult("warn", "accelerators", "; ".join(found.problems), remedy)
    if not found.devices:
        return CheckResult("ok", "accelerators", "none found; slots are CPU worker places")
    kinds = Counter((one.model, one.memory_bytes, one.link) for one in found.devices)
    said = ", ".join(
        f"{num} × {model} with {format_size(memory)}" + (f" ({link})" if link else "")
        for (model, memory, link), num in kinds.items()
    )
    unfit = [one for one in found.devices if one.problem]
    if unfit:
        said += f"; {unfit[0].id}: {unfit[0].problem}"
        return CheckResult("warn", "accelerators", said, "its slot is not offered until it works")
    return CheckResult("ok", "accelerators", said)


def _limits(home: Path) -> CheckResult:
    from phalanx.launch.cgroup import why_no_limits

    why = why_no_limits()
    if why:
        said = f"`cpus` and `memory` of jobs place them, and are not enforced: {why}"
        return CheckResult("ok", "limits", said)
    return CheckResult("ok", "limits", "`cpus` and `memory` of jobs are enforced by cgroup v2")


def _clock(home: Path) -> CheckResult:
    now = SystemClock().now()
    if now < _BUILT_AT_US:
        return CheckResult("FAIL", "clock", "is years behind", "set it with NTP, for example")
    existing = _nearest_folder(home)
    probe = existing / f".phalanx-clock-{os.getpid()}"
    try:
        probe.touch()
        skew_s = abs(probe.stat().st_mtime - SystemClock().now() / 1e6)
    except OSError:
        return CheckResult("warn", "clock", "cannot be compared with that of the disk")
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    if skew_s > _MAX_SKEW_S:
        said = f"differs by {skew_s:.1f} s from that of the disk"
        return CheckResult("warn", "clock", said, "choose a --home on a local disk")
    return CheckResult("ok", "clock", "agrees with that of the disk")


def _server(home: Path) -> CheckResult:
    try:
        found = embedded.find(home)
    except PermissionDenied as error:
        return CheckResult("FAIL", "control plane", error.message, error.hint or "")
    if found is None:
        return CheckResult("ok", "control plane", "none is running; verbs start one when needed")
    pid = found.process.pid if found.process is not None else "?"
    said = f"{found.url} (pid {pid}, version {found.version})"
    if found.version != __version__:
        return CheckResult("warn", "control plane", said, f"restart it with {__version__}")
    return CheckResult("ok", "control plane", said)
