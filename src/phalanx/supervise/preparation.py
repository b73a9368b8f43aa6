"""Preparation of a node before its first ranks: devices, Python environment, inputs, setup."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from phalanx.core.reasons import Cause
from phalanx.kit.interpreter import own_python, tree_root
from phalanx.launch.files import write_file
from phalanx.launch.identity import DATA_LINKS, STAGED_SUFFIX
from phalanx.schemas.wire.assignments import Assignment
from phalanx.supervise.device_check import DeviceCheck
from phalanx.supervise.packages.plan import VERDICT, EnvironmentPlan
from phalanx.supervise.portable.image_python import phalanx_python
from phalanx.supervise.processes import LaunchRequest, ProcessObserver, ProcessTree
from phalanx.supervise.ranks.checkpoint_folder import StagedCheckpoint
from phalanx.supervise.ranks.generation import Generation, GenerationContext
from phalanx.supervise.software_check import SoftwareCheck, read_staged

_REQUEST = "packages.json"
_STAGING, _STAGING_LOG = "staging.json", "staging.log"
_RESUME, _RESUME_LOG = "resume.json", "resume.log"
# The exit code of a program that did not find what it was told.
_NOT_THERE = 102
_TAIL_BYTES = 4096
# The shell's own codes for a command that does not exist or cannot be executed.
_NOT_EXECUTABLE = (126, 127)
_SOURCE = str(Path(__file__).resolve().parents[2])
_BUILDER = f"import sys; sys.path.insert(0, {_SOURCE!r}); from phalanx.supervise.packages.build import main; sys.exit(main(sys.argv[1]))"  # noqa: E501

_NO_STAGING = (
    "inputs are staged by the Python of the image, which must be 3.11 or newer and have numpy: "
    "the image has none"
)

Then = Callable[[], None]


class Preparation:
    """The steps before a generation's ranks. Each succeeds at most once in the life of a supervisor."""

    def __init__(self, context: GenerationContext, plan: EnvironmentPlan) -> None:
        assignment, processes = context.assignment, context.processes
        software = SoftwareCheck(context)
        self._devices = DeviceCheck(assignment, processes)
        self._environment = EnvironmentBuild(assignment, processes, plan)
        self._staging = DataStaging(assignment, processes, software)
        self._resume = ResumeStaging(assignment, processes)
        self._setup = SetupCommand(assignment, processes)
        self._software = software

    def run(self, generation: Generation, then: Then, *, resumes: bool = False) -> None:
        """Check devices, build the environment, stage inputs, run the setup command, and call `then`.

        The checkpoint to begin from is staged as well, unless the job `resumes` from one of its own, and
        the installed software reported. Steps that are done are skipped. A step that fails ends
        `generation`, and `then` is not called.
        """
        steps = (
            *(self._devices, self._environment, self._staging),
            *(self._resume, self._setup, self._software),
        )
        self._resume.superseded = resumes
        for step in reversed(steps):
            then = partial(step.run, generation, then)
        then()


class PreparationStep(ProcessObserver):
    """A program that must have succeeded on this node before ranks start."""

    #: the phase that heartbeats show while it runs
    phase = ""
    #: how messages begin when it could not be started
    failed = ""

    def __init__(self, assignment: Assignment, processes: ProcessTree) -> None:
        self._assignment = assignment
        self._processes = processes
        self._generation: Generation | None = None
        self._then: Then = lambda: None

    def _start(
        self, generation: Generation, then: Then, command: list[str] | str, launch: LaunchRequest
    ) -> None:
        self._generation, self._then = generation, then
        generation.records.phase = self.phase
        self._processes.start_command(command, launch, self, self._assignment.workdir)

    def _ended(self) -> Generation | None:
        """The generation that waits for the program; None where the program has ended before."""
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.records.phase = ""
        return generation

    def refused(self, message: str, *, missing: bool) -> None:
        """See `ProcessObserver`."""
        generation = self._ended()
        if generation is not None:
            cause = Cause.USER_ERROR if missing else Cause.START_FAILED
            generation.fail(f"{self.failed}: {message}", cause)


