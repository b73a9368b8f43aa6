"""Divide the time of an attempt among accounts, so that they add up to it exactly.

The slices of an attempt are a partition of the time between its placement and its end: each begins where
the one before ends. What is not known yet, such as the work since the last reported step, is in a slice
as well, and may move to another account once more is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

DAY_US = 86_400 * 1_000_000
_SLOW_STEPS = 2
"""Mean step times after which a running generation without a new step counts as idle."""


class Account(StrEnum):
    """What a slot was used for. QUEUED is time without slots; all others are time that slots were held."""

    QUEUED = "queued"  # the job waited for its slots
    STARTING = "starting"  # from the placement to the first step
    PRODUCTIVE = "productive"  # steps that were made for the first time
    SAVING = "saving"  # training waited for a checkpoint
    REDONE = "redone"  # steps that an interrupted generation had made before
    LOST_TO_FAILURE = "lost_to_failure"  # from the last step before a failure to the next one
    LOST_TO_PREEMPTION = "lost_to_preemption"  # the same for preemptions, moves and resizes
    IDLE = "idle"  # slots were held without steps


class Interruption(StrEnum):
    """What ended a generation or an attempt that was not complete."""

    FAILURE = "failure"
    PREEMPTION = "preemption"


WASTED = (Account.REDONE, Account.LOST_TO_FAILURE, Account.LOST_TO_PREEMPTION)
"""Accounts of slot time that an interruption has cost."""
_LOST = {
    Interruption.FAILURE: Account.LOST_TO_FAILURE,
    Interruption.PREEMPTION: Account.LOST_TO_PREEMPTION,
}


@dataclass(frozen=True, slots=True)
class GenerationTimes:
    """Times of one generation, microseconds UTC; None: it has not happened."""

    number: int  # in its attempt
    up_at: int | None = None  # all ranks run
    first_step_at: int | None = None  # the first completed step
    last_step_at: int | None = None  # the last completed step
    first_step: int | None = None  # its number
    last_step: int | None = None  # its number
    ended_at: int | None = None  # all ranks have ended
    failed: bool = False  # it was interrupted by a failure


@dataclass(frozen=True, slots=True)
class Save:
    """A checkpoint: when it was complete, and for how long training waited for it."""

    generation: int
    at: int
    took_us: int = 0


@dataclass(frozen=True, slots=True)
class AttemptHistory:
    """What is known of an attempt; times are microseconds UTC."""

    placed_at: int  # it took its slots
    ended_at: int | None = None  # it gave them back; None: it holds them
    after: Interruption | None = None  # what ended the attempt before this one
    ended_by: Interruption | None = None  # what ended this one, or is ending it
    high_step: int | None = None  # highest step of all attempts before
    generations: tuple[GenerationTimes, ...] = ()  # in order
    saves: tuple[Save, ...] = ()  # in any order


@dataclass(frozen=True, slots=True)
class Slice:
    """Time of an attempt that belongs to one account."""

    from_at: int
    to_at: int
    account: Account
    generation: int


@dataclass(slots=True)
class _Timeline:
    """Slices up to a time, each of which begins where the one before ends."""

    at: int
    end: int
    slices: list[Slice] = field(default_factory=list)

    def until(self, at: int, account: Account, generation: int) -> None:
        """Give the time up to `at` to an account; times out of order add nothing."""
        at = min(max(at, self.at), self.end)
        if at > self.at:
            self.slices.append(Slice(self.at, at, account, generation))
            self.at = at

    def around(self, saves: Sequence[Save], at: int, account: Account, generation: int) -> None:
        """`until`, with the time of saves in the account for saves."""
        for one in saves:
            if one.at - one.took_us < at and one.at > self.at:
                self.until(min(one.at - one.took_us, at), account, generation)
                self.until(min(one.at, at), Account.SAVING, generation)
        self.until(at, account, generation)


def slices_of(history: AttemptHistory, now: int) -> tuple[Slice, ...]:
    """The slices of an attempt up to its end, or up to `now` while it lasts."""
    end = now if history.ended_at is None else history.ended_at
    line = _Timeline(history.placed_at, max(end, history.placed_at))
    high, cause = history.high_step, history.after
    generations = _with_ends(history.generations)
    for index, one in enumerate(generations):
        last = index == len(generations) - 1
        saves = sorted((save for save in history.saves if save.generation == one.number), key=_at)
        interrupted = _interrupted(history, one, last)
        _start(line, one, cause, interrupted)
        if one.first_step_at is not None:
            _steps(line, one, high, saves)
        live = last and history.ended_at is None and one.ended_at is None
        _rest(line, one, saves, interrupted, live=live)
        if last:
            account = Account.IDLE if interrupted is None else _LOST[interrupted]
            line.until(line.end, account, one.number)
        if one.last_step is not None:
            high = one.last_step if high is None else max(high, one.last_step)
        cause = interrupted
    if not generations:
        begun = history.ended_by or cause
        line.until(line.end, Account.STARTING if begun is None else _LOST[begun], 0)
    return tuple(line.slices)


def _at(save: Save) -> int:
    return save.at


def _with_ends(generations: Sequence[GenerationTimes]) -> list[GenerationTimes]:
    """Generations of which each but the last has an end: at the latest where the next one runs."""
    found = list(generations)
    for index in range(len(found) - 1, 0, -1):
        one, later = found[index - 1], found[index]
        if one.ended_at is None:
            times = (later.up_at, later.first_step_at, later.ended_at, one.last_step_at, one.up_at)
            end = next((at for at in times if at is not None), 0)
            found[index - 1] = replace(one, ended_at=end)
    return found


def _interrupted(history: AttemptHistory, one: GenerationTimes, last: bool) -> Interruption | None:
    failed = Interruption.FAILURE if one.failed else None
    if not last:
        return failed
    if history.ended_by is not None:
        return history.ended_by
    return failed if history.ended_at is None else None


def _start(
    line: _Timeline,
    one: GenerationTimes,
    cause: Interruption | None,
    interrupted: Interruption | None,
) -> None:
    """The time up to the first step; that of a generation which never ran was lost."""
    begin = one.up_at if one.first_step_at is None else one.first_step_at
    account = Account.STARTING if cause is None else _LOST[cause]
    if begin is not None:
        line.until(begin, account, one.number)
        return
    if interrupted is not None and cause is None:
        account = _LOST[interrupted]
    line.until(line.end if one.ended_at is None else one.ended_at, account, one.number)


def _steps(line: _Timeline, one: GenerationTimes, high: int | None, saves: Sequence[Save]) -> None:
    """The time from the first step to the last one; steps up to `high` were made before."""
    first_at, last_at = one.first_step_at or 0, one.last_step_at or 0
    first, last = one.first_step or 0, one.last_step or 0
    steps = max(last - first, 0)
    repeated = 0 if high is None else min(max(high - first, 0), steps)
    if repeated:
        middle = first_at + max(last_at - first_at, 0) * repeated // steps
        line.around(saves, middle, Account.REDONE, one.number)
    line.around(saves, last_at, Account.PRODUCTIVE, one.number)


def _rest(
    line: _Timeline,
    one: GenerationTimes,
    saves: Sequence[Save],
    interrupted: Interruption | None,
    *,
    live: bool,
) -> None:
    """The time from the last step to the end of the generation."""
    end = line.end if one.ended_at is None else one.ended_at
    if one.first_step_at is None:
        if one.up_at is None:
            return
        # A script that reports no steps: what is behind its last checkpoint was lost.
        kept = end if interrupted is None else max((save.at for save in saves), default=line.at)
        line.until(min(kept, end), Account.PRODUCTIVE, one.number)
    elif live and interrupted is None:
        steps = max((one.last_step or 0) - (one.first_step or 0), 1)
        span = max((one.last_step_at or 0) - one.first_step_at, 0)
        working = (one.last_step_at or 0) + _SLOW_STEPS * span // steps
        line.around(saves, min(working, end), Account.PRODUCTIVE, one.number)
    if interrupted is None:
        line.around(saves, end, Account.IDLE, one.number)
    else:
        line.until(end, _LOST[interrupted], one.number)


@dataclass(frozen=True, slots=True)
class AccountRow:
    """Slot time of one generation on one day (UTC), or of a wait in the queue, by account.

    `amounts` are microseconds times slots; together they are the length of the row times its slots.
    """

    from_at: int
    to_at: int
    generation: int | None  # None: in the queue
    slots: int  # held; in the queue: asked for
    amounts: tuple[tuple[Account, int], ...]

    @property
    def total(self) -> int:
        """All accounts together."""
        return sum(amount for _, amount in self.amounts)


def rows_of(slices: Iterable[Slice], slots: int) -> list[AccountRow]:
    """The rows of an attempt, one for each generation and day, in the order of time."""
    found: dict[tuple[int, int], list[Slice]] = {}
    for one in slices:
        begin = one.from_at
        while begin < one.to_at:
            day = begin // DAY_US
            end = min(one.to_at, (day + 1) * DAY_US)
            part = Slice(begin, end, one.account, one.generation)
            found.setdefault((one.generation, day), []).append(part)
            begin = end
    return [_row(parts, slots, generation) for (generation, _), parts in found.items()]


def queue_rows(from_at: int, to_at: int, slots: int) -> list[AccountRow]:
    """The rows of a wait in the queue for `slots` slots, one for each day."""
    parts = rows_of([Slice(from_at, to_at, Account.QUEUED, 0)], slots)
    return [AccountRow(one.from_at, one.to_at, None, slots, one.amounts) for one in parts]


def _row(parts: Sequence[Slice], slots: int, generation: int) -> AccountRow:
    amounts: dict[Account, int] = {}
    for one in parts:
        amounts[one.account] = amounts.get(one.account, 0) + (one.to_at - one.from_at) * slots
    return AccountRow(
        parts[0].from_at, parts[-1].to_at, generation, slots, tuple(sorted(amounts.items()))
    )
