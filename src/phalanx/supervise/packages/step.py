"""The step before the set-up: the job's Python environment is there when it ends."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.reasons import Cause
from phalanx.launch.durable import write_file
from phalanx.schemas.wire.assignments import Assignment
from phalanx.supervise.packages.plan import VERDICT, EnvironmentPlan
from phalanx.supervise.processes import LaunchRequest, ProcessTree
from phalanx.supervise.ranks.generation import Generation

PHASE = "packages"
_REQUEST = "packages.json"
_SOURCE = str(Path(__file__).resolve().parents[3])
_PROGRAM = f"import sys; sys.path.insert(0, {_SOURCE!r}); from phalanx.supervise.packages.build import main; sys.exit(main(sys.argv[1]))"  # noqa: E501


@dataclass(slots=True)
class EnvironmentBuild:
    """Has the environment built where it is not there; `then` goes on with the generation."""

    assignment: Assignment
    processes: ProcessTree
    plan: EnvironmentPlan
    then: Callable[[Generation], None]
    generation: Generation | None = None

    def before(self, generation: Generation) -> None:
        """Go on with `generation` once the environment is there; end it where it cannot be."""
        if self.plan.problem:
            generation.fail(self.plan.problem, Cause.USER_ERROR)
        elif self.plan.ready:
            self.then(generation)
        else:
            self._build(generation)

    def _build(self, generation: Generation) -> None:
        folder = Path(self.assignment.node_dir)
        try:
            (folder / VERDICT).unlink(missing_ok=True)
            write_file(folder / _REQUEST, json.dumps(self.plan.request).encode())
            stdio = generation.open_prelude()
        except OSError as error:
            generation.fail(f"the environment cannot be built: {error}", Cause.START_FAILED)
            return
        self.generation = generation
        generation.records.phase = PHASE
        launch = LaunchRequest(self.assignment.env, self.assignment.workdir, stdio)
        argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(folder / _REQUEST)]
        self.processes.start_command(argv, launch, self, self.assignment.workdir)

    def started(self, pid: int, *, warm: bool) -> None:
        """See `ProcessObserver`."""

    def refused(self, message: str, *, missing: bool) -> None:
        """See `ProcessObserver`."""
        generation = self._over()
        if generation is not None:
            said = f"the environment cannot be built: {message}"
            generation.fail(said, Cause.START_FAILED)

    def exited(self, status: int, at: int) -> None:
        """See `ProcessObserver`."""
        generation = self._over()
        if generation is None or generation.ending:
            return
        if os.waitstatus_to_exitcode(status) == 0 and self.plan.hold():
            if self.assignment.setup is None:
                self.processes.start_warm()
            self.then(generation)
            return
        cause, message, tail = self._verdict(status)
        generation.fail(message, cause, traceback=tail)

    def _over(self) -> Generation | None:
        generation, self.generation = self.generation, None
        if generation is not None:
            generation.close_prelude()
            generation.records.phase = ""
        return generation

    def _verdict(self, status: int) -> tuple[Cause, str, str]:
        try:
            body = json.loads((Path(self.assignment.node_dir) / VERDICT).read_bytes())
            if body["cause"] is not None:
                return Cause(body["cause"]), str(body["message"]), str(body["tail"])
            said = "the environment was removed as soon as it was built"
        except (OSError, ValueError, KeyError, TypeError):
            code = os.waitstatus_to_exitcode(status)
            how = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
            said = f"the build of the Python environment {how}"
        return Cause.START_FAILED, said, ""
