"""Preparation of a node before its first ranks start: the Python environment, then the setup command."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.reasons import Cause
from phalanx.launch.files import write_file
from phalanx.schemas.wire.assignments import Assignment
from phalanx.supervise.packages.plan import VERDICT, EnvironmentPlan
from phalanx.supervise.processes import LaunchRequest, ProcessTree
from phalanx.supervise.ranks.generation import Generation

_BUILD_PHASE, _SETUP_PHASE = "packages", "setup"
_REQUEST = "packages.json"
_TAIL_BYTES = 4096
# The shell's own codes for a command that does not exist or cannot be executed.
_NOT_EXECUTABLE = (126, 127)
_SOURCE = str(Path(__file__).resolve().parents[2])
_BUILDER = f"import sys; sys.path.insert(0, {_SOURCE!r}); from phalanx.supervise.packages.build import main; sys.exit(main(sys.argv[1]))"  # noqa: E501

Then = Callable[[], None]


class Preparation:
    """The steps before a generation's ranks. Each succeeds at most once in the life of a supervisor."""

    def __init__(
        self, assignment: Assignment, processes: ProcessTree, plan: EnvironmentPlan
    ) -> None:
        self._environment = EnvironmentBuild(assignment, processes, plan)
        self._setup = SetupCommand(assignment, processes)

    def run(self, generation: Generation, then: Then) -> None:
        """Build the Python environment, run the setup command, and call `then`.

        Steps that are done are skipped. A step that fails ends `generation`, and `then` is not called.
        """
        self._environment.run(generation, lambda: self._setup.run(generation, then))


@dataclass(slots=True)
class EnvironmentBuild:
    """Builds the job's Python environment in a child process, unless this node has it already."""

    assignment: Assignment
    processes: ProcessTree
    plan: EnvironmentPlan
    generation: Generation | None = None
    then: Then | None = None

    def run(self, generation: Generation, then: Then) -> None:
        """Call `then` once the environment exists; end `generation` where it cannot be built."""
        if self.plan.problem:
            generation.fail(self.plan.problem, Cause.USER_ERROR)
        elif self.plan.ready:
            then()
        else:
            self._build(generation, then)

    def _build(self, generation: Generation, then: Then) -> None:
        folder = Path(self.assignment.node_dir)
        try:
            (folder / VERDICT).unlink(missing_ok=True)
            write_file(folder / _REQUEST, json.dumps(self.plan.request).encode())
            stdio = generation.open_prelude()
        except OSError as error:
            generation.fail(f"the environment cannot be built: {error}", Cause.START_FAILED)
            return
        self.generation, self.then = generation, then
        generation.records.phase = _BUILD_PHASE
        launch = LaunchRequest(self.assignment.env, self.assignment.workdir, stdio)
        argv = [sys.executable, "-I", "-S", "-c", _BUILDER, str(folder / _REQUEST)]
        self.processes.start_command(argv, launch, self, self.assignment.workdir)

    def started(self, pid: int, *, warm: bool) -> None:
        """See `ProcessObserver`."""

    def refused(self, message: str, *, missing: bool) -> None:
        """See `ProcessObserver`."""
        generation = self._close()
        if generation is not None:
            said = f"the environment cannot be built: {message}"
            generation.fail(said, Cause.START_FAILED)

    def exited(self, status: int, at: int) -> None:
        """See `ProcessObserver`."""
        generation, then = self._close(), self.then
        if generation is None or then is None or generation.ending:
            return
        if os.waitstatus_to_exitcode(status) == 0 and self.plan.hold():
            if self.assignment.setup is None:
                self.processes.start_warm_process()
            then()
            return
        cause, message, tail = self._verdict(status)
        generation.fail(message, cause, traceback=tail)

    def _close(self) -> Generation | None:
        generation, self.generation = self.generation, None
        if generation is not None:
            generation.close_prelude()
            generation.records.phase = ""
        return generation

    def _verdict(self, status: int) -> tuple[Cause, str, str]:
        """Cause, message and last output of a failed build, from the builder's own file if it wrote one."""
        try:
            body = json.loads((Path(self.assignment.node_dir) / VERDICT).read_bytes())
            if body["cause"] is not None:
                return Cause(body["cause"]), str(body["message"]), str(body["tail"])
            said = "the environment was removed as soon as it was built"
        except (OSError, ValueError, KeyError, TypeError):
            said = f"the build of the Python environment {_how(status)}"
        return Cause.START_FAILED, said, ""


@dataclass(slots=True)
class SetupCommand:
    """Runs the job's `setup` command until it has succeeded once on this node."""

    assignment: Assignment
    processes: ProcessTree
    done: bool = False
    generation: Generation | None = None
    then: Then | None = None

    def run(self, generation: Generation, then: Then) -> None:
        """Call `then` after the setup command, if the job has one that has not succeeded yet."""
        if self.done or self.assignment.setup is None:
            then()
            return
        self.generation, self.then = generation, then
        try:
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            output = os.open(self._log, flags, 0o600)
        except OSError as error:
            generation.fail(f"setup could not be started: {error}", Cause.START_FAILED)
            return
        generation.records.phase = _SETUP_PHASE
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
        if generation is None or self.then is None:
            return
        generation.records.phase = ""
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and not generation.ending:
            self.done = True
            self.processes.start_warm_process()
            self.then()
        elif code != 0:
            cause = Cause.USER_ERROR if code in _NOT_EXECUTABLE else Cause.START_FAILED
            generation.fail(f"setup {_how(status)}", cause, traceback=self._tail())

    def _tail(self) -> str:
        try:
            return self._log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
        except OSError:
            return ""


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