class EnvironmentBuild(PreparationStep):
    """Builds the job's Python environment in a child process, unless this node has it already."""

    phase = "packages"
    failed = "the environment cannot be built"

    def __init__(
        self, assignment: Assignment, processes: ProcessTree, plan: EnvironmentPlan
    ) -> None:
        super().__init__(assignment, processes)
        self._plan = plan

    def run(self, generation: Generation, then: Then) -> None:
        """Call `then` once the environment exists; end `generation` where it cannot be built."""
        if self._plan.problem:
            generation.fail(self._plan.problem, Cause.USER_ERROR)
        elif self._plan.ready:
            then()
        else:
            self._build(generation, then)

    def _build(self, generation: Generation, then: Then) -> None:
        folder = Path(self._assignment.node_dir)
        try:
            (folder / VERDICT).unlink(missing_ok=True)
            write_file(folder / _REQUEST, json.dumps(self._plan.request).encode())
            generation.folder.mkdir(mode=0o700, exist_ok=True)
            stdio = generation.ranks[0].open_prelude()
        except OSError as error:
            generation.fail(f"{self.failed}: {error}", Cause.START_FAILED)
            return
        launch = LaunchRequest(self._assignment.env, self._assignment.workdir, stdio)
        argv = own_python("-I", "-S", "-c", _BUILDER, str(folder / _REQUEST))
        self._start(generation, then, argv, launch)

    def _ended(self) -> Generation | None:
        generation = super()._ended()
        if generation is not None:
            generation.ranks[0].close_prelude()
        return generation

    def refused(self, message: str, *, missing: bool) -> None:
        """See `ProcessObserver`. A missing builder is not the user's mistake."""
        super().refused(message, missing=False)

    def exited(self, status: int, at: int) -> None:
        """See `ProcessObserver`."""
        generation = self._ended()
        if generation is None or generation.ending:
            return
        if os.waitstatus_to_exitcode(status) == 0 and self._plan.hold():
            if self._assignment.setup is None:
                self._processes.start_warm_process()
            self._then()
            return
        cause, message, tail = self._verdict(status)
        generation.fail(message, cause, traceback=tail)

    def _verdict(self, status: int) -> tuple[Cause, str, str]:
        """Cause, message and last output of a failed build, from the builder's own file if it wrote one."""
        try:
            body = json.loads((Path(self._assignment.node_dir) / VERDICT).read_bytes())
            if body["cause"] is not None:
                return Cause(body["cause"]), str(body["message"]), str(body["tail"])
            said = "the environment was removed as soon as it was built"
        except (OSError, ValueError, KeyError, TypeError):
            said = f"the build of the Python environment {_how(status)}"
        return Cause.START_FAILED, said, ""


