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


def studies_step(platform: Platform, now: int) -> int | None:
    """Read what is new, decide and carry out, until nothing is left; returns when a timer is due."""
    spending_step(platform, now)
    next_at: int | None = None
    for _ in range(_ROUNDS):
        busy, next_at = _round(platform, now)
        if not busy:
            break
    return min(
        (at for at in (next_at, platform.studies.next_budget_at()) if at is not None), default=None
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What is to be done for studies at one moment."""

    nums: set[int]  # jobs of trials to look at
    newest: int  # number of the last report
    reports: list[TrialReportRow]  # that are new
    waking: list[int]  # studies with a timer that is due
    commands: list[OpenCommand]  # that are due
    next_at: int | None  # when the next timer or command is due

    @property
    def anything(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.nums or self.reports or self.waking or self.commands)


def _round(platform: Platform, now: int) -> tuple[bool, int | None]:
    """Do what is due once; returns whether that was anything, and when the next timer is due."""
    cache = platform.studies
    last, changed = cache.last_report, cache.take()
    try:
        found = platform.store.view(lambda tx: _look(tx, last, changed, now))
        _apply(platform, found, now)
    except BaseException:
        cache.note(changed)
        raise
    cache.last_report = found.newest
    carry_out(platform, found.commands, now)
    return found.anything, found.next_at


def _look(tx: Tx, last: int | None, changed: set[int], now: int) -> _Found:
    live = facts.live_jobs(tx) if last is None else []
    times = (rows.next_wake_at(tx), commands.next_at(tx, only_asks=False))
    wake_at, command_at = times
    return _Found(
        {*changed, *live},
        *facts.new_reports(tx, last, live),
        waking=rows.waking(tx, now) if wake_at is not None and wake_at <= now else [],
        commands=open_commands(tx, now) if command_at is not None and command_at <= now else [],
        next_at=min((at for at in times if at is not None), default=None),
    )


def _apply(platform: Platform, found: _Found, now: int) -> None:
    """Apply what has happened to trials' jobs, and the timers of studies that are due."""
    if not (found.nums or found.reports or found.waking):
        return
    prices = facts.prices_of(platform.cluster()) if found.nums else {}

    def work(here: StudyWork) -> None:
        facts.read_jobs(here, found.nums, found.reports, prices)
        here.load(found.waking)
        for num in found.waking:
            if here.has(num):
                here.apply(num, due(here.study(num), now), "timer")

    transact_studies(platform, now, work)
