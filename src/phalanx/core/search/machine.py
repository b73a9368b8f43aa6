"""The study machine: a pure function from a study and an event to a new study and commands.

`ROWS` is the transition table, with a cell for every event and state: a handler, `Disregard` for a late or
repeated message, or `Forbid` for a pair that only a bug can produce. After a handler, `rungs.planning`
adds what follows: promotions, starts, asks, the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from phalanx.core.search import events as e
from phalanx.core.search.draft import US, StudyDraft
from phalanx.core.search.handlers.lives import (
    checkpoint_pinned,
    hold_elapsed,
    settle,
    trial_ended,
    trial_paused,
    trial_reported,
    trial_started,
    trial_submitted,
)
from phalanx.core.search.handlers.requests import (
    budget_spent,
    duration_exceeded,
    study_extended,
    study_paused,
    study_reopened,
    study_resumed,
    study_stopped,
)
from phalanx.core.search.handlers.suggestions import (
    suggested,
    suggestion_failed,
    trial_added,
    trial_asked,
    trial_told,
)
from phalanx.core.search.index import restore
from phalanx.core.search.model import Study, StudyDecision, StudyFacts, StudyState
from phalanx.core.search.rungs.planning import plan
from phalanx.errors import InvalidTransition, InvariantBroken

StudyCell = Callable[[StudyDraft, Any], str | None]


@dataclass(frozen=True, slots=True)
class Disregard:
    """A cell that changes nothing."""

    why: str

    def __call__(self, draft: StudyDraft, event: object) -> str | None:
        """The reason why the event has no effect."""
        return self.why


@dataclass(frozen=True, slots=True)
class Forbid:
    """A cell that raises InvalidTransition."""

    def __call__(self, draft: StudyDraft, event: object) -> str | None:
        """Raise InvalidTransition."""
        state = draft.facts.state
        raise InvalidTransition(f"study {draft.num}: {type(event).__name__} while {state}")


FORBID = Forbid()
OVER = Disregard("the study is over")
STOPS = Disregard("the study is stopping")
PAUSED = Disregard("the study is paused")
ACTIVE = Disregard("the study is not paused")

COLUMNS: tuple[tuple[StudyState, ...], ...] = (
    (StudyState.RUNNING,),
    (StudyState.PAUSED,),
    (StudyState.STOPPING,),
    (StudyState.SUCCEEDED, StudyState.FAILED, StudyState.CANCELLED),
)
# fmt: off
ROWS: tuple[tuple[type[e.StudyEvent], StudyCell, StudyCell, StudyCell, StudyCell], ...] = (
    # event                   running            paused             stopping           over
    (e.StudySubmitted,        FORBID,            FORBID,            FORBID,            FORBID),
    (e.Suggested,             suggested,         suggested,         STOPS,             OVER),
    (e.SuggestionFailed,      suggestion_failed, suggestion_failed, STOPS,             OVER),
    (e.TrialSubmitted,        trial_submitted,   trial_submitted,   trial_submitted,   OVER),
    (e.TrialStarted,          trial_started,     trial_started,     trial_started,     OVER),
    (e.TrialReported,         trial_reported,    trial_reported,    trial_reported,    OVER),
    (e.TrialPaused,           trial_paused,      trial_paused,      trial_paused,      OVER),
    (e.TrialEnded,            trial_ended,       trial_ended,       trial_ended,       settle),
    (e.CheckpointPinned,      checkpoint_pinned, checkpoint_pinned, checkpoint_pinned, checkpoint_pinned),
    (e.BudgetSpent,           budget_spent,      budget_spent,      budget_spent,      budget_spent),
    (e.StudyPaused,           study_paused,      PAUSED,            STOPS,             OVER),
    (e.StudyResumed,          ACTIVE,            study_resumed,     STOPS,             OVER),
    (e.StudyExtended,         study_extended,    study_extended,    STOPS,             study_reopened),
    (e.StudyStopped,          study_stopped,     study_stopped,     STOPS,             OVER),
    (e.TrialAdded,            trial_added,       trial_added,       STOPS,             OVER),
    (e.TrialAsked,            trial_asked,       PAUSED,            STOPS,             OVER),
    (e.TrialTold,             trial_told,        trial_told,        trial_told,        OVER),
    (e.HoldElapsed,           hold_elapsed,      hold_elapsed,      STOPS,             OVER),
    (e.StudyDurationExceeded, duration_exceeded, PAUSED,            STOPS,             OVER),
)
# fmt: on
TRANSITIONS: dict[tuple[StudyState, type], StudyCell] = {
    (state, event): cell
    for event, *cells in ROWS
    for column, cell in zip(COLUMNS, cells, strict=True)
    for state in column
}


def decide(study: Study, event: e.StudyEvent, now: int) -> StudyDecision:
    """Apply one event to one study.

    `now` is in microseconds UTC. The study that is given never changes. Raises InvalidTransition for a
    pair of state and event that only a bug can produce.
    """
    draft = StudyDraft(study, now)
    ignored = TRANSITIONS[study.facts.state, type(event)](draft, event)
    if ignored is not None:
        return StudyDecision(study, ignored=ignored)
    if draft.stirred:
        plan(draft)
    return draft.close()


def create(event: e.StudySubmitted, now: int) -> StudyDecision:
    """The study that a submit creates, with its first commands."""
    duration_s = event.policy.budget.duration_s
    deadline_at = None if duration_s is None else now + round(duration_s * US)
    facts = StudyFacts(submitted_at=now, deadline_at=deadline_at)
    draft = StudyDraft(restore(event.num, event.policy, facts, ()), now)
    plan(draft)
    return draft.close()


def rebuild(log: Iterable[tuple[e.StudyEvent, int]]) -> Study:
    """The study that a stored log of (event, at) leads to. Raises InvariantBroken for an empty log."""
    study: Study | None = None
    for event, at in log:
        if isinstance(event, e.StudySubmitted):
            study = create(event, at).study
        elif study is None:
            raise InvariantBroken("a log does not begin with its submission")
        else:
            study = decide(study, event, at).study
    if study is None:
        raise InvariantBroken("an empty log")
    return study


def due(study: Study, now: int) -> tuple[e.StudyEvent, ...]:
    """The timer events that are due at `now`, earliest first."""
    found: list[tuple[int, e.StudyEvent]] = []
    for at, number in study.index.timers:
        if at > now:
            break
        found.append((at, e.HoldElapsed(number)))
    deadline_at = _deadline(study)
    if deadline_at is not None and deadline_at <= now:
        found.append((deadline_at, e.StudyDurationExceeded()))
    found.sort(key=lambda one: one[0])
    return tuple(event for _, event in found)


def wake_at(study: Study) -> int | None:
    """The time of the next timer event, microseconds UTC; None if there is none."""
    first = study.index.timers.first()
    times = [at for at in (_deadline(study), None if first is None else first[0]) if at is not None]
    return min(times, default=None)


def _deadline(study: Study) -> int | None:
    return study.facts.deadline_at if study.state is StudyState.RUNNING else None