class DataStaging(PreparationStep):
    """Copies the job's inputs to this node in a child process, until that has succeeded once.

    The copies stay locked for as long as this process lives, so that no other job's staging deletes them.
    """

    phase = "data"
    failed = "inputs could not be staged"
    _held: tuple[int, ...] | None = None

    def __init__(
        self, assignment: Assignment, processes: ProcessTree, software: SoftwareCheck
    ) -> None:
        super().__init__(assignment, processes)
        self._software = software

    def run(self, generation: Generation, then: Then) -> None:
        """Call `then` once every input is on this node."""
        assignment, folder = self._assignment, Path(self._assignment.node_dir)
        if self._held is not None or not assignment.data or assignment.data_root is None:
            then()
            return
        python = self._python()
        if python is None:
            generation.fail(_NO_STAGING, Cause.USER_ERROR)
            return
        request = {
            "root": assignment.data_root,
            "links": str(folder / DATA_LINKS),
            "inputs": dict(assignment.data),
        }
        try:
            write_file(folder / _STAGING, json.dumps(request).encode())
            output = open_output(folder / _STAGING_LOG)
        except OSError as error:
            generation.fail(f"{self.failed}: {error}", Cause.START_FAILED)
            return
        argv = [*python, "-P", "-m", "phalanx.train.programs.staging", str(folder / _STAGING)]
        launch = LaunchRequest(assignment.env, assignment.workdir, output)
        self._start(generation, then, argv, launch)

    def exited(self, status: int, at: int) -> None:
        """See `ProcessObserver`."""
        generation = self._ended()
        if generation is None or generation.ending:
            return
        said = tail_of(Path(self._assignment.node_dir, _STAGING_LOG))
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            try:
                self._held = tuple(map(self._hold, self._assignment.data))
            except OSError as error:
                generation.fail(f"{self.failed}: {error}", Cause.START_FAILED)
                return
            staged = Path(self._assignment.node_dir, f"{_STAGING}{STAGED_SUFFIX}")
            self._software.take_inputs(read_staged(staged))
            self._then()
            return
        message = said.strip().rpartition("\n")[2] or f"{self.failed}: it {_how(status)}"
        cause = Cause.USER_ERROR if code == _NOT_THERE else Cause.START_FAILED
        generation.fail(message, cause, traceback=said)

    def _python(self) -> list[str] | None:
        """The Python that stages: it needs numpy, which a tree does not have. None: there is none."""
        tree = tree_root()
        if tree is None:
            return own_python()
        python = phalanx_python(None, self._assignment.env, tree)
        return None if python is None else [python]

    def _hold(self, name: str) -> int:
        """Lock the copy of an input, shared. Raises OSError where it has just been deleted."""
        target = os.path.realpath(Path(self._assignment.node_dir, DATA_LINKS, name))
        descriptor = os.open(f"{target}.lock", os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.stat(target)
        return descriptor


class ResumeStaging(PreparationStep):
    """Verifies or fetches the checkpoint to begin from, while the job has none of its own.

    That has to succeed once in the life of a supervisor.
    """

    phase = "checkpoint"
    failed = "the checkpoint to begin from could not be staged"
    _found: StagedCheckpoint | None = None
    superseded = False
    """Whether the job has a checkpoint of its own, so that nothing has to be staged."""

    def run(self, generation: Generation, then: Then) -> None:
        """Call `then` once the checkpoint is on this node and verified."""
        assignment, folder = self._assignment, Path(self._assignment.node_dir)
        if assignment.resume is None or self.superseded:
            then()
            return
        if self._found is not None:
            generation.checkpoint_folder.begin_from(self._found)
            then()
            return
        request = {"places": assignment.resume.places, "into": str(folder / "resume")}
        try:
            write_file(folder / _RESUME, json.dumps(request).encode())
            output = open_output(folder / _RESUME_LOG)
        except OSError as error:
            generation.fail(f"{self.failed}: {error}", Cause.START_FAILED)
            return
        program = "phalanx.train.programs.resume_from"
        argv = own_python("-P", "-m", program, str(folder / _RESUME))
        launch = LaunchRequest(assignment.env, assignment.workdir, output)
        self._start(generation, then, argv, launch)

    def exited(self, status: int, at: int) -> None:
        """See `ProcessObserver`."""
        generation = self._ended()
        if generation is None or generation.ending:
            return
        folder, code = Path(self._assignment.node_dir), os.waitstatus_to_exitcode(status)
        said = tail_of(folder / _RESUME_LOG)
        if code == 0:
            try:
                body = json.loads((folder / f"{_RESUME}{STAGED_SUFFIX}").read_bytes())
                self._found = StagedCheckpoint(Path(body["path"]), int(body["step"]), body["why"])
                generation.checkpoint_folder.begin_from(self._found)
            except (OSError, ValueError, KeyError, TypeError) as error:
                generation.fail(f"{self.failed}: {error}", Cause.START_FAILED)
                return
            self._then()
            return
        message = said.strip().rpartition("\n")[2] or f"{self.failed}: it {_how(status)}"
        cause = Cause.USER_ERROR if code == _NOT_THERE else Cause.START_FAILED
        generation.fail(message, cause, traceback=said)


class SetupCommand(PreparationStep):
    """Runs the job's `setup` command until it has succeeded once on this node."""

    phase = "setup"
    failed = "setup could not be started"
    _done = False

    def run(self, generation: Generation, then: Then) -> None:
        """Call `then` after the setup command, if the job has one that has not succeeded yet."""
        assignment = self._assignment
        if self._done or assignment.setup is None:
            then()
            return
        try:
            output = open_output(self._log)
        except OSError as error:
            generation.fail(f"{self.failed}: {error}", Cause.START_FAILED)
            return
        launch = LaunchRequest(assignment.env, assignment.cwd, output)
        self._start(generation, then, assignment.setup, launch)

    @property
    def _log(self) -> Path:
        return Path(self._assignment.node_dir, "setup.log")

    def exited(self, status: int, at: int) -> None:
        """See `ProcessObserver`."""
        generation = self._ended()
        if generation is None:
            return
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and not generation.ending:
            self._done = True
            self._processes.start_warm_process()
            self._then()
        elif code != 0:
            cause = Cause.USER_ERROR if code in _NOT_EXECUTABLE else Cause.START_FAILED
            generation.fail(f"setup {_how(status)}", cause, traceback=tail_of(self._log))


def open_output(log: Path) -> tuple[int, int, int]:
    """Standard input, output and error of a program that writes a log. Raises OSError."""
    stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    return stdin, output, output


def tail_of(log: Path) -> str:
    """The end of a log; empty where there is none."""
    try:
        return log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
    except OSError:
        return ""


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
