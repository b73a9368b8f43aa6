"""What has happened to the jobs of trials, as events of their studies.

The state of a job is compared with what its study knows, so nothing depends on having seen every change:
a control plane that starts looks at the jobs of all live trials. A trial with an open command is left
alone until that has been carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.core.cost.prices import NANO
from phalanx.core.jobs.model import TERMINAL, Job, JobState
from phalanx.core.reasons import ReasonCode, code_of
from phalanx.core.search import events as e
from phalanx.core.search.model import PLACED, SearchCode, Trial, TrialStatus
from phalanx.services.studies.commit import StudyWork
from phalanx.store import jobs
from phalanx.store.cost.rows import nano_usd_of_trial
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.studies import commands, rows, trial_reports
from phalanx.store.studies.trial_reports import TrialReportRow

BY_STUDY = "by the study"
"""How the reason of a stop begins that a study asked for."""
_US = 1_000_000
_MOST_NAMES = 10
_MOST_LATE = 100_000
REPORTS_AT_ONCE = 5000
"""Limit on the reports of one reading."""
# Reasons of a failed job that say nothing about the trial's params or its code.
_INFRASTRUCTURE = frozenset(
    {
        ReasonCode.NODE_LOST,
        ReasonCode.PREEMPTED,
        ReasonCode.START_FAILED,
        ReasonCode.SECRET_UNAVAILABLE,
        ReasonCode.SECRET_MANAGER_UNAVAILABLE,
        ReasonCode.WAITING_FOR_QUOTA,
        ReasonCode.WAITING_FOR_SLOTS,
        ReasonCode.CHECKPOINT_MISSING,
        ReasonCode.FINAL_CHECKPOINT_NOT_SAVED,
        ReasonCode.UNPLACEABLE,
        ReasonCode.BLOCKED,
        ReasonCode.NODE_DRAINED,
    }
)
_LEFT = {JobState.PAUSED, *TERMINAL}


def live_jobs(tx: Tx) -> list[int]:
    """Numbers of the jobs of all trials that may still change, for a control plane that starts."""
    return rows.live_trial_jobs(tx, [status.value for status in (*PLACED, TrialStatus.PAUSED)])


def read_jobs(
    work: StudyWork,
    nums: Iterable[int],
    reports: Sequence[TrialReportRow],
    newest: int,
) -> None:
    """Apply what these jobs and reports say to their studies; jobs that run no trial are skipped.

    `newest` is the id of the last report that was read: a job may have reported and ended since, and its
    end comes behind all of its reports.
    """
    wanted = sorted({*nums, *(one.job for one in reports)})
    found = work.platform.scheduler_cache.rows.some(work.tx, wanted)
    ours = {num: one for num, one in found.items() if one.facts.study is not None}
    if not ours:
        return
    studies = {one.facts.study for one in ours.values() if one.facts.study is not None}
    work.load(studies)
    busy = commands.waiting_trials(work.tx, sorted(studies))
    by_job: dict[int, list[TrialReportRow]] = {}
    ended = {num for num, one in ours.items() if one.job.state in _LEFT}
    late = trial_reports.after(work.tx, newest, limit=_MOST_LATE) if ended else []
    for report in (*reports, *(one for one in late if one.job in ended)):
        by_job.setdefault(report.job, []).append(report)
    for num in sorted(ours):
        _read_job(work, ours[num], by_job.get(num, []), busy)


def _read_job(
    work: StudyWork,
    stored: StoredJob,
    reports: Sequence[TrialReportRow],
    busy: set[tuple[int, int]],
) -> None:
    study, number = stored.facts.study, stored.facts.trial
    assert study is not None and number is not None
    if not work.has(study) or number >= len(work.study(study).trials):
        return
    trial = work.study(study).trials[number]
    if trial.job != stored.job.num:
        return
    found: list[e.StudyEvent] = [
        e.TrialReported(number, one.unit, one.value, one.checkpoint)
        for one in sorted(reports, key=lambda one: one.unit)
        if one.value is not None
    ]
    if (study, number) not in busy:
        # What ends a trial comes behind its reports.
        found += _changes(work, trial, stored)
    work.apply(study, found)


def _changes(work: StudyWork, trial: Trial, stored: StoredJob) -> list[e.StudyEvent]:
    """What the state of a trial's job says that the study does not know yet."""
    job, number = stored.job, trial.number
    if job.state is JobState.RUNNING and trial.status is TrialStatus.WAITING:
        return [e.TrialStarted(number)]
    if job.state not in _LEFT:
        return []
    if job.state is JobState.PAUSED:
        return _paused(work, trial, stored)
    if trial.is_over and trial.slot_s >= job.attained_slot_s:
        return []
    started = [e.TrialStarted(number)] if _started_unseen(trial, job) else []
    slot_s, usd = used(work.tx, stored)
    outcome, reason = outcome_of(job)
    if outcome is e.TrialOutcome.SUCCEEDED and trial.last is None:
        reason = _without_objective(work, stored)
    return [*started, e.TrialEnded(number, outcome, reason, slot_s, usd)]


