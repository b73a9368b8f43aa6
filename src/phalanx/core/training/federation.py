"""Rounds of federated training: which sites take part, when one closes, and whether it counts.

Sites come, train and go as they like; the coordinator never waits for one that is gone longer than a
round may last. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

_PATIENCE_S = 15.0


class Phase(StrEnum):
    """What the coordinator waits for."""

    GATHERING = "gathering"
    TRAINING = "training"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A round begins with at least `min_sites`, and counts when as many have answered.

    It is over when all of its sites have, or after `round_s`. Before it begins, sites that have asked for
    work within `gather_s` are waited for, so that those who come together train together.
    """

    num_rounds: int
    min_sites: int = 2
    round_s: float = 3600.0
    gather_s: float = 2.0

    def __post_init__(self) -> None:
        if self.num_rounds < 1 or self.min_sites < 1:
            raise ValueError("num_rounds and min_sites must be at least 1")
        if self.round_s <= 0 or self.gather_s < 0:
            raise ValueError("round_s must be above 0 and gather_s at least 0")


@dataclass(slots=True)
class Federation:
    """The course of rounds. `closed` counts those that have changed the model."""

    rules: Rules
    closed: int = 0
    phase: Phase = Phase.GATHERING
    cohort: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    abandoned: int = 0
    _waiting: dict[str, float] = field(default_factory=dict)
    _began_s: float = 0.0
    _complete_s: float | None = None

    def resume(self, closed: int, cohort: set[str], answered: set[str], now_s: float) -> None:
        """Go on where an earlier coordinator was: in the middle of a round, or between two."""
        self.closed, self._began_s = closed, now_s
        self.cohort, self.answered = set(cohort), set(answered) & set(cohort)
        self.phase = Phase.TRAINING if cohort else Phase.GATHERING
        if closed >= self.rules.num_rounds:
            self.phase = Phase.DONE

    def wants_work(self, site: str, now_s: float) -> bool:
        """A site asks; True: it is to train in the round that is under way.

        One that was killed and comes back within the round gets the same work again; one that comes too
        late for it, or has answered already, waits for the next.
        """
        if self.phase is Phase.TRAINING:
            if site in self.cohort:
                return site not in self.answered
        elif self.phase is Phase.GATHERING:
            if site not in self._waiting:
                self._complete_s = None
            self._waiting[site] = now_s
        return False

    def may_answer(self, site: str, number: int) -> bool:
        """Whether an answer for this round (from 1) is still wanted from this site."""
        return (
            self.phase is Phase.TRAINING
            and number == self.closed + 1
            and site in self.cohort
            and site not in self.answered
        )

    def answer(self, site: str) -> None:
        """Its answer is kept."""
        self.answered.add(site)

    def begins(self, now_s: float) -> bool:
        """Called regularly: whether a round begins now; `cohort` then holds its sites."""
        if self.phase is not Phase.GATHERING:
            return False
        here = {site for site, at in self._waiting.items() if now_s - at <= self._patience_s}
        self._waiting = {site: self._waiting[site] for site in here}
        if len(here) < self.rules.min_sites:
            self._complete_s = None
            return False
        if self._complete_s is None:
            self._complete_s = now_s
        if now_s - self._complete_s < self.rules.gather_s:
            return False
        self.cohort, self.answered, self._waiting = here, set(), {}
        self.phase, self._began_s, self._complete_s = Phase.TRAINING, now_s, None
        return True

    @property
    def _patience_s(self) -> float:
        # Sites that wait ask every second or so; one that does not is gone.
        return max(_PATIENCE_S, 2 * self.rules.gather_s)

    def ends(self, now_s: float) -> bool:
        """Called regularly: whether the round under way is over.

        Then either `counts`, and `close` follows, or it is to be `abandon`ed.
        """
        if self.phase is not Phase.TRAINING:
            return False
        return self.answered == self.cohort or now_s - self._began_s >= self.rules.round_s

    @property
    def counts(self) -> bool:
        """Whether enough sites have answered."""
        return len(self.answered) >= self.rules.min_sites

    def close(self) -> None:
        """The answers have become the new model."""
        self.closed += 1
        self.cohort, self.answered = set(), set()
        self.phase = Phase.GATHERING
        if self.closed >= self.rules.num_rounds:
            self.phase = Phase.DONE

    def abandon(self) -> None:
        """Drop too few answers; the same round begins anew with the sites that are there."""
        self.abandoned += 1
        self.cohort, self.answered = set(), set()
        self.phase = Phase.GATHERING
