"""The job state machine: it computes a new job state and commands from a job and an event.

Reading order: `model` (the job and its live attempt), `events`, `machine` (the table: one row an event,
one column a group of states), `handlers` (one module for each group of events), `recovery` (restart or
fail, over `budgets`), `desired` (the desired state of each supervisor), `timers` (events due by the
clock). Nothing here reads a clock, a database or the scheduler; effects are returned as commands
of `commands`. How to extend it: docs/dev/job-machine.md.
"""

from phalanx.core.jobs.commands import Decision
from phalanx.core.jobs.machine import create, decide, rebuild
from phalanx.core.jobs.model import Job, JobState

__all__ = ["Decision", "Job", "JobState", "create", "decide", "rebuild"]
