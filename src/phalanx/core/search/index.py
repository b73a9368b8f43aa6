"""The index of a study: what each trial adds to it, and how it follows a change of one trial.

Every entry is a function of one trial, so the index of a study that is loaded from its stored trials
equals that of the study that decided on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from phalanx.core.search.model import (
    PLACED,
    Rung,
    Study,
    StudyFacts,
    StudyIndex,
    StudyPolicy,
    Trial,
    TrialStatus,
)
from phalanx.core.search.sorted_items import Numbered, SortedItems
from phalanx.core.search.space import Params, cell_of

_US = 1_000_000
_S = TrialStatus


def restore(num: int, policy: StudyPolicy, facts: StudyFacts, trials: Iterable[Trial]) -> Study:
    """The study made of its stored parts; `trials` in the order of their numbers."""
    index = StudyIndex()
    table: Numbered[Trial] = Numbered(trials)
    for trial in table:
        move(index, policy, None, trial)
    return Study(num, policy, facts, table, index)


def move(index: StudyIndex, policy: StudyPolicy, old: Trial | None, new: Trial) -> None:
    """Change the index in place as one trial changes from `old` to `new`; None: it is new."""
    if old is None or old.status is not new.status or old.ending is not new.ending:
        _move_status(index, old, new)
    elif old.at_rung is not new.at_rung:
        _move_interrupted(index, old, new)
    _move_timer(index, old, new)
    if policy.duplicates == "never" and new.params and (old is None or not old.params):
        index.seen = index.seen.add((params_key(new.params), new.number))
    if not new.is_final:
        _move_scores(index, policy, old, new)
        if policy.levels:
            _move_rungs(index, policy, old, new)
    if old is None or old.slot_s != new.slot_s or old.usd != new.usd:
        _settle(index, old, new)
    if old is None or old.reserved_s != new.reserved_s:
        index.reserved_us += micro(new.reserved_s) - (0 if old is None else micro(old.reserved_s))


def params_key(params: Params) -> int:
    """A hash of params, the same for equal params within one process."""
    return hash(cell_of(params))


def micro(amount: float) -> int:
    """An amount in millionths: sums of integers do not depend on their order."""
    return round(amount * _US)


def _move_status(index: StudyIndex, old: Trial | None, new: Trial) -> None:
    number = new.number
    before = None if old is None else old.status
    after = new.status
    if before is not after:
        index.asked = _member(index.asked, number, before is _S.ASKED, after is _S.ASKED)
        index.suggested = _member(
            index.suggested, number, before is _S.SUGGESTED, after is _S.SUGGESTED
        )
        index.placed = _member(index.placed, number, before in PLACED, after in PLACED)
        if new.evaluator is not None:
            index.outside += (after in PLACED) - (before in PLACED)
        index.failed += (after is _S.FAILED) - (before is _S.FAILED)
        index.rejected += (after is _S.REJECTED) - (before is _S.REJECTED)
        index.completed += (after is _S.COMPLETED) - (before is _S.COMPLETED)
    index.leaving += _leaving(new) - (0 if old is None else _leaving(old))
    index.counted += _counts(new) - (0 if old is None else _counts(old))
    _move_interrupted(index, old, new)


def _move_interrupted(index: StudyIndex, old: Trial | None, new: Trial) -> None:
    before = old is not None and _interrupted(old)
    index.interrupted = _member(index.interrupted, new.number, before, _interrupted(new))


def _interrupted(trial: Trial) -> bool:
    """Whether a trial was paused before it reached its rung."""
    return trial.status is _S.PAUSED and not trial.at_rung


def _leaving(trial: Trial) -> int:
    return 1 if trial.ending is not None and trial.status in PLACED else 0


def _counts(trial: Trial) -> int:
    """1 if a trial counts against `max_trials`: not if rejected, a fork, a final, or never begun."""
    if trial.status is _S.REJECTED or trial.is_final or trial.origin.parent is not None:
        return 0
    return 0 if trial.status is _S.STOPPED and trial.queued_at is None else 1


def _member(items: SortedItems[int], number: int, before: bool, after: bool) -> SortedItems[int]:
    if before is after:
        return items
    return items.add(number) if after else items.remove(number)


def _move_timer(index: StudyIndex, old: Trial | None, new: Trial) -> None:
    before, after = None if old is None else old.timer_at, new.timer_at
    if before == after:
        return
    timers = index.timers
    if before is not None:
        timers = timers.remove((before, new.number))
    if after is not None:
        timers = timers.add((after, new.number))
    index.timers = timers


def _move_scores(index: StudyIndex, policy: StudyPolicy, old: Trial | None, new: Trial) -> None:
    before = None if old is None else _entry(policy, old)
    after = _entry(policy, new)
    was_top = old is not None and old.status is _S.COMPLETED
    is_top = new.status is _S.COMPLETED
    if before != after:
        index.scores = _exchange(index.scores, before, after)
    if was_top or is_top:
        index.top = _exchange(index.top, before if was_top else None, after if is_top else None)


def _entry(policy: StudyPolicy, trial: Trial) -> tuple[float, int] | None:
    """The (score, number) of a trial; None without a score, or if it cannot be the best."""
    if trial.last is None or trial.status in (_S.DIVERGED, _S.FAILED, _S.REJECTED):
        return None
    return policy.objective.oriented(trial.last.score), trial.number


Pairs = SortedItems[tuple[float, int]]


def _exchange(
    items: Pairs, before: tuple[float, int] | None, after: tuple[float, int] | None
) -> Pairs:
    if before == after:
        return items
    if before is not None:
        items = items.remove(before)
    return items if after is None else items.add(after)


def _move_rungs(index: StudyIndex, policy: StudyPolicy, old: Trial | None, new: Trial) -> None:
    if old is not None and (
        old.status is new.status
        and old.rung == new.rung
        and len(old.results) == len(new.results)
        and old.ending is new.ending
    ):
        return
    before = {} if old is None else rung_entries(policy, old)
    after = rung_entries(policy, new)
    for rung in before.keys() | after.keys():
        was, now = before.get(rung, _NOWHERE), after.get(rung, _NOWHERE)
        if was == now:
            continue
        key = (new.bracket, rung)
        there = index.rungs.get(key, _EMPTY)
        index.rungs[key] = Rung(
            _exchange(there.results, was[0], now[0]),
            _exchange(there.candidates, was[1], now[1]),
            there.coming + now[2] - was[2],
        )


_EMPTY = Rung()
_Entry = tuple[tuple[float, int] | None, tuple[float, int] | None, int]
_NOWHERE: _Entry = (None, None, 0)


def rung_entries(policy: StudyPolicy, trial: Trial) -> dict[int, _Entry]:
    """What a trial adds to each rung: its result, itself as a candidate, and itself as coming."""
    found: dict[int, _Entry] = {}
    for offset, result in enumerate(trial.results):
        pair = (policy.objective.oriented(result.score), trial.number)
        found[trial.first_rung + offset] = (pair, None, 0)
    if trial.at_rung:
        if trial.status in (_S.HELD, _S.PAUSED) and trial.ending in (None, _S.PAUSED):
            pair_there = found[trial.rung][0]
            found[trial.rung] = (pair_there, pair_there, 0)
    elif trial.status is _S.DIVERGED:
        found[trial.rung] = ((math.inf, trial.number), None, 0)
    elif trial.status in (_S.WAITING, _S.RUNNING) and trial.ending is None:
        found[trial.rung] = (None, None, 1)
    return found


def _settle(index: StudyIndex, old: Trial | None, new: Trial) -> None:
    """Count what a trial has used, and for how many units, so that the next one can be estimated."""
    index.settled += (new.slot_s > 0) - (old is not None and old.slot_s > 0)
    index.units += new.settled_unit - (0 if old is None else old.settled_unit)
    index.usd_micro += micro(new.usd) - (0 if old is None else micro(old.usd))
    index.used_us += micro(new.slot_s) - (0 if old is None else micro(old.slot_s))


def with_limits(policy: StudyPolicy, **changes: object) -> StudyPolicy:
    """The policy with other limits; None leaves a limit as it is."""
    return replace(policy, **{name: one for name, one in changes.items() if one is not None})  # type: ignore[arg-type]
