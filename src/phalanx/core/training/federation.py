"""Rounds of federated training: which sites take part, when a round closes, and whether it counts.

Sites may join and leave at any time; the coordinator waits for a missing site at most as long as a
round may last. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

_PATIENCE_S = 15.0


class Phase(StrEnum):
    """The phase of the coordinator: gathering sites, training a round, or done."""

    GATHERING = "gathering"
    TRAINING = "training"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A round begins with at least `min_sites`, and counts when as many have answered.

    It ends when all of its sites have answered, or after `round_s`. It begins `gather_s` after
    enough sites have asked for work, so that sites that join at the same time train together.
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
    """The state of a federated training: its current round and the sites that take part."""

    rules: Rules  # sizes and time limits
    closed: int = 0  # rounds that have changed the model
    phase: Phase = Phase.GATHERING  # current phase
    cohort: set[str] = field(default_factory=set)  # sites of the current round
    answered: set[str] = field(default_factory=set)  # sites of the round that have answered
    abandoned: int = 0  # rounds with too few answers
    _waiting: dict[str, float] = field(default_factory=dict)  # sites by their latest request, s
    _began_s: float = 0.0  # start of the current round
    _complete_s: float | None = None  # since when enough sites wait; None: too few

    def resume(self, closed: int, cohort: set[str], answered: set[str], now_s: float) -> None:
        """Continue from the state of an earlier coordinator, within a round or between two."""
        self.closed, self._began_s = closed, now_s
        self.cohort, self.answered = set(cohort), set(answered) & set(cohort)
        self.phase = Phase.TRAINING if cohort else Phase.GATHERING
        if closed >= self.rules.num_rounds:
            self.phase = Phase.DONE

    def wants_work(self, site: str, now_s: float) -> bool:
        """Record that a site asks for work; True if it has to train in the current round.

        A site that restarts within the round gets the same work again; a site that asks too late or
        has answered already waits for the next round.
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
        """Whether an answer of this site for this round (from 1) is accepted."""
        return (
            self.phase is Phase.TRAINING
            and number == self.closed + 1
            and site in self.cohort
            and site not in self.answered
        )

    def answer(self, site: str) -> None:
        """Record that the answer of a site has been stored."""
        self.answered.add(site)

    def begins(self, now_s: float) -> bool:
        """Whether a round begins now, with the sites in `cohort`; called regularly."""
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
        # Waiting sites ask about once a second; a site that stops asking has left.
        return max(_PATIENCE_S, 2 * self.rules.gather_s)

    def ends(self, now_s: float) -> bool:
        """Whether the current round is over; called regularly.

        The caller then calls `close` if the round `counts`, else `abandon`.
        """
        if self.phase is not Phase.TRAINING:
            return False
        return self.answered == self.cohort or now_s - self._began_s >= self.rules.round_s

    @property
    def counts(self) -> bool:
        """Whether enough sites have answered."""
        return len(self.answered) >= self.rules.min_sites

    def close(self) -> None:
        """End the round after its answers were merged into the model."""
        self.closed += 1
        self._gather()
        if self.closed >= self.rules.num_rounds:
            self.phase = Phase.DONE

    def abandon(self) -> None:
        """Discard the answers; the same round starts again with the sites that are available."""
        self.abandoned += 1
        self._gather()

    def _gather(self) -> None:
        self.cohort, self.answered = set(), set()
        self.phase = Phase.GATHERING
