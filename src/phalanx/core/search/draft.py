"""The working copy of a study inside one decision.

`decide` opens a draft, a handler and the planning of next actions change it, and `close` makes the new
study of it. The study that was given never changes, so the machine stays a pure function, while a
decision copies each part once and not once a step.
"""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from phalanx.core.search.index import move
from phalanx.core.search.model import (
    TRIAL_OVER,
    PauseTrial,
    ResumeTrial,
    SearchCode,
    SearchReason,
    StopTrial,
    Study,
    StudyCommand,
    StudyDecision,
    StudyState,
    SubmitTrial,
    Trial,
    TrialStatus,
    Unpin,
)

US = 1_000_000
MAX_REJECTED = 3
"""Rejected trials for each trial of `max_trials`, beyond which a study fails."""
_S = TrialStatus
_NAMES = tuple(one.name for one in fields(Trial))
_VALUES = attrgetter(*_NAMES)
_PLACE = {name: place for place, name in enumerate(_NAMES)}


class StudyDraft:
    """A study that a decision changes. Attributes are read freely, and changed by methods only."""

    __slots__ = (
        "_changed",
        "arrived",
        "commands",
        "facts",
        "index",
        "now",
        "num",
        "policy",
        "stirred",
        "trials",
    )

    def __init__(self, study: Study, now: int) -> None:
        self.num = study.num
        self.policy = study.policy
        self.facts = study.facts
        self.trials = study.trials
        self.index = study.index.copy()
        self.now = now
        self.commands: list[StudyCommand] = []
        self.stirred = False
        """Whether something changed upon which other trials may start, go on or end."""
        self.arrived: list[int] = []
        """Trials that have reached a rung in this decision."""
        self._changed: set[int] = set()

    def close(self) -> StudyDecision:
        """The decision: the new study, its commands, and the trials that changed."""
        study = Study(self.num, self.policy, self.facts, self.trials, self.index)
        changed = tuple([self.trials[number] for number in sorted(self._changed)])
        return StudyDecision(study, tuple(self.commands), None, changed)

    def trial(self, number: int) -> Trial | None:
        """The trial with a number; None if there is none."""
        return self.trials[number] if 0 <= number < len(self.trials) else None

    def command(self, *commands: StudyCommand) -> None:
        """Add commands to the decision."""
        self.commands.extend(commands)

    def add(self, trial: Trial) -> Trial:
        """Add a new trial; its number must be the next one."""
        self.trials = self.trials.put(trial.number, trial)
        move(self.index, self.policy, None, trial)
        self._changed.add(trial.number)
        self.stirred = True
        return trial

    def change(self, trial: Trial, **changes: Any) -> Trial:
        """Change fields of a trial, and the index with it."""
        # `dataclasses.replace` of so many fields takes most of a decision's time.
        values = list(_VALUES(trial))
        for name, value in changes.items():
            values[_PLACE[name]] = value
        new = Trial(*values)
        self.trials = self.trials.put(trial.number, new)
        move(self.index, self.policy, trial, new)
        self._changed.add(trial.number)
        if trial.ending is not new.ending or (
            trial.status is not new.status and new.status is not _S.RUNNING
        ):
            self.stirred = True
        return new

    def note(self, **changes: Any) -> None:
        """Change facts of the study."""
        self.facts = replace(self.facts, **changes)

    def set_policy(self, policy: Any) -> None:
        """Replace the policy by one with other limits."""
        self.policy = policy
        self.stirred = True

    def end(self, state: StudyState, code: SearchCode, message: str = "") -> None:
        """Begin to end the study: all trials save and leave, none starts."""
        self.note(
            state=StudyState.STOPPING,
            ending=state,
            reason=SearchReason(code, message),
            paused_at=None,
        )
        self.stirred = True
        reason = SearchReason(SearchCode.STUDY_ENDED, str(self.facts.reason))
        for number in self.index.placed:
            trial = self.trials[number]
            if trial.ending in (None, _S.PAUSED):
                self.stop_trial(trial, _S.STOPPED, reason)
        for number in (*self.index.asked, *self.index.suggested):
            self.change(self.trials[number], status=_S.STOPPED, reason=reason)

    def stop_trial(self, trial: Trial, status: TrialStatus, reason: SearchReason) -> Trial:
        """Have a trial's job end, after which the trial takes `status`; at once if it does not run."""
        if trial.evaluator is not None or trial.status is _S.PAUSED:
            if trial.evaluator is None:
                self.command(StopTrial(trial.number, reason))
            return self.finish_trial(trial, status, reason)
        self.command(StopTrial(trial.number, reason))
        return self.change(trial, ending=status, reason=reason, hold_until=None)

    def pause_trial(self, trial: Trial) -> Trial:
        """Have a trial's job save and leave its slots."""
        self.command(PauseTrial(trial.number))
        return self.change(trial, ending=_S.PAUSED, hold_until=None)

    def finish_trial(
        self, trial: Trial, status: TrialStatus, reason: SearchReason, **changes: Any
    ) -> Trial:
        """Give a trial that has no job any more its last status."""
        assert status in TRIAL_OVER
        trial = self.change(
            trial,
            status=status,
            reason=reason,
            ending=None,
            hold_until=None,
            lease_until=None,
            reserved_s=0.0,
            **changes,
        )
        if trial.fork_of is not None and trial.pinned is None:
            self.release_parent(trial)
        return self.release_pin(trial)

    def release_pin(self, trial: Trial) -> Trial:
        """Release the checkpoint of a trial to retention."""
        if trial.pinned is None:
            return trial
        self.unpin(trial, trial.pinned)
        return self.change(trial, pinned=None)

    def unpin(self, trial: Trial, checkpoint: str) -> None:
        """Release a checkpoint, unless a fork needs it: one without a pinned checkpoint of its own."""
        for fork in self.trials if self.policy.population is not None else ():
            if fork.fork_of == checkpoint and fork.pinned is None and not fork.is_over:
                return
        self.command(Unpin(trial.number, checkpoint))

    def release_parent(self, fork: Trial) -> None:
        """Release the checkpoint that a fork began from, unless its parent or another fork needs it."""
        parent = None if fork.origin.parent is None else self.trial(fork.origin.parent)
        if parent is not None and fork.fork_of and parent.pinned != fork.fork_of:
            self.unpin(parent, fork.fork_of)

    def submit(self, trial: Trial, **changes: Any) -> Trial:
        """Put a trial into the queue."""
        waiting = SearchReason(SearchCode.WAITING_FOR_SLOTS)
        self.command(SubmitTrial(trial.number))
        return self.change(
            trial, status=_S.WAITING, reason=waiting, ending=None, queued_at=self.now, **changes
        )

    def resume(self, trial: Trial, reason: SearchReason) -> Trial:
        """Put a paused trial into the queue again, to run up to its `until`."""
        if trial.job is None:
            own = trial.pinned or (trial.last.checkpoint if trial.last else None)
            self.command(SubmitTrial(trial.number, trial.resubmits, own or trial.fork_of))
        else:
            self.command(ResumeTrial(trial.number, trial.until))
        return self.change(trial, status=_S.WAITING, reason=reason, queued_at=self.now)

    def lease(self, trial: Trial, **changes: Any) -> Trial:
        """Let the evaluator of a trial be silent for its time from now on."""
        if trial.lease_s is not None:
            changes["lease_until"] = self.now + round(trial.lease_s * US)
        return self.change(trial, **changes)

    def lose_job(self, trial: Trial, said: str) -> Trial:
        """Keep a trial that lost its job to a failure of infrastructure; it goes on as from a pause."""
        return self.change(
            trial,
            status=_S.PAUSED,
            reason=SearchReason(SearchCode.INFRASTRUCTURE, said),
            job=None,
            ending=None,
            hold_until=None,
            reserved_s=0.0,
            resubmits=trial.resubmits + 1,
        )

    def judge_target(self, trial: Trial) -> bool:
        """End the study if a trial has reached the target; returns whether it has."""
        objective = self.policy.objective
        if objective.target is None or trial.last is None or trial.is_final:
            return False
        value = trial.last.value
        if objective.oriented(value) > objective.oriented(objective.target):
            return False
        said = f"trial {trial.number} reported {value:g}, the target is {objective.target:g}"
        self.end(StudyState.SUCCEEDED, SearchCode.TARGET_REACHED, said)
        return True

    def judge_failures(self) -> None:
        """End the study if too many trials have failed, or were rejected."""
        if self.facts.state not in (StudyState.RUNNING, StudyState.PAUSED):
            return
        failures, limit = self.policy.failures, self.policy.max_trials
        failed, rejected = self.index.failed, self.index.rejected
        most = [one for one in (failures.max, _share(failures.share, limit)) if one is not None]
        if most and failed > min(most):
            said = f"{failed} trials failed; at most {min(most)} may"
            self.end(StudyState.FAILED, SearchCode.TOO_MANY_FAILED, said)
        elif limit is not None and rejected > MAX_REJECTED * limit:
            said = f"{rejected} trials were rejected, more than {MAX_REJECTED} times the limit of trials"
            self.end(StudyState.FAILED, SearchCode.TOO_MANY_REJECTED, said)

    @property
    def best(self) -> Trial | None:
        """The best trial so far; None if none has a score."""
        found = self.index.top.first() or self.index.scores.first()
        return None if found is None else self.trials[found[1]]

    @property
    def free(self) -> int:
        """Number of trials that may still go to the queue."""
        return self.policy.parallel - (len(self.index.placed) - self.index.outside)


def _share(share: float | None, limit: int | None) -> int | None:
    return None if share is None or limit is None else int(share * limit)
