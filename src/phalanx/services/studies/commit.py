"""Apply events to studies: decide, append to the log, write the rows of trials, and store commands.

Everything happens in one transaction, which may hold the events of many studies, and those of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from phalanx.core.codec import encode
from phalanx.core.search.events import StudyEvent
from phalanx.core.search.machine import decide, wake_at
from phalanx.core.search.model import Ask, Study, StudyCommand, Trial, TrialStatus
from phalanx.kit.text import study_label
from phalanx.services.platform import Platform
from phalanx.store.database import Tx
from phalanx.store.events import kind_of
from phalanx.store.studies import commands, log, rows
from phalanx.store.studies.rows import StoredStudy, StudyProgress, TrialRow
from phalanx.store.tenancy import audit

T = TypeVar("T")
ACTOR = "study"
_US = 1_000_000
_STARTED = frozenset({TrialStatus.RUNNING, TrialStatus.HELD, TrialStatus.COMPLETED})


def study_topic(num: int) -> str:
    """The notification topic of changes to one study."""
    return f"study:{num}"


@dataclass(slots=True)
class _Decided:
    """A study inside of a transaction, with what is to be written at its end."""

    stored: StoredStudy  # the row as it was read
    before: Study
    study: Study
    entries: list[log.NewStudyEvent] = field(default_factory=list)
    changed: dict[int, Trial] = field(default_factory=dict)
    commands: list[tuple[int, int, StudyCommand]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    @property
    def last_seq(self) -> int:
        """Number of the last event, those that are not written yet included."""
        return self.stored.last_seq + len(self.entries)


class StudyWork:
    """The studies that one transaction reads and changes; `flush` writes them."""

    def __init__(self, platform: Platform, tx: Tx, now: int) -> None:
        self.platform, self.tx, self.now = platform, tx, now
        self._open: dict[int, _Decided] = {}

    def load(self, nums: Iterable[int]) -> None:
        """Read studies at once that `study` would read one by one; those that do not exist are skipped."""
        missing = [num for num in nums if num not in self._open]
        for num, stored in rows.load_many(self.tx, missing).items():
            study = self.platform.studies.study(self.tx, stored)
            self._open[num] = _Decided(stored, study, study)

    def has(self, num: int) -> bool:
        """Whether this study was loaded."""
        return num in self._open

    def study(self, num: int) -> Study:
        """A study as it is after the events so far. Raises NotFound."""
        return self._of(num).study

    def stored(self, num: int) -> StoredStudy:
        """The row of a study as it was read. Raises NotFound."""
        return self._of(num).stored

    def _of(self, num: int) -> _Decided:
        if num not in self._open:
            stored = rows.load(self.tx, num)
            study = self.platform.studies.study(self.tx, stored)
            self._open[num] = _Decided(stored, study, study)
        return self._open[num]

    def apply(self, num: int, fresh: Sequence[StudyEvent], actor: str = ACTOR) -> list[str]:
        """Apply events in order; returns why some had no effect. Those are not stored.

        Raises NotFound, and InvalidTransition for an event that only a bug can produce.
        """
        here = self._of(num)
        ignored: list[str] = []
        for event in fresh:
            decision = decide(here.study, event, self.now)
            if decision.ignored is not None:
                ignored.append(decision.ignored)
                continue
            here.study = decision.study
            here.changed |= {trial.number: trial for trial in decision.changed_trials}
            here.entries.append(_entry(here, event, self.now, actor))
            seq = here.last_seq
            here.commands += [(num, seq, command) for command in decision.commands]
        return ignored

    def flush(self) -> None:
        """Write what has changed: in all, a few statements and one for each study."""
        changed = [one for one in self._open.values() if one.entries]
        fresh_trials: list[TrialRow] = []
        changed_trials: list[TrialRow] = []
        for one in changed:
            if audit.is_on():
                self._describe(one)
            one.stored = rows.save(self.tx, one.stored, self._progress(one), len(one.entries))
            for number, trial in one.changed.items():
                row = trial_row(one.study, trial, self.now)
                (changed_trials if number < len(one.before.trials) else fresh_trials).append(row)
            self.tx.touched.topics.add(study_topic(one.study.num))
        rows.put_trials(self.tx, fresh_trials, changed_trials)
        log.append(self.tx, [entry for one in changed for entry in one.entries])
        commands.add(self.tx, [each for one in changed for each in one.commands], self.now)

    def _describe(self, one: _Decided) -> None:
        """Write what a request changed of a study, and of its trials."""
        before, after = one.before, one.study
        numbers = sorted(one.changed)
        old = {n: audited_trial(before.trials[n]) for n in numbers if n < len(before.trials)}
        new = {n: audited_trial(one.changed[n]) for n in numbers}
        audit.describe(
            self.tx,
            f"study {study_label(after.num)}",
            audited_study(before) | {"events": one.stored.last_seq, "trials": old},
            audited_study(after) | {"events": one.last_seq, "trials": new},
        )

    @property
    def commands_added(self) -> bool:
        """Whether events so far have caused commands other than asks."""
        found = (command for one in self._open.values() for _, _, command in one.commands)
        return any(not isinstance(command, Ask) for command in found)

    @property
    def wake_at(self) -> int | None:
        """When the next timer of the studies that were changed is due."""
        times = (wake_at(one.study) for one in self._open.values() if one.entries)
        return min((at for at in times if at is not None), default=None)

    def keep(self) -> None:
        """Keep the studies in memory, once the transaction has been committed."""
        for num, one in self._open.items():
            self.platform.studies.keep(num, one.stored.last_seq, one.study)

    def _progress(self, one: _Decided) -> StudyProgress:
        study, before = one.study, one.stored.progress
        started = any(trial.status in _STARTED for trial in one.changed.values())
        return study_progress(
            study,
            counts=_counted(one),
            started_at=self.now if before.started_at is None and started else before.started_at,
        )


def audited_study(study: Study) -> dict[str, Any]:
    """What the audit log shows of a study: its state and its limits."""
    return {
        "state": study.state.value,
        "reason": str(study.reason),
        "max_trials": study.policy.max_trials,
        "parallel": study.policy.parallel,
        "budget": encode(study.policy.budget),
    }


def audited_trial(trial: Trial) -> dict[str, Any]:
    """What the audit log shows of a trial."""
    return {
        "status": trial.status.value,
        "params": dict(trial.params),
        "value": trial.score,
        "unit": None if trial.last is None else trial.last.unit,
        "evaluator": trial.evaluator,
    }


def study_progress(study: Study, counts: dict[str, int], started_at: int | None) -> StudyProgress:
    """The columns of a study that follow from its events."""
    best, facts, index = study.best, study.facts, study.index
    return StudyProgress(
        state=facts.state.value,
        reason_code=facts.reason.code.value,
        reason_message=facts.reason.message,
        counts=counts,
        best_trial=None if best is None else best.number,
        slot_s=max(facts.slot_s, index.used_us / _US),
        usd=max(facts.usd, index.usd_micro / _US),
        started_at=started_at,
        ended_at=facts.ended_at,
        wake_at=wake_at(study),
        max_trials=study.policy.max_trials or 0,
        parallel=study.policy.parallel,
    )


def _counted(one: _Decided) -> dict[str, int]:
    """The number of trials by status, from those before the changes."""
    counts = dict(one.stored.progress.counts)
    for number, trial in one.changed.items():
        if number < len(one.before.trials):
            counts[one.before.trials[number].status.value] -= 1
        counts[trial.status.value] = counts.get(trial.status.value, 0) + 1
    return {status: count for status, count in counts.items() if count}


def _entry(here: _Decided, event: StudyEvent, now: int, actor: str) -> log.NewStudyEvent:
    facts = here.study.facts
    return log.NewStudyEvent(
        study=here.study.num,
        seq=here.last_seq + 1,
        at=now,
        kind=kind_of(type(event)),
        trial=getattr(event, "trial", None),
        actor=actor,
        reason={
            "state": facts.state.value,
            "code": facts.reason.code.value,
            "message": facts.reason.message,
        },
        data=log.data_of(event),
    )


def trial_row(study: Study, trial: Trial, now: int) -> TrialRow:
    """A trial as it is listed. Its times are written once: see `rows.put_trials`."""
    shown = trial.best if study.policy.objective.at == "best" else trial.last
    checkpoint = shown.checkpoint if shown is not None else None
    if checkpoint is None and trial.last is not None:
        checkpoint = trial.last.checkpoint
    return TrialRow(
        study=study.num,
        trial=trial.number,
        job=trial.job,
        status=trial.status.value,
        reason=str(trial.reason),
        params=dict(trial.params),
        origin=encode(trial.origin),
        rung=trial.rung if study.policy.levels else None,
        until=trial.until,
        unit=None if trial.last is None else trial.last.unit,
        value=trial.score,
        checkpoint=checkpoint or trial.pinned,
        slot_s=trial.slot_s,
        usd=trial.usd,
        submitted_at=now,
        started_at=now if trial.status in _STARTED else None,
        ended_at=now if trial.is_over else None,
    )


def transact_studies(platform: Platform, now: int, work: Callable[[StudyWork], T]) -> T:
    """Run `work` in one write transaction, write the studies that it changed, and keep them in memory."""

    def whole(tx: Tx) -> tuple[StudyWork, T]:
        here = StudyWork(platform, tx, now)
        result = work(here)
        here.flush()
        return here, result

    done, result = platform.store.transact(whole)
    done.keep()
    return result
