"""One step of studies: what happened to their trials, what they decide, and what they asked for."""

from __future__ import annotations

from phalanx.core.search.machine import due
from phalanx.services.platform import Platform
from phalanx.services.studies import facts
from phalanx.services.studies.commands import carry_out
from phalanx.services.studies.commit import StudyWork, transact_studies
from phalanx.services.studies.spending import spending_step
from phalanx.store.database import Tx
from phalanx.store.studies import commands, rows
from phalanx.store.studies.trial_reports import TrialReportRow

_ROUNDS = 20


def studies_step(platform: Platform, now: int) -> int | None:
    """Read what is new, decide and carry out, until nothing is left; returns when a timer is due."""
    spending_step(platform, now)
    for _ in range(_ROUNDS):
        if not _read(platform, now) | _fire(platform, now) | bool(carry_out(platform, now)):
            break
    next_at = platform.store.view(_next_at)
    return min(
        (at for at in (next_at, platform.studies.next_budget_at()) if at is not None), default=None
    )


def _next_at(tx: Tx) -> int | None:
    times = (rows.next_wake_at(tx), commands.next_at(tx, only_asks=False))
    return min((at for at in times if at is not None), default=None)


def _read(platform: Platform, now: int) -> bool:
    """Apply what has happened to trials' jobs since the last step; returns whether anything has."""
    cache = platform.studies
    last, changed = cache.last_report, cache.take()

    def look(tx: Tx) -> tuple[set[int], int, list[TrialReportRow]]:
        live = facts.live_jobs(tx) if last is None else []
        return {*changed, *live}, *facts.new_reports(tx, last, live)

    try:
        nums, newest, reports = platform.store.view(look)
        if nums or reports:
            prices = facts.prices_of(platform.cluster()) if nums else {}

            def work(here: StudyWork) -> None:
                facts.read_jobs(here, nums, reports, prices)

            transact_studies(platform, now, work)
    except BaseException:
        cache.note(changed)
        raise
    cache.last_report = newest
    return bool(nums or reports)


def _fire(platform: Platform, now: int) -> bool:
    """Apply the timers of studies that are due."""
    waking = platform.store.view(lambda tx: rows.waking(tx, now))
    if not waking:
        return False

    def work(here: StudyWork) -> None:
        here.load(waking)
        for num in waking:
            if here.has(num):
                here.apply(num, due(here.study(num), now), "timer")

    transact_studies(platform, now, work)
    return True
