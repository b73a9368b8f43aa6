"""The standby: a supervisor with a warm process that waits for a job."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.gang.placement import omp_num_threads
from phalanx.launch.command import parse_python, same_python, sensitive
from phalanx.schemas.wire.assignments import Assignment


@dataclass(frozen=True, slots=True)
class WarmNeeds:
    """What the warm process of a job would be: its interpreter, environment and imports."""

    python: str
    env: Mapping[str, str]
    imports: tuple[str, ...]
    #: whether a build or a setup command must run before anything is imported
    is_built: bool

    @classmethod
    def of(cls, assignment: Assignment) -> WarmNeeds | None:
        """Those of an assignment; None where its ranks start cold."""
        env = {"PYTHONUNBUFFERED": "1", **assignment.env}
        threads = omp_num_threads(assignment.num_ranks, assignment.cpus)
        if threads is not None:
            env.setdefault("OMP_NUM_THREADS", str(threads))
        command = parse_python(assignment.command, workdir=assignment.workdir, env=env)
        if command is None or not assignment.warm.enabled:
            return None
        built = assignment.setup is not None or assignment.python is not None
        return cls(command.python, env, tuple(assignment.warm.imports), built)

    @property
    def sensitive(self) -> dict[str, str]:
        """The variables that a fork cannot change."""
        return sensitive(self.env)


class NoStandby:
    """Keeps no standby: every supervisor starts when it is needed."""

    def take(self, assignment: Assignment, path: Path) -> subprocess.Popen[bytes] | None:
        """Pass the assignment to a standby that matches it; None when there is none."""
        return None

    def keep(self) -> None:
        """Start a standby for a job like the last one, unless one waits."""

    def close(self) -> None:
        """End the standby."""


class StandbySupervisor(NoStandby):
    """Keeps one standby. It ends with this process, by end-of-file on its input, unless it has work."""

    def __init__(self, num_cpus: int) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._python = sys.executable
        self._env: Mapping[str, str] = _own_env(num_cpus)
        self._imports: tuple[str, ...] = ()
        self._wanted = True

    def take(self, assignment: Assignment, path: Path) -> subprocess.Popen[bytes] | None:
        """See `NoStandby`. A standby that does not match is ended; the next one will match.

        One that no job of this kind could use, as without a warm process, is kept for the next job.
        """
        needs = WarmNeeds.of(assignment)
        with self._lock:
            if needs is None or not same_python(needs.python, self._python):
                return None
            process, self._process = self._process, None
            matches = self._remember(needs)
            self._wanted = True
            if process is None:
                return None
            if not matches or process.poll() is not None:
                _release(process)
                return None
            assert process.stdin is not None
            try:
                process.stdin.write(os.fsencode(path) + b"\n")
                process.stdin.close()
            except OSError:
                _release(process)
                return None
            return process

    def keep(self) -> None:
        """See `NoStandby`."""
        with self._lock:
            if not self._wanted or (self._process is not None and self._process.poll() is None):
                return
            self._wanted = False
            self._process = subprocess.Popen(
                [sys.executable, "-m", "phalanx.supervise", "--standby", *self._imports],
                env=dict(self._env),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def close(self) -> None:
        """See `NoStandby`."""
        with self._lock:
            process, self._process = self._process, None
            self._wanted = False
            if process is not None:
                _release(process)

    def _remember(self, needs: WarmNeeds) -> bool:
        """Record what the next standby should be; returns whether the present one is that already."""
        # A standby can import more modules later; these properties it can never change.
        matches = needs.sensitive == sensitive(self._env) and not needs.is_built
        self._env, self._imports = needs.env, needs.imports
        return matches


def _own_env(num_cpus: int) -> dict[str, str]:
    """The environment of a probable first job: this one, with the CPUs shared by a few ranks."""
    env = {"PYTHONUNBUFFERED": "1", **os.environ}  # noqa: TID251 - what jobs inherit by default
    env.setdefault("OMP_NUM_THREADS", str(max(1, num_cpus // 2)))
    return env


def _release(process: subprocess.Popen[bytes]) -> None:
    """Close its input: it ends by itself, and its reaper with it."""
    with contextlib.suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()
    # A thread of its own waits for it, so that no zombie stays.
    threading.Thread(target=process.wait, daemon=True).start()