def _without_objective(work: StudyWork, stored: StoredJob) -> str:
    """What a job reported instead of the objective; empty if it reported that after all, or nothing."""
    reports = trial_reports.of_jobs(work.tx, [stored.job.num])
    study = stored.facts.study
    names = sorted({name for one in reports for name in one.metrics})[:_MOST_NAMES]
    if study is None or not names or any(one.value is not None for one in reports):
        return ""
    metric = work.study(study).policy.objective.metric
    return f"it never reported {metric}, only {', '.join(names)}"


def _started_unseen(trial: Trial, job: Job) -> bool:
    """Whether a job ran and ended between two looks."""
    return trial.status is TrialStatus.WAITING and job.started_at is not None


def _paused(work: StudyWork, trial: Trial, stored: StoredJob) -> list[e.StudyEvent]:
    job = stored.job
    if trial.status not in PLACED:
        return []
    # A budget pauses as a user does: the study waits until the job goes on.
    by_user = job.reason.code in (ReasonCode.PAUSE_REQUESTED, ReasonCode.COST_BUDGET)
    by_user = by_user and not job.reason.message.startswith(BY_STUDY)
    if by_user and trial.reason.code is SearchCode.PAUSE_REQUESTED:
        return []
    slot_s, usd = used(work.tx, stored)
    checkpoint = job.progress.checkpoint_path
    return [e.TrialPaused(trial.number, checkpoint, slot_s, usd, by_user)]


def outcome_of(job: Job) -> tuple[e.TrialOutcome, str]:
    """How the job of a trial ended, and why, for users."""
    said = str(job.reason)
    if job.state is JobState.SUCCEEDED:
        return e.TrialOutcome.SUCCEEDED, ""
    if job.state is JobState.CANCELLED:
        return e.TrialOutcome.STOPPED, said
    if job.reason.code is ReasonCode.PARAMS_REJECTED:
        return e.TrialOutcome.REJECTED, job.reason.message
    cause = None if job.last_failure is None else code_of(job.last_failure.cause)
    spent = job.reason.code in (ReasonCode.BUDGET_SPENT, ReasonCode.CRASH_LOOP)
    code = cause if spent and cause is not None else job.reason.code
    if code is ReasonCode.PARAMS_REJECTED:
        return e.TrialOutcome.REJECTED, said
    if code in _INFRASTRUCTURE:
        return e.TrialOutcome.INFRASTRUCTURE, said
    return e.TrialOutcome.FAILED, said


# -- cost ----------------------------------------------------------------------------------------


def used(tx: Tx, stored: StoredJob) -> tuple[float, float]:
    """Slot-seconds and US dollars of all jobs that a trial had, as far as their attempts are over.

    The money is that of the cost ledger.
    """
    study, number = stored.facts.study, stored.facts.trial
    assert study is not None and number is not None
    spent = jobs.slot_seconds(tx, study, number)
    return sum(spent.values()), nano_usd_of_trial(tx, study, number) / NANO


def new_reports(tx: Tx, last: int | None, live: Sequence[int]) -> tuple[int, list[TrialReportRow]]:
    """Reports behind a number, or all those of live trials, and the number of the last one read."""
    if last is None:
        found = trial_reports.of_jobs(tx, live, limit=1_000_000) if live else []
        return trial_reports.last_id(tx), found
    found = trial_reports.after(tx, last, limit=REPORTS_AT_ONCE)
    return (found[-1].id if found else last), found
