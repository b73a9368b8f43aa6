"""Files on a node of a cluster: folders of attempts, and code archives named by digest."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.core.gang.devices import CUDA
from phalanx.errors import UserError
from phalanx.kit.interpreter import tree_root
from phalanx.kit.text import job_label, node_label
from phalanx.launch.archives import unpack_archive
from phalanx.launch.files import private_folder, read_own_file
from phalanx.launch.identity import is_held
from phalanx.launch.tls import trust

# What tells a process its accelerators: Ray sets them for the actor that was given some, and the pods of
# a TPU slice have the names of its hosts.
_DEVICES = re.compile(
    r"(CUDA|HIP|ROCR|ASCEND_RT)_VISIBLE_DEVICES|TPU_[A-Z_]+|ONEAPI_DEVICE_SELECTOR|"
    r"HABANA_VISIBLE_MODULES"
)

MACHINE_VARIABLES = (
    *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH"),
    *("SHELL", "TMPDIR", "USER"),
)
"""Variables that describe the machine of a process more than its work."""
_CUDA = "CUDA_VISIBLE_DEVICES"
NUM_ARCHIVES = 16
_OLD_S = 7 * 86400.0
_TIMEOUT_S = 60.0


class CodeUnavailable(OSError):
    """The code of a job could not be brought to this node."""


@dataclass(frozen=True, slots=True)
class CodeSource:
    """The source of a code archive: the control plane, which checks the supervisor's token."""

    url: str
    digest: str
    token: str
    job: int
    attempt: int
    node_rank: int
    ca: str = ""  # the only authority that is accepted, in PEM; empty: the system's
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """Paths under the folder of one home on a node. Everything has mode 0700."""

    root: Path

    def node_dir(self, job: int, attempt: int, node_rank: int, incarnation: int = 0) -> Path:
        """Exit record, spool and logs of one supervisor."""
        attempt_dir = self.root / "jobs" / job_label(job) / f"a{attempt:03d}"
        return attempt_dir / node_label(node_rank, incarnation)

    def code_dir(self, job: int, attempt: int, node_rank: int, incarnation: int = 0) -> Path:
        """The supervisor's own copy of the code."""
        return self.node_dir(job, attempt, node_rank, incarnation) / "code"

    @property
    def python_dir(self) -> Path:
        """Python environments of jobs, by their content."""
        return self.root / "python"

    @property
    def data_dir(self) -> Path:
        """Copies of jobs' inputs, by their fingerprint."""
        return self.root / "data"

    def prune(self, now_s: float) -> None:
        """Delete the folders of attempts that ended long ago, and all but the newest archives."""
        for folder in self.root.glob("jobs/j-*/a*"):
            nodes = list(folder.glob("n*"))
            # A folder's time says when something was last made or renamed in it, which in a long run
            # may be weeks ago: a living supervisor holds the lock of its folder.
            last_s = max(map(_used_at, [folder, *nodes]))
            if now_s - last_s > _OLD_S and not any(map(is_held, nodes)):
                shutil.rmtree(folder, ignore_errors=True)
        archives = sorted(self.root.glob("code/*.tar"), key=_used_at, reverse=True)
        for archive in archives[NUM_ARCHIVES:]:
            archive.unlink(missing_ok=True)

    def bring(self, source: CodeSource | None, target: Path) -> bool:
        """Unpack the code into `target`; returns whether the archive was on this node before.

        Without a source the folder is empty. Raises CodeUnavailable.
        """
        try:
            private_folder(self.root)
        except OSError as error:
            hint = "set another `root` in the pool file"
            raise CodeUnavailable(f"the node's folder is not safe: {error}: {hint}") from error
        partial = target.with_name("code.tmp")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700, parents=True)
        cached = True
        if source is not None:
            archive = self.root / "code" / f"{source.digest}.tar"
            archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(archive.with_suffix(".lock")):
                cached = is_intact(archive, source.digest)
                if not cached:
                    fetch(source, archive)
                os.utime(archive)
            try:
                unpack_archive(archive, partial)
            except (UserError, OSError) as error:
                raise CodeUnavailable(f"the code cannot be unpacked: {error}") from error
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        return cached


def is_intact(archive: Path, digest: str) -> bool:
    """Whether an archive is there, of this user, and has the content that its name says."""
    try:
        descriptor = read_own_file(archive)
    except OSError:
        return False
    with open(descriptor, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for an exclusive lock, so that only one process of this node downloads an archive."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def fetch(source: CodeSource, archive: Path) -> None:
    """Download an archive, verify it, and put it in place. Raises CodeUnavailable."""
    connection = trust.connection(source.url, source.ca, _TIMEOUT_S)
    path = (
        f"/api/v1/supervisors/code/{source.digest}"
        f"?job={source.job}&attempt={source.attempt}&node_rank={source.node_rank}"
        f"&incarnation={source.incarnation}"
    )
    partial = archive.with_name(f".{archive.name}.{os.getpid()}.{time.monotonic_ns()}")
    digest = hashlib.sha256()
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {source.token}"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise CodeUnavailable(
                f"the control plane refused to send the code: {answer.read(300)!r}"
            )
        with open(partial, "xb") as file:
            while chunk := answer.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != source.digest:
            raise CodeUnavailable("the downloaded code does not match its digest")
        partial.rename(archive)
    except CodeUnavailable:
        raise
    except (OSError, http.client.HTTPException) as error:
        said = f"the code cannot be fetched from {source.url}: {trust.told(error, source.url)}"
        raise CodeUnavailable(said) from error
    finally:
        partial.unlink(missing_ok=True)
        connection.close()


def source_of(assignment: dict[str, Any]) -> CodeSource | None:
    """The source of the code of an assignment; None: it has no code."""
    digest = assignment.get("code")
    if digest is None:
        return None
    gang = assignment["gang"]
    return CodeSource(
        url=assignment["server_url"],
        digest=digest,
        token=assignment["token"],
        job=gang["job"]["num"],
        attempt=gang["attempt"],
        node_rank=assignment["node_rank"],
        incarnation=assignment.get("incarnation", 0),
        ca=assignment.get("server_ca") or "",
    )


def place(assignment: dict[str, Any], node_dir: Path, code: Path) -> None:
    """Give an assignment this node's own folders, interpreter and accelerators."""
    env = assignment["env"]
    if tree_root() is None:  # the Python of a tree is not for ranks
        here = str(Path(sys.executable).parent)
        rest = [part for part in env.get("PATH", os.defpath).split(os.pathsep) if part != here]
        env["PATH"] = os.pathsep.join([here, *rest])
    own = os.environ  # noqa: TID251 - what this node gives its processes
    for name in ("HOME", "TMPDIR"):
        if name in env and not os.path.isdir(env[name]):
            env.pop(name)
            if name in own:
                env[name] = own[name]
    env.update({name: own[name] for name in own if _DEVICES.fullmatch(name)})
    if own.get(_CUDA):
        # Ray chooses the devices of an actor; the supervisor divides them among its ranks.
        assignment |= {"devices": own[_CUDA].split(","), "device_kind": CUDA}
    assignment["node_dir"] = str(node_dir)
    if not os.path.isdir(assignment["cwd"]) or assignment["cwd"] == assignment["workdir"]:
        assignment["cwd"] = str(code)
    assignment["workdir"] = str(code)
