"""Run supervisors: `python -m phalanx.supervise` with `--assignment FILE`, `--standby` or `--template`.

A standby is a supervisor without a node: it imports its modules and reads the path of an assignment
from its standard input, one line. It ends when the input ends before that line. A template forks the
supervisors of a study.

Imports are ordered for speed: the warm process imports torch while this process imports the rest.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from phalanx.supervise.boot import BootContext, boot, fork_supervisors, stand_by

if TYPE_CHECKING:
    from phalanx.schemas.wire.assignments import Assignment


def main(argv: Sequence[str]) -> int:
    """Run a supervisor; returns 1 when another one holds the folder; else the process ends with 0."""
    parser = argparse.ArgumentParser(prog="phalanx.supervise")
    parser.add_argument("--assignment", type=Path)
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("--template", action="store_true")
    parser.add_argument("imports", nargs="*")
    options = parser.parse_args(argv)
    env = dict(os.environ)  # noqa: TID251 - a program's entry point
    if options.standby:
        context = stand_by(env, options.imports, sys.stdin.buffer, _load_program)
    elif options.template:
        context = fork_supervisors(env, options.imports, _load_program)
    else:
        data: dict[str, Any] = json.loads(options.assignment.read_bytes())
        context = boot(data)
    if context is None:
        return 1
    _supervise(context)


def _log(assignment: Assignment) -> None:
    """Write log lines to stderr, without the values of the job's secrets."""
    from phalanx.core.contract.secrecy import OutputMask, redacted
    from phalanx.kit.log_lines import LogFormat, log_to

    mask = OutputMask(assignment.secret_values)

    def redact(text: str) -> str:
        return redacted(mask.hide(text.encode(errors="replace")).decode(errors="replace"))

    form = LogFormat.JSON if assignment.log_format == LogFormat.JSON else LogFormat.TEXT
    gang = assignment.gang
    span = gang.trace.attempt(gang.attempt)
    about = {
        **{"service": "supervisor", "job": gang.job.num, "attempt": gang.attempt},
        **{"node": assignment.node_rank, "trace_id": span.trace, "span_id": span.span},
    }
    log_to(logging.StreamHandler(), form, redact, common=about)


def _load_program() -> None:
    import phalanx.supervise.program  # noqa: F401


def _supervise(context: BootContext) -> NoReturn:
    import random

    from phalanx.kit.clock import SteadyClock, SystemClock
    from phalanx.schemas.wire.assignments import Assignment
    from phalanx.supervise.eventloop import EventLoop
    from phalanx.supervise.processes import ProcessTree
    from phalanx.supervise.program import Supervisor

    # The control plane learns how far this clock is off; a jump would falsify what was on the way.
    clock = SteadyClock(SystemClock(), approach=0.0)
    loop = EventLoop(clock)
    processes = ProcessTree(
        loop,
        context.reaper,
        context.warm,
        context.tag_env,
        context.start_warm_process,
        guard=context.guard,
    )
    assignment = Assignment.model_validate(context.data).in_trace()
    _log(assignment)
    supervisor = Supervisor(
        assignment, context.command, processes, context.environment, clock, random.Random()
    )
    if context.warning:
        loop.call_later(0.0, lambda: processes.on_warning(context.warning))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.call_from_outside(supervisor.drain))
    signal.set_wakeup_fd(loop.wake_descriptor, warn_on_full_buffer=False)
    supervisor.run()
    logging.shutdown()
    # Slots are free when this process has ended; taking down what it has imported only costs time.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
