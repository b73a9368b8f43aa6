"""One step of studies: what happened to their trials, what they decide, and what they asked for."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.search.machine import due
from phalanx.services.platform import Platform
from phalanx.services.studies import facts
from phalanx.services.studies.commands import carry_out, open_commands
from phalanx.services.studies.commit import StudyWork, transact_studies
from phalanx.services.studies.spending import spending_step
from phalanx.store.database import Tx
from phalanx.store.studies import commands, rows
from phalanx.store.studies.commands import OpenCommand
from phalanx.store.studies.trial_reports import TrialReportRow

_ROUNDS = 20
_WAKING = 500


def studies_step(platform: Platform, now: int) -> int | None:
    """Read what is new, decide and carry out, until nothing is left; returns when a timer is due."""
    spending_step(platform, now)
    for _ in range(_ROUNDS):
        again, next_at = _round(platform, now)
        if not again:
            return _earliest(next_at, platform.studies.next_budget_at())
    return now


@dataclass(frozen=True, slots=True)
class _Found:
    """What is to be done for studies at one moment."""

    nums: set[int]  # jobs of trials to look at
    newest: int  # number of the last report
    reports: list[TrialReportRow]  # that are new
    waking: list[int]  # studies with a timer that is due
    commands: list[OpenCommand]  # that are due
    next_at: int | None  # when the next timer or command is due


def _round(platform: Platform, now: int) -> tuple[bool, int | None]:
    """Do what is due once; returns whether there is more to do, and when the next timer is due."""
    cache = platform.studies
    changed = cache.take()
    try:
        found = platform.store.view(lambda tx: _look(platform, tx, changed, now))
        told, first_at = _apply(platform, found, now)
    except BaseException:
        cache.note(changed)
        raise
    cache.last_report = found.newest
    carried, second_at = carry_out(platform, found.commands, now)
    full = len(found.waking) == _WAKING or len(found.reports) == facts.REPORTS_AT_ONCE
    return full or told or carried, _earliest(found.next_at, first_at, second_at)


def _earliest(*times: int | None) -> int | None:
    return min((at for at in times if at is not None), default=None)


def _look(platform: Platform, tx: Tx, changed: set[int], now: int) -> _Found:
    last = platform.studies.last_report
    live = facts.live_jobs(tx) if last is None else []
    nums = {*changed, *live}
    wake_at, command_at = rows.next_wake_at(tx), commands.next_at(tx, only_asks=False)
    return _Found(
        nums,
        *facts.new_reports(tx, last, live),
        waking=rows.waking(tx, now, _WAKING) if wake_at is not None and wake_at <= now else [],
        commands=open_commands(tx, now) if command_at is not None and command_at <= now else [],
        next_at=_earliest(*(at for at in (wake_at, command_at) if at is not None and at > now)),
    )


def _apply(platform: Platform, found: _Found, now: int) -> tuple[bool, int | None]:
    """Apply what has happened to trials' jobs, and the timers of studies that are due.

    Returns whether that caused commands, and when the next timer of these studies is due.
    """
    if not (found.nums or found.reports or found.waking):
        return False, None

    def work(here: StudyWork) -> StudyWork:
        facts.read_jobs(here, found.nums, found.reports, found.newest)
        here.load(found.waking)
        for num in found.waking:
            if here.has(num):
                here.apply(num, due(here.study(num), now), "timer")
        return here

    here = transact_studies(platform, now, work)
    return here.commands_added, here.wake_at
