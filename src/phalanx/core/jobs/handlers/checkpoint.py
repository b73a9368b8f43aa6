"""Handlers for the events CheckpointCommitted and CheckpointQuarantined."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.jobs import events as e
from phalanx.core.jobs.commands import Decision
from phalanx.core.jobs.model import Job


def committed(job: Job, event: e.CheckpointCommitted, now: int) -> Decision:
    """Record the checkpoint that the next generation resumes from."""
    progress = replace(job.progress, checkpoint_step=event.step, checkpoint_path=event.path)
    return Decision(replace(job, progress=progress))


def quarantined(job: Job, event: e.CheckpointQuarantined, now: int) -> Decision:
    """Forget a checkpoint that failed verification."""
    if job.progress.checkpoint_path != event.path:
        return Decision(job)
    return Decision(replace(job, progress=replace(job.progress, checkpoint_path=None)))
