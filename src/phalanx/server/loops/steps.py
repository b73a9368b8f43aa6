"""The loops of a control plane: each is one service step with the topics that trigger it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from phalanx.executors.protocol import ChangeTeller
from phalanx.kit.text import random_hex
from phalanx.launch.tls.trust import client_context
from phalanx.server.context import Context
from phalanx.server.loops.log_senders import log_sender_loops
from phalanx.server.loops.notify import notify_loops
from phalanx.server.loops.runner import ServiceLoop
from phalanx.server.settings import LoopSettings
from phalanx.services.caches.study_cache import TRIAL_JOBS
from phalanx.services.cost.anomalies import anomalies_step
from phalanx.services.cost.budgets import budgets_step
from phalanx.services.cost.report import fold_step, storage_step
from phalanx.services.lifecycle.commit import LEAVING, QUEUE, TIMERS
from phalanx.services.lifecycle.dispatch import LeaseOwner, dispatch_step
from phalanx.services.lifecycle.polling import poll_changed_step, poll_leaving_step, poll_step
from phalanx.services.lifecycle.requests import timers_step
from phalanx.services.logs.packing import logs_step
from phalanx.services.metrics.folding import FoldingProgress, metrics_step
from phalanx.services.planning.draining import draining_step
from phalanx.services.planning.scaling import scaling_step
from phalanx.services.planning.scheduling import scheduling_step
from phalanx.services.platform import Platform
from phalanx.services.probes.pool_probes import probes_step
from phalanx.services.quotas.usage import quotas_step
from phalanx.services.resources.scaling import SCALING
from phalanx.services.retention.expired_data import RetentionProgress, retention_step
from phalanx.services.retention.expiry import ExpiryProgress, expiry_step
from phalanx.services.retention.log_quota import log_quota_step
from phalanx.services.retention.work import deletions_step
from phalanx.services.schedules.fire import schedules_step
from phalanx.services.studies.step import studies_step
from phalanx.services.studies.suggestions import suggestions_step
from phalanx.services.studies.target_checkpoints import TargetProgress, target_retention_step
from phalanx.services.timekeeping import Timekeeper
from phalanx.services.tracing.endpoint import OtlpEndpoint
from phalanx.services.tracing.export import ExportProgress, export_step
from phalanx.store import outbox
from phalanx.store.cost.budgets import BUDGETS
from phalanx.store.retention.deletions import DELETIONS
from phalanx.store.schedules.rows import SCHEDULES
from phalanx.store.studies.commands import STUDY_COMMANDS, SUGGESTIONS
from phalanx.store.studies.trial_reports import TRIAL_REPORTS

# A plan that took this long is followed by a pause of the same length.
_PLAN_S = 0.1
_MAX_PAUSE_FACTOR = 4.0
# After a plan, jobs that only join a blocked equivalence class cause no new plan for this many times the
# duration of the plan, up to the limit: in a long queue most arrivals are of that kind.
_SPARE_FACTOR, _MAX_SPARE_S = 20.0, 1.0
_FEW_COMMANDS, _MANY_COMMANDS = 16, 512
_STEP_S = 0.5
SUPERVISORS = "supervisors"
"""The topic that a pool publishes when the state of a supervisor may have changed there."""
# After a poll for changes, the next one waits for so many times its duration.
_REST_AFTER_TOLD = 4.0
CLOCK_TICK_S = 5.0
_BUDGETS_TICK_S = 30.0
# Beside the due times: a clock that is set forward is noticed after this time.
_SCHEDULES_TICK_S = 30.0
_PROBES_TICK_S = 15.0
_TRACES_TICK_S = 5.0


@dataclass(slots=True)
class DispatchBatch:
    """The number of commands that the dispatcher takes at a time.

    Results are stored when the whole batch is done, so it must not take long: the size doubles while
    batches are quick and halves when they are slow.
    """

    size: int = _FEW_COMMANDS

    def took(self, duration_s: float) -> None:
        """Adapt the size to the duration of the last step."""
        size = self.size * 2 if duration_s < _STEP_S else self.size // 2
        self.size = min(max(size, _FEW_COMMANDS), _MANY_COMMANDS)


def planner_pause_s(took_s: float) -> float:
    """The pause after a plan: short after a short plan, up to four times the duration of a long one.

    A plan costs nearly the same for one start as for hundreds. Without pauses, launches and reports
    would wait for the planner all the time.
    """
    return took_s * min(took_s / _PLAN_S, _MAX_PAUSE_FACTOR)


@dataclass(slots=True)
class _Scheduling:
    """Plans; for a while after a long plan, jobs that can only wait cause no new one.

    What a plan starts is stored without a pause after it: that time is spent on jobs, not on planning.
    """

    context: Context
    platform: Platform
    pause_until: int = 0
    plan_s: float = 0.0  # duration of the last plan

    def pause_s(self, took_s: float) -> float:
        """The pause after a step of this duration."""
        return planner_pause_s(min(took_s, self.plan_s))

    def step(self, now: int) -> int | None:
        began = self.context.clock.monotonic()
        self.plan_s = 0.0

        def planned() -> None:
            self.plan_s = self.context.clock.monotonic() - began

        step = scheduling_step(self.platform, now, self.pause_until, planned)
        if step.planned:
            self.pause_until = now + _us_of(min(self.plan_s * _SPARE_FACTOR, _MAX_SPARE_S))
        return step.wake_at


@dataclass(slots=True)
class _Dispatching:
    """Performs commands of the outbox, in batches."""

    context: Context
    platform: Platform
    owner: LeaseOwner
    batch: DispatchBatch = field(default_factory=DispatchBatch)

    def step(self, now: int) -> int | None:
        began = self.context.clock.monotonic()
        again_at = dispatch_step(self.platform, self.owner, now, self.batch.size)
        self.batch.took(self.context.clock.monotonic() - began)
        return again_at


@dataclass(slots=True)
class Polling:
    """Polls all supervisors at times, those that are expected to leave more often.

    Pools with a `ChangeTeller` are polled when something has changed there.
    """

    context: Context
    platform: Platform
    full_due: int = 0
    told_due: int = 0
    told: set[str] = field(default_factory=set)  # pools; filled by other threads

    def tell(self, pool: str) -> None:
        """Poll a pool soon. From any thread."""
        self.told.add(pool)
        self.context.notifier.publish((SUPERVISORS,))

    def step(self, now: int) -> int | None:
        """One step; returns when the next one is due."""
        ticks = self.context.settings.loops
        if now >= self.full_due:
            self.full_due = now + _us_of(ticks.poll_tick_s)
            self.told.clear()
            polled = poll_step(self.platform, now)
        else:
            if now >= self.told_due:
                self._poll_told(now)
            polled = poll_leaving_step(self.platform, now)
        due = [self.full_due]
        if polled.leaving:
            due.append(now + _us_of(ticks.leaving_tick_s))
        if self.told:
            due.append(self.told_due)
        return min(due)

    def _poll_told(self, now: int) -> None:
        """Poll what was told; in a storm of changes that takes a share of the time, not all of it."""
        pools = set()
        while self.told:
            pools.add(self.told.pop())
        if pools:
            began = self.context.clock.monotonic()
            poll_changed_step(self.platform, pools, now)
            took_s = self.context.clock.monotonic() - began
            self.told_due = now + _us_of(took_s * (1 + _REST_AFTER_TOLD))


def all_loops(context: Context, platform: Platform) -> tuple[ServiceLoop, ...]:
    """Clock, scheduler, dispatcher, timers, schedules, studies, polling, draining, scaling and retention.

    `platform` refuses writes without the lease where there are other replicas.
    """
    ticks, me = context.settings.loops, context.leadership.me
    owner = LeaseOwner(owner="embedded" if me is None else me.id, token=random_hex(16))
    schedule, polling = _Scheduling(context, platform), Polling(context, platform)
    if isinstance(platform.executor, ChangeTeller):
        platform.executor.tell(polling.tell)
    dispatch = _Dispatching(context, platform, owner).step

    def drain(now: int) -> int | None:
        draining_step(platform, now)
        return None

    def scale(now: int) -> int | None:
        scaling_step(platform, now)
        return None

    def spend(now: int) -> int | None:
        budgets_step(platform, now)
        fold_step(platform)
        quotas_step(platform, now)
        # With a part of a long time settled, other writers and the budgets come first.
        return now if storage_step(platform, now) else None

    return (
        ServiceLoop("clock", Timekeeper(platform.store, context.clock).step, (), CLOCK_TICK_S),
        ServiceLoop("scheduler", schedule.step, (QUEUE,), ticks.scheduler_tick_s, schedule.pause_s),
        ServiceLoop("dispatcher", dispatch, (outbox.TOPIC,), ticks.dispatcher_tick_s),
        ServiceLoop("timers", partial(timers_step, platform), (TIMERS,), ticks.timers_tick_s),
        ServiceLoop(
            "schedules", partial(schedules_step, platform), (SCHEDULES,), _SCHEDULES_TICK_S
        ),
        *_study_loops(platform, ticks),
        ServiceLoop("budgets", spend, (BUDGETS,), _BUDGETS_TICK_S),
        ServiceLoop("polling", polling.step, (LEAVING, SUPERVISORS), ticks.poll_tick_s),
        ServiceLoop("draining", drain, (), ticks.draining_tick_s),
        ServiceLoop("scaling", scale, (SCALING,), ticks.scaling_tick_s),
        _anomaly_loop(context, platform),
        _probes_loop(context, platform),
        _metrics_loop(platform, ticks),
        _logs_loop(platform, ticks),
        *_retention_loops(context, platform),
        *notify_loops(context, platform),
        *log_sender_loops(context, platform),
        *_trace_loops(context, platform),
    )


def _anomaly_loop(context: Context, platform: Platform) -> ServiceLoop:
    """Days that cost much more than expected."""
    settings = context.settings.cost
    config = settings.resolved()

    def judge(now: int) -> int | None:
        anomalies_step(platform, config, now)
        return None

    return ServiceLoop("cost anomalies", judge, (), settings.anomaly_tick_s, needed=False)


def _probes_loop(context: Context, platform: Platform) -> ServiceLoop:
    """Probe jobs of the pools."""
    config = context.settings.probes.resolved()

    def probe(now: int) -> int | None:
        probes_step(platform, config, now)
        return None

    return ServiceLoop("probes", probe, (), _PROBES_TICK_S, needed=False)


def _trace_loops(context: Context, platform: Platform) -> tuple[ServiceLoop, ...]:
    """Spans of jobs for an OpenTelemetry endpoint, where there is one."""
    config, progress = context.settings.traces.resolved(), ExportProgress()
    if not config.url:
        return ()
    endpoint = OtlpEndpoint(config, client_context(""))

    def export(now: int) -> int | None:
        return export_step(platform, endpoint.send, config.give_up_s, progress, now)

    return (ServiceLoop("traces", export, (), _TRACES_TICK_S, needed=False),)


def _metrics_loop(platform: Platform, ticks: LoopSettings) -> ServiceLoop:
    """Roll-ups of metrics."""

    progress = FoldingProgress()

    def fold(now: int) -> int | None:
        return now if metrics_step(platform, progress, now) else None

    return ServiceLoop("metrics", fold, (), ticks.metrics_tick_s, needed=False)


def _logs_loop(platform: Platform, ticks: LoopSettings) -> ServiceLoop:
    """Packing of output."""

    def pack(now: int) -> int | None:
        return now if logs_step(platform, now) else None

    return ServiceLoop("logs", pack, (), ticks.logs_tick_s, needed=False)


def _study_loops(platform: Platform, ticks: LoopSettings) -> tuple[ServiceLoop, ServiceLoop]:
    topics = (STUDY_COMMANDS, TRIAL_JOBS, TRIAL_REPORTS)
    suggest = partial(suggestions_step, platform)
    return (
        ServiceLoop("studies", partial(studies_step, platform), topics, ticks.timers_tick_s),
        ServiceLoop("suggestions", suggest, (SUGGESTIONS,), ticks.timers_tick_s),
    )


def _us_of(duration_s: float) -> int:
    return round(duration_s * 1e6)


def _retention_loops(context: Context, platform: Platform) -> tuple[ServiceLoop, ...]:
    """Expired data, checkpoints that trials made at their targets, and what is left of deleted jobs."""
    retention = context.settings.retention
    progress, targets, expiry = RetentionProgress(), TargetProgress(), ExpiryProgress()

    def expire(now: int) -> int | None:
        more = retention_step(platform, progress, now)
        more |= log_quota_step(platform, now)
        return now if expiry_step(platform, expiry, now) or more else None

    def expire_targets(now: int) -> int | None:
        return now if target_retention_step(platform, targets, now) else None

    return (
        ServiceLoop("retention", expire, (), retention.tick_s, needed=False),
        # On its own: a network disk that does not answer must not stop the other one.
        ServiceLoop("target checkpoints", expire_targets, (), retention.tick_s, needed=False),
        ServiceLoop(
            "deletions",
            partial(deletions_step, platform),
            (DELETIONS,),
            retention.tick_s,
            needed=False,
        ),
    )
