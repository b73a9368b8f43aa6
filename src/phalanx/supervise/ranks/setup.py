"""The job's `setup` command: once per node, before the first generation."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.reasons import Cause
from phalanx.schemas.wire.assignments import Assignment
from phalanx.supervise.processes import LaunchRequest, ProcessTree
from phalanx.supervise.ranks.generation import Generation

PHASE = "setup"
_TAIL_BYTES = 4096


@dataclass(slots=True)
class SetupCommand:
    """Runs it at most once; a generation begins only after it has succeeded."""

    assignment: Assignment
    processes: ProcessTree
    done: bool = False
    generation: Generation | None = None

    def before(self, generation: Generation) -> None:
        """Begin `generation`, after the set-up where there is one."""
        if self.done or self.assignment.setup is None:
            generation.begin()
            return
        self.generation = generation
        try:
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            output = os.open(self._log, flags, 0o600)
        except OSError as error:
            generation.fail(f"setup could not be started: {error}", Cause.START_FAILED)
            return
        generation.records.phase = PHASE
        launch = LaunchRequest(self.assignment.env, self.assignment.cwd, (stdin, output, output))
        workdir = self.assignment.workdir
        self.processes.start_command(self.assignment.setup, launch, self, workdir)

    @property
    def _log(self) -> Path:
        return Path(self.assignment.node_dir, "setup.log")

    def started(self, pid: int, *, warm: bool) -> None:
        """See `ProcessObserver`."""

    def refused(self, message: str, *, missing: bool) -> None:
        """See `ProcessObserver`."""
        if self.generation is not None:
            cause = Cause.USER_ERROR if missing else Cause.START_FAILED
            self.generation.fail(f"setup could not be started: {message}", cause)

    def exited(self, status: int, at: int) -> None:
        """See `ProcessObserver`."""
        generation, self.generation = self.generation, None
        if generation is None:
            return
        generation.records.phase = ""
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and not generation.ending:
            self.done = True
            self.processes.start_warm()
            generation.begin()
        elif code != 0:
            how = f"exited with code {code}" if code > 0 else f"was killed by signal {-code}"
            # The shell's own codes for a command that does not exist or cannot be executed.
            cause = Cause.USER_ERROR if code in (126, 127) else Cause.START_FAILED
            generation.fail(f"setup {how}", cause, traceback=self._tail())

    def _tail(self) -> str:
        try:
            return self._log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
        except OSError:
            return ""
