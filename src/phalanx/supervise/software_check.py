"""Report the installed software and the staged inputs of a node before its ranks start.

A clone that must find the same as the job that it repeats (`Assignment.expects`) ends here where it does
not, and the message names what differs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from phalanx.core.contract.provenance import (
    InputFingerprint,
    InstalledSoftware,
    differences,
    expected_facts,
    in_words,
    input_facts,
)
from phalanx.core.reasons import Cause
from phalanx.launch.command import same_python
from phalanx.schemas.wire.supervision import InputsReport, SoftwareReport, StagedInputReport
from phalanx.supervise.packages import installed
from phalanx.supervise.portable.image_python import rank_python
from phalanx.supervise.processes import LaunchRequest, ProcessObserver
from phalanx.supervise.ranks.generation import Generation, GenerationContext

_ANSWER = "software.json"
_STAGED = TypeAdapter(list[StagedInputReport])


def read_staged(path: Path) -> list[StagedInputReport]:
    """The inputs that the staging program has written down; none where the file cannot be read."""
    try:
        return _STAGED.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return []


class SoftwareCheck(ProcessObserver):
    """Lists what the ranks' interpreter sees, once in the life of a supervisor.

    The interpreter of the supervisor is looked at in place; any other one runs a file, which takes the
    time of its start.
    """

    phase = "software"

    def __init__(self, context: GenerationContext) -> None:
        self._assignment, self._processes = context.assignment, context.processes
        self._put, self._command = context.put, context.command
        self._generation: Generation | None = None
        self._then: Callable[[], None] = lambda: None
        self._problem: str | None = None
        self._inputs: list[StagedInputReport] = []

    def take_inputs(self, inputs: Sequence[StagedInputReport]) -> None:
        """Take the inputs of the job as they were staged here."""
        self._inputs = list(inputs)

    def run(self, generation: Generation, then: Callable[[], None]) -> None:
        """Call `then` once the software is known; end `generation` where it must not differ and does."""
        if self._problem is not None:
            self._go_on(generation, then)
            return
        python = rank_python(self._command, self._assignment.env)
        if python is None or same_python(python, sys.executable):
            found = installed.describe([] if python is None else None)
            self._conclude(generation, then, found if python else {**found, "python": ""})
            return
        self._ask(generation, then, python)

    def _ask(self, generation: Generation, then: Callable[[], None], python: str) -> None:
        folder = Path(self._assignment.node_dir)
        try:
            (folder / _ANSWER).unlink(missing_ok=True)
            null = [os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) for _ in range(3)]
        except OSError as error:
            generation.fail(f"the software cannot be listed: {error}", Cause.START_FAILED)
            return
        self._generation, self._then = generation, then
        generation.records.phase = self.phase
        launch = LaunchRequest(
            dict(self._assignment.env), self._assignment.workdir, (null[0], null[1], null[2])
        )
        argv = [python, installed.__file__, str(folder / _ANSWER)]
        self._processes.start_command(argv, launch, self, self._assignment.workdir)

    def refused(self, message: str, *, missing: bool) -> None:
        """See `ProcessObserver`. An interpreter that cannot be run says so as the ranks start."""
        self._answered({})

    def exited(self, status: int, at: int) -> None:
        """See `ProcessObserver`."""
        try:
            body = json.loads(Path(self._assignment.node_dir, _ANSWER).read_bytes())
        except (OSError, ValueError):
            body = {}
        self._answered(body if isinstance(body, dict) else {})

    def _answered(self, body: Mapping[str, Any]) -> None:
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.records.phase = ""
            if not generation.ending:
                self._conclude(generation, self._then, body)

    def _conclude(
        self, generation: Generation, then: Callable[[], None], body: Mapping[str, Any]
    ) -> None:
        number = generation.number
        try:
            report = SoftwareReport.model_validate({**body, "seq": 0, "generation": number})
        except ValidationError:
            report = SoftwareReport(seq=0, generation=number)
        inputs = self._inputs
        self._put(lambda seq: report.model_copy(update={"seq": seq}))
        if inputs:
            self._put(lambda seq: InputsReport(seq=seq, generation=number, inputs=inputs))
        self._problem = self._differs(report.to_core(), inputs)
        self._go_on(generation, then)

    def _go_on(self, generation: Generation, then: Callable[[], None]) -> None:
        if self._problem:
            generation.fail(self._problem, Cause.USER_ERROR)
        else:
            then()

    def _differs(self, software: InstalledSoftware, inputs: Sequence[StagedInputReport]) -> str:
        expects = self._assignment.expects
        if expects is None:
            return ""
        values = [InputFingerprint(**one.model_dump()) for one in inputs]
        found = expected_facts(software) | input_facts(values)
        changes = differences(expects.facts, found)
        if not changes:
            return ""
        return f"not the same as in {expects.job}, as --require-same demands: {in_words(changes)}"
