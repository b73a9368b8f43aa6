"""Run one supervisor: `python -m phalanx.supervise --assignment FILE`, or `--standby [module …]`.

A standby is a supervisor without a node: it warms up with its own environment and reads the path of an
assignment from its standard input, one line; end-of-file before that line makes it leave.

The order of things is for speed: the warm process imports torch while this one imports the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phalanx.supervise.boot import BootContext, prepare, stand_by


def main(argv: Sequence[str]) -> int:
    """Returns the exit code: 0 after a release, 1 when another supervisor holds the folder."""
    parser = argparse.ArgumentParser(prog="phalanx.supervise")
    parser.add_argument("--assignment", type=Path)
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("imports", nargs="*")
    options = parser.parse_args(argv)
    env = dict(os.environ)  # noqa: TID251 - a program's entry point
    if options.standby:
        ground = stand_by(env, options.imports, sys.stdin.buffer)
    else:
        data: dict[str, Any] = json.loads(options.assignment.read_bytes())
        ground = prepare(data)
    if ground is None:
        return 1
    return _supervise(ground)


def _supervise(ground: BootContext) -> int:
    import logging
    import random

    from phalanx.kit.clock import SystemClock
    from phalanx.schemas.wire.assignments import Assignment
    from phalanx.supervise.eventloop import EventLoop
    from phalanx.supervise.processes import ProcessTree
    from phalanx.supervise.program import Supervisor, SupervisorParts

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    clock = SystemClock()
    loop = EventLoop(clock)
    processes = ProcessTree(loop, ground.reaper, ground.warm, ground.tag_env, ground.warm_up)
    assignment = Assignment.model_validate(ground.data)
    parts = SupervisorParts(
        assignment, ground.command, processes, loop, clock, random.Random(), ground.packages
    )
    supervisor = Supervisor(parts)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.call_from_outside(supervisor.drain))
    signal.set_wakeup_fd(loop.wake_descriptor, warn_on_full_buffer=False)
    supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
