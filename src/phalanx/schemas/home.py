"""The home directory: where things lie, and the file by which a client finds the running server."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from phalanx.kit.text import job_label, node_label, study_label

HOME_VERSION = "1"


@dataclass(frozen=True, slots=True)
class HomeLayout:
    """Paths under one home. Nothing is created here. The root and its folders have mode 0700."""

    root: Path

    @property
    def version_file(self) -> Path:
        """Holds HOME_VERSION."""
        return self.root / "VERSION"

    @property
    def lock_file(self) -> Path:
        """Locked by the control plane of this home for as long as it lives; replicas share it."""
        return self.root / "lock"

    @property
    def server_file(self) -> Path:
        """`ServerFile` as JSON, mode 0600; present while a server answers."""
        return self.root / "server.json"

    @property
    def socket_file(self) -> Path:
        """The Unix socket of the control plane, mode 0600, for clients and supervisors of this user."""
        return self.root / "server.sock"

    def replica_socket(self, machine: str, pid: int) -> Path:
        """The Unix socket of one of the replicas of this home; those of one machine begin alike."""
        return self.root / f"server-{machine[:8]}-{pid}.sock"

    @property
    def token_file(self) -> Path:
        """The bearer token of this home, mode 0600."""
        return self.root / "token"

    @property
    def key_file(self) -> Path:
        """The key from which the tokens of supervisors are derived, in hexadecimal, mode 0600."""
        return self.root / "key"

    @property
    def tls_dir(self) -> Path:
        """The authority that `up --tls generate` makes: `ca.pem`, and `ca.key` of mode 0600."""
        return self.root / "tls"

    @property
    def server_log(self) -> Path:
        """What a detached control plane prints."""
        return self.root / "server.log"

    @property
    def database_file(self) -> Path:
        """The SQLite database."""
        return self.root / "db" / "phalanx.sqlite"

    @property
    def database_place(self) -> Path:
        """The URL, without its password, of the PostgreSQL database that this home uses."""
        return self.root / "database"

    @property
    def code_dir(self) -> Path:
        """Snapshots of code by the SHA-256 of their archive: `<code_dir>/<digest>.tar`."""
        return self.root / "code"

    @property
    def python_dir(self) -> Path:
        """Python environments of jobs, by their content; see `supervise.packages`."""
        return self.root / "python"

    @property
    def data_dir(self) -> Path:
        """Copies of inputs on this machine, by fingerprint; see `train.programs.staging`."""
        return self.root / "data"

    @property
    def logs_dir(self) -> Path:
        """Packed output: `<logs_dir>/<job label>/<name>`."""
        return self.root / "logs"

    @property
    def checkpoints_dir(self) -> Path:
        """The default checkpoint store: `<checkpoints_dir>/<project>/<job label>/step-…`."""
        return self.root / "checkpoints"

    @property
    def secrets_key_file(self) -> Path:
        """The master key of secrets, mode 0600."""
        return self.root / "secrets.key"

    @property
    def secret_files_dir(self) -> Path:
        """Secrets of an earlier release, a folder for each project; moved into the database."""
        return self.root / "secrets"

    def job_dir(self, num: int) -> Path:
        """Everything of one job but its checkpoints."""
        return self.root / "jobs" / job_label(num)

    def job_secrets_file(self, num: int) -> Path:
        """The secret variables of one job, mode 0600; deleted after its end."""
        return self.job_dir(num) / "secrets.json"

    def study_secrets_file(self, num: int) -> Path:
        """The secret variables of a study's trials, mode 0600; kept, as an ended study may be extended."""
        return self.root / "studies" / study_label(num) / "secrets.json"

    def attempt_dir(self, num: int, attempt: int) -> Path:
        """One attempt; its copy of the code is `code` in it."""
        return _attempt_dir(self.root, num, attempt)

    def node_dir(self, num: int, attempt: int, node_rank: int, incarnation: int = 0) -> Path:
        """One supervisor: exit record, spool, logs."""
        return self.attempt_dir(num, attempt) / node_label(node_rank, incarnation)


@functools.lru_cache(maxsize=4096)
def _attempt_dir(root: Path, num: int, attempt: int) -> Path:
    """Put together once: a launch names the same folder for every one of its nodes."""
    return HomeLayout(root).job_dir(num) / f"a{attempt:03d}"


class ServerFile(BaseModel):
    """How to reach the control plane of a home."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pid: int
    boot_id: str
    started_ticks: (
        int  # /proc/<pid>/stat field 22: with pid and boot id it names one process for ever
    )
    url: str
    token: str
    version: str
    socket: str = ""  # path of the Unix socket; empty: there is none
    ca: str = ""  # authority of the server's certificate, in PEM; empty: the system's, or no TLS
    home: str = (
        ""  # device and inode of the home: the file in a copy of it names no server of the copy
    )
