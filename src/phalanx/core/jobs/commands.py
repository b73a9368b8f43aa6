"""The result of a handler: the new job, and the commands to execute outside the core.

Commands are imperative, idempotent, and fenced by the attempt's number. What supervisors must do is no
command: they follow the state that `desired` derives from the job.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.jobs.model import Job


@dataclass(frozen=True, slots=True)
class LaunchAttempt:
    """Start one supervisor per node of the attempt. Ends as NodeReady or LaunchFailed."""

    attempt: int


@dataclass(frozen=True, slots=True)
class KillAttempt:
    """Kill what is left of the attempt's supervisors. Ends as NodeReleased or NodeLost."""

    attempt: int


JobCommand = LaunchAttempt | KillAttempt
COMMAND_TYPES: tuple[type[JobCommand], ...] = (LaunchAttempt, KillAttempt)


@dataclass(frozen=True, slots=True)
class Decision:
    """The new job, the commands, and the reason why the event was ignored, where it was."""

    job: Job
    commands: tuple[JobCommand, ...] = ()
    ignored: str | None = None
