"""Carry out what studies decided: each command and its results are one transaction.

A crash before it leaves the command open, a crash behind it leaves nothing to do; so no trial is submitted
twice, and no request is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.core.contract.trial import ForkSource
from phalanx.core.jobs.events import JobEvent, Resumed, StopRequested, TargetRaised
from phalanx.core.jobs.model import Job, JobState, StopGoal
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.search import events as e
from phalanx.core.search.model import (
    ContinueTo,
    FinishStudy,
    ForkTrial,
    PauseTrial,
    Pin,
    ResizeTrial,
    ResumeTrial,
    StopTrial,
    Study,
    SubmitTrial,
    Unpin,
)
from phalanx.errors import CheckpointNotFound, InvariantBroken, PlatformError, StoreError
from phalanx.kit.clock import backoff_s
from phalanx.kit.text import study_label
from phalanx.services.lifecycle.commit import commit_events
from phalanx.services.lifecycle.submit import PreparedJob, limits_now, store_prepared
from phalanx.services.platform import Platform
from phalanx.services.quotas.submitted import over_submitted
from phalanx.services.studies.commit import ACTOR, StudyWork, transact_studies
from phalanx.services.studies.facts import BY_STUDY
from phalanx.services.studies.trial_jobs import prepare_trial, source_of
from phalanx.store import jobs
from phalanx.store.database import Tx
from phalanx.store.studies import checkpoint_pins, commands, rows
from phalanx.store.studies.commands import OpenCommand
from phalanx.store.studies.rows import StoredStudy

_BATCH = 64
_US = 1_000_000
NO_TARGET = 10**15
"""The target of a trial that runs to its end after it had paused at one."""
_Prepared = Mapping[int, PreparedJob | PlatformError]
_Submits = SubmitTrial | ForkTrial | ResizeTrial


def open_commands(tx: Tx, now: int) -> list[OpenCommand]:
    """Commands that are due, as many as are carried out at once. Asks are left to `suggestions`."""
    return commands.due(tx, now, only_asks=False, limit=_BATCH)


def carry_out(
    platform: Platform, found: Sequence[OpenCommand], now: int
) -> tuple[bool, int | None]:
    """Carry out commands; those that have been carried out since they were read are skipped.

    Returns whether there is more to do at once, and when the next timer of these studies is due.
    """
    if not found:
        return False, None
    prepared = _prepare(platform, found)

    def work(here: StudyWork) -> tuple[StudyWork, list[int]]:
        still = commands.finish(here.tx, [one.id for one in found])
        here.load({one.study for one in found})
        looked_at: list[int] = []
        for one in found:
            if one.id in still:
                looked_at += _execute(here, one, prepared)
        return here, looked_at

    done, looked_at = transact_studies(platform, now, work)
    # A command that changed nothing causes no event of its job, which is looked at all the same.
    platform.studies.note(looked_at)
    return bool(looked_at) or done.commands_added or len(found) == _BATCH, done.wake_at


def _prepare(platform: Platform, found: Sequence[OpenCommand]) -> _Prepared:
    """The checked jobs of trials to submit, or why they cannot be, by command."""
    wanted = {
        one.id: (one, command) for one in found if isinstance(command := one.command, _Submits)
    }
    if not wanted:
        return {}

    def read(tx: Tx) -> dict[int, tuple[StoredStudy, Study, ForkSource | PlatformError | None]]:
        stored = rows.load_many(tx, [one.study for one, _ in wanted.values()])
        studies = {num: platform.studies.study(tx, row) for num, row in stored.items()}
        return {
            num: (stored[one.study], study := studies[one.study], _source(tx, study, command))
            for num, (one, command) in wanted.items()
        }

    made: dict[int, PreparedJob | PlatformError] = {}
    begun, limits = platform.store.view(read), limits_now(platform)
    for num, (row, study, source) in begun.items():
        try:
            if isinstance(source, PlatformError):
                raise source
            trial = study.trials[wanted[num][1].trial]
            made[num] = prepare_trial(platform, row, study, trial, source, limits)
        except StoreError:
            raise
        except (PlatformError, KeyError) as error:
            said = error if isinstance(error, PlatformError) else PlatformError(f"no param {error}")
            made[num] = said
    return made


def _source(tx: Tx, study: Study, command: _Submits) -> ForkSource | PlatformError | None:
    """What the job of a command begins from, or why that is gone."""
    try:
        return source_of(tx, study.num, study.trials[command.trial], command)
    except CheckpointNotFound as error:
        return error


def _execute(here: StudyWork, one: OpenCommand, prepared: _Prepared) -> list[int]:
    """Carry out one command; returns the jobs to look at: those that it was about, but no new one."""
    command, now, study = one.command, here.now, one.study
    if isinstance(command, FinishStudy):
        _finish(here, study)
        return []
    assert one.trial is not None
    # What happened to the job while the command was open has not been looked at.
    about = here.study(study).trials[one.trial].job
    if isinstance(command, Pin):
        owner = checkpoint_pins.job_of(here.tx, study, command.checkpoint)
        by = study_label(study)
        if owner is not None and checkpoint_pins.pin(here.tx, owner, command.checkpoint, by, now):
            here.apply(study, [e.CheckpointPinned(one.trial, command.checkpoint)])
        return [] if about is None else [about]
    if isinstance(command, Unpin):
        checkpoint_pins.unpin(here.tx, study_label(study), [command.checkpoint])
        return [] if about is None else [about]
    if isinstance(command, SubmitTrial | ForkTrial):
        _submit(here, one, prepared[one.id])
        return []
    trial = here.study(study).trials[one.trial]
    if trial.job is None:
        if isinstance(command, StopTrial):
            _end(here, one, e.TrialOutcome.STOPPED, str(command.reason))
        return []
    job = jobs.load(here.tx, trial.job).job
    if not _settled(command, job):
        _again(here, one)
        return []
    fresh = _events_for(command, job, study)
    if fresh:
        commit_events(here.tx, trial.job, fresh, now, ACTOR)
    if isinstance(command, ResizeTrial):
        _submit(here, one, prepared[one.id])
    return [trial.job]


def _settled(command: object, job: Job) -> bool:
    """Whether a job can be resumed now: one that is pausing has to leave its slots first."""
    pausing = job.state is JobState.STOPPING and job.goal is StopGoal.PAUSE
    return not (pausing and isinstance(command, ResumeTrial | ContinueTo | ResizeTrial))


def _events_for(command: object, job: Job, study: int) -> list[JobEvent]:
    """The events of a job that carry out a command; none where it is over or there already."""
    if job.is_terminal:
        return []
    by = f"{BY_STUDY} {study_label(study)}"
    if isinstance(command, StopTrial):
        why = Reason(ReasonCode.CANCEL_REQUESTED, f"{by}: {command.reason}")
        return [StopRequested(StopGoal.CANCEL, why)]
    if isinstance(command, ResizeTrial):
        why = Reason(
            ReasonCode.CANCEL_REQUESTED, f"{by}: the trial goes on in a job of another shape"
        )
        return [StopRequested(StopGoal.CANCEL, why)]
    if isinstance(command, PauseTrial):
        if job.state is JobState.PAUSED:
            return []
        return [StopRequested(StopGoal.PAUSE, Reason(ReasonCode.PAUSE_REQUESTED, by))]
    if isinstance(command, ResumeTrial | ContinueTo):
        until = NO_TARGET if command.unit is None else command.unit
        fresh: list[JobEvent] = [TargetRaised(until)]
        at_target = job.reason.code is ReasonCode.TARGET_REACHED
        raises = job.until is None or until > job.until
        if job.state is JobState.PAUSED and not (at_target and raises):
            fresh.append(Resumed())
        return fresh
    raise InvariantBroken(f"no way to carry out {type(command).__name__}")


def _submit(here: StudyWork, one: OpenCommand, prepared: PreparedJob | PlatformError) -> None:
    assert one.trial is not None
    trial = here.study(one.study).trials[one.trial]
    if trial.is_over or trial.ending is not None:
        # It was stopped before it had a job.
        _end(here, one, e.TrialOutcome.STOPPED, str(trial.reason))
        return
    if isinstance(prepared, PlatformError):
        gone = isinstance(prepared, CheckpointNotFound)
        outcome = e.TrialOutcome.INFRASTRUCTURE if gone else e.TrialOutcome.FAILED
        _end(here, one, outcome, str(prepared))
        return
    if over_submitted(here.platform, here.tx, [prepared.facts]) is not None:
        _again(here, one)  # its owner has as many jobs as a quota allows
        return
    num = store_prepared(here.platform, here.tx, prepared, here.now, ACTOR)
    here.apply(one.study, [e.TrialSubmitted(one.trial, num)])


def _end(here: StudyWork, one: OpenCommand, outcome: e.TrialOutcome, reason: str) -> None:
    assert one.trial is not None
    here.apply(one.study, [e.TrialEnded(one.trial, outcome, reason)])


def _again(here: StudyWork, one: OpenCommand) -> None:
    """Put a command back, to be carried out a little later."""
    wait_s = backoff_s(one.tries + 1, first_s=0.05, max_s=2.0)
    commands.put_back(here.tx, one, here.now, not_before=here.now + round(wait_s * _US))


def _finish(here: StudyWork, study: int) -> None:
    """Release what an ended study holds: its pins. Its secret variables stay, as it may be extended."""
    checkpoint_pins.unpin(here.tx, study_label(study))
