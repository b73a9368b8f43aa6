"""What the edge must do after a decision. Imperative, idempotent, fenced by the attempt's number.

What supervisors must do is not a command but a state they follow: see `desired`.
"""

from __future__ import annotations

from dataclasses import dataclass


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
