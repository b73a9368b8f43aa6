"""Delete the checkpoints that trials made at their targets and that nothing needs any more.

Ranks leave them alone, because another trial may begin from them. A trial that is over keeps what the spec
retains; one that may go on keeps its newest as well. Pinned ones stay, and the one that the study names for
the trial. Only folders that this machine sees are looked at, and no job with an object store: only its
ranks have the credentials.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from phalanx import checkpoint
from phalanx.core.search.model import TRIAL_OVER
from phalanx.core.training.checkpoints import Keep, expired_targets, lineages
from phalanx.errors import NotFound, PlatformError
from phalanx.services.lifecycle.assignments import checkpoint_dir, contract_of
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.database import Tx
from phalanx.store.storage import objects
from phalanx.store.studies import checkpoint_pins, rows, trial_reports

# Limits per step of reports to read and of jobs to look at.
_REPORTS = 500
_JOBS = 100


@dataclass(slots=True)
class TargetProgress:
    """What was looked at, so that a folder is read only after something has changed."""

    #: id of the last report that was read
    last_report: int = 0
    #: jobs with checkpoints of targets, with what was known when their folder was read; None: not read
    jobs: dict[int, _TrialJob | None] = field(default_factory=dict)
    #: jobs that this sweep has still to look at
    todo: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _TrialJob:
    """The job of a trial, as retention sees it."""

    num: int
    uid: str
    folder: Path
    keep: Keep
    is_over: bool
    named: str | None  # checkpoint that the study names for the trial
    pinned: frozenset[str]


def target_retention_step(platform: Platform, progress: TargetProgress, now: int) -> bool:
    """Look at some jobs of trials; returns whether more are left."""
    fresh = platform.store.view(
        lambda tx: trial_reports.after(tx, progress.last_report, limit=_REPORTS)
    )
    for row in fresh:
        progress.last_report = row.id
        if row.checkpoint is not None:
            progress.jobs[row.job] = None
    if len(fresh) == _REPORTS:
        return True
    progress.todo = progress.todo or sorted(progress.jobs)
    batch, progress.todo = progress.todo[:_JOBS], progress.todo[_JOBS:]
    for num in batch:
        _look_at(platform, progress, num, now)
    return bool(progress.todo)


def _look_at(platform: Platform, progress: TargetProgress, num: int, now: int) -> None:
    """Delete what one job needs no more. One that is over and has no pins is not looked at again."""
    try:
        found = platform.store.view(lambda tx: _load(platform, tx, num))
        if found is not None and found != progress.jobs[num]:
            _delete(platform, found, now)
    except NotFound:
        del progress.jobs[num]  # the job was deleted
        return
    except (PlatformError, OSError):
        progress.jobs[num] = None  # the folder cannot be read now
        return
    progress.jobs[num] = found
    if found is None or (found.is_over and not found.pinned):
        del progress.jobs[num]


def _load(platform: Platform, tx: Tx, num: int) -> _TrialJob | None:
    """What retention needs to know of a job; None where it may delete nothing of it."""
    stored = jobs.load(tx, num)
    facts, contract = stored.facts, contract_of(stored.facts)
    policy = contract.roles[0].checkpoint
    if policy.store is not None or not contract.uid:
        return None
    is_over, named = stored.job.is_terminal, None
    if facts.study is not None and facts.trial is not None:
        trial = rows.trial(tx, facts.study, facts.trial)
        is_over, named = is_over and trial.status in TRIAL_OVER, trial.checkpoint
    folder = checkpoint_dir(platform.home, facts.project, num)
    pinned = frozenset(checkpoint_pins.pinned(tx, num))
    return _TrialJob(num, contract.uid, folder, policy.keep, is_over, named, pinned)


def _delete(platform: Platform, job: _TrialJob, now: int) -> None:
    """Mark checkpoints as removed, then delete their files; a crash between leaves the files to the next.

    Raises PlatformError or OSError where something cannot be read: then nothing is deleted.
    """
    listing = checkpoint.scan(job.folder)
    found = {one.manifest.name: one for one in listing.good}
    manifests = {name: one.manifest for name, one in found.items()}
    doomed = [
        str(found[one.name].path)
        for one in expired_targets(manifests, job.keep, is_over=job.is_over)
        if one.job_uid == job.uid and str(found[one.name].path) != job.named
    ]
    if not doomed or listing.unread:
        return
    checkpoint.verify(found[lineages(manifests)[0].name].path)

    def mark(tx: Tx) -> list[str]:
        gone = checkpoint_pins.mark_removed(tx, job.num, doomed)
        objects.end(tx, job.num, gone, now)
        return gone

    free = platform.store.transact(mark)
    for path in free:
        with contextlib.suppress(FileNotFoundError):
            checkpoint.remove(Path(path))
