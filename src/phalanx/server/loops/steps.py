"""The loops of a control plane: each is one service's step with what wakes it."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.kit.text import random_hex
from phalanx.server.context import Context
from phalanx.server.loops.runner import Loop
from phalanx.services.lifecycle.commit import LEAVING, QUEUE, TIMERS
from phalanx.services.lifecycle.dispatch import LeaseOwner, dispatch_step
from phalanx.services.lifecycle.polling import poll_leaving_step, poll_step
from phalanx.services.lifecycle.retention import Sweep, retention_step
from phalanx.services.lifecycle.timers import timers_step
from phalanx.services.planning.draining import draining_step
from phalanx.services.planning.scaling import scaling_step
from phalanx.services.planning.scheduling import scheduling_step
from phalanx.store import outbox

# A plan that took so long is followed by a rest of the same length.
_PLAN_S = 0.1
_MOST_REST = 4.0
# For how many times as long as a plan took, and how long at most, no other is made for jobs that only
# join lines which stand still: in a long queue most arrivals are such.
_SPARED, _SPARED_S = 20.0, 1.0
_FEW_COMMANDS, _MANY_COMMANDS = 16, 512
_STEP_S = 0.5


@dataclass(slots=True)
class Batch:
    """How many commands the dispatcher takes at a time.

    What was launched is stored when the whole batch is done, so it must not take long: batches grow
    while they are quick, as with an executor that only has to be told, and shrink when they are not.
    """

    size: int = _FEW_COMMANDS

    def took(self, duration_s: float) -> None:
        """A step with this batch took so long."""
        size = self.size * 2 if duration_s < _STEP_S else self.size // 2
        self.size = min(max(size, _FEW_COMMANDS), _MANY_COMMANDS)


def planner_rest_s(took_s: float) -> float:
    """Short after a short plan, and up to four times as long as one over tens of thousands of jobs.

    A plan costs nearly the same for one start as for hundreds. Planned without rest, those that launch
    and report would wait for the planner all the time.
    """
    return took_s * min(took_s / _PLAN_S, _MOST_REST)


@dataclass(slots=True)
class Spare:
    """Until when the planner need not look at jobs that can only wait."""

    until: int = 0


@dataclass(slots=True)
class Round:
    """When all supervisors are asked for again, beside those that are expected to go."""

    due: int = 0


def all_loops(context: Context) -> tuple[Loop, ...]:
    """Scheduler, dispatcher, timers, polling, draining and retention."""
    platform, ticks = context.platform, context.settings.loops
    who, batch = LeaseOwner(owner="embedded", token=random_hex(16)), Batch()
    spare, everybody = Spare(), Round()

    def schedule(now: int) -> int | None:
        began = context.clock.monotonic()
        step = scheduling_step(platform, now, spare.until)
        scaling_step(platform)
        if step.planned:
            took_s = context.clock.monotonic() - began
            spare.until = now + _us_of(min(took_s * _SPARED, _SPARED_S))
        return step.wake_at

    def drain(now: int) -> int | None:
        draining_step(platform, now)
        return None

    def dispatch(now: int) -> int | None:
        began = context.clock.monotonic()
        again_at = dispatch_step(platform, who, now, batch.size)
        batch.took(context.clock.monotonic() - began)
        return again_at

    def fire(now: int) -> int | None:
        return timers_step(platform, now)

    def poll(now: int) -> int | None:
        if now >= everybody.due:
            everybody.due = now + _us_of(ticks.poll_tick_s)
            watched = poll_step(platform, now)
        else:
            watched = poll_leaving_step(platform, now)
        soon = now + _us_of(ticks.leaving_tick_s)
        return min(soon, everybody.due) if watched.leaving else everybody.due

    retention = context.settings.retention
    sweep = Sweep(_us(retention.logs), _us(retention.metrics))

    def let_go(now: int) -> int | None:
        return now if retention_step(platform, sweep, now) else None

    return (
        Loop("scheduler", schedule, (QUEUE,), ticks.scheduler_tick_s, planner_rest_s),
        Loop("dispatcher", dispatch, (outbox.TOPIC,), ticks.dispatcher_tick_s),
        Loop("timers", fire, (TIMERS,), ticks.timers_tick_s),
        Loop("polling", poll, (LEAVING,), ticks.poll_tick_s),
        Loop("draining", drain, (), ticks.draining_tick_s),
        Loop("retention", let_go, (), retention.tick_s),
    )


def _us(age_s: float | None) -> int | None:
    return None if age_s is None else _us_of(age_s)


def _us_of(duration_s: float) -> int:
    return round(duration_s * 1e6)
