"""Cases of every alert: series of Prometheus, and the minutes at which the alert fires or stays silent.

Each alert fires, stays silent just below its condition, and resolves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from phalanx.core.alerts.table import BY_NAME


@dataclass(frozen=True, slots=True)
class AlertCase:
    """One input, and whether the alert fires at some minutes."""

    alert: str
    says: str  # fires, silent or resolves, and more words
    series: dict[str, str]
    firing: dict[int, bool]  # by minute
    interval_m: int = 1

    def __str__(self) -> str:
        return f"{self.alert}-{self.says}"


def held(*parts: tuple[float | str, int]) -> str:
    """Values of a series, each for so many samples."""
    return " ".join(f"{value}x{count - 1}" for value, count in parts if count)


def gauge(
    alert: str,
    series: str,
    bad: float,
    below: float,
    good: float,
    others: dict[str, str] | None = None,
) -> Iterator[AlertCase]:
    """A gauge that is bad for longer than the alert waits, is just not bad, or is bad too briefly."""
    one = BY_NAME[alert]
    hold, keep, rest = one.hold_s // 60, one.keep_s // 60, others or {}
    length = 3 + hold + 6
    values = held((good, 3), (bad, hold + 6), (good, keep + 60))
    at = 3 + hold + 2
    yield AlertCase(alert, "fires", {series: values, **rest}, {2: False, at: True})
    yield AlertCase(
        alert, "resolves", {series: values, **rest}, {at: True, length + keep + 10: False}
    )
    yield AlertCase(alert, "silent below", {series: held((below, at + 60)), **rest}, {at: False})
    if hold > 1:
        brief = held((good, 3), (bad, hold - 1), (good, 60))
        yield AlertCase(
            alert,
            "silent when it is brief",
            {series: brief, **rest},
            {minute: False for minute in (hold, hold + 2, hold + 3, hold + 8)},
        )


def counted(alert: str, series: str, count: int, window_m: int) -> Iterator[AlertCase]:
    """A counter that grows by so much at once, or by one less."""
    keep = BY_NAME[alert].keep_s // 60
    length = window_m + keep + 60
    values = held((0, 5), (count, length))
    over = 5 + window_m + keep + 5
    yield AlertCase(alert, "fires", {series: values}, {4: False, 7: True})
    yield AlertCase(alert, "resolves", {series: values}, {7: True, over: False})
    fewer = held((0, 5), (count - 1, length)) if count > 1 else held((7, length))
    yield AlertCase(alert, "silent below", {series: fewer}, dict.fromkeys((5, 6, 7, 9, 30), False))


_JOB = 'project="vision",phalanx_job="j-7"'
_ENDED = "phalanx_jobs_ended_total"


def _control_plane() -> Iterator[AlertCase]:
    for minute in (0, 60, 1440):
        yield AlertCase("PhalanxHeartbeat", f"fires at minute {minute}", {}, {minute: True})
    up = 'phalanx_build_info{version="1",instance="a"}'
    yield AlertCase("PhalanxDown", "fires", {up: held((1, 5))}, {4: False, 14: True})
    yield AlertCase("PhalanxDown", "resolves", {up: held(("_", 5), (1, 30))}, {3: True, 10: False})
    missed = held((1, 5), ("_", 3), (1, 20))
    yield AlertCase(
        "PhalanxDown",
        "silent while scrapes are missed",
        {up: missed},
        dict.fromkeys((5, 6, 7, 8, 9, 12), False),
    )
    other = {'phalanx_leader{instance="b"}': held((0, 90))}
    yield from gauge("PhalanxNoLeader", 'phalanx_leader{instance="a"}', 0, 1, 1, other)
    loop = 'phalanx_loop_idle_seconds{loop="scheduler",instance="a"}'
    yield from gauge("PhalanxLoopStuck", loop, 301, 300, 1)
    yield from gauge("PhalanxCommandsLate", "phalanx_commands_oldest_seconds", 301, 300, 0)
    yield from gauge(
        "PhalanxSeriesNotShown", 'phalanx_series_not_shown{level="rank",instance="a"}', 1, 0, 0
    )
    replicas = 'phalanx_replicas{instance="a"}'
    lost = held((3, 10), (2, 200))
    yield AlertCase("PhalanxReplicaLost", "fires", {replicas: lost}, {9: False, 25: True})
    yield AlertCase("PhalanxReplicaLost", "resolves", {replicas: lost}, {25: True, 90: False})
    more = held((2, 10), (3, 90))
    yield AlertCase("PhalanxReplicaLost", "silent below", {replicas: more}, {25: False, 60: False})


def _success() -> Iterator[AlertCase]:
    failed = f'{_ENDED}{{fault="platform",instance="a"}}'
    fine = f'{_ENDED}{{fault="none",instance="a"}}'
    running = 'phalanx_jobs{state="running",instance="a"}'
    yield from counted("PhalanxJobFailureCascade", failed, 3, 10)
    share = {failed: held((4, 5), (6, 90)), running: held((8, 95))}
    yield AlertCase("PhalanxJobFailureCascade", "fires at a fifth", share, {4: False, 7: True})
    fewer = share | {running: held((9, 95))}
    yield AlertCase("PhalanxJobFailureCascade", "silent below a fifth", fewer, {7: False})
    users = {f'{_ENDED}{{fault="user",instance="a"}}': held((0, 5), (50, 90))}
    yield AlertCase("PhalanxJobFailureCascade", "silent for failures of scripts", users, {7: False})

    fast = "PhalanxErrorBudgetBurnsFast"
    steady = f"0+1x{12 * 60}"
    burning = {failed: held((0, 60)) + " " + f"1+1x{60} " + held((61, 600)), fine: steady}
    yield AlertCase(fast, "fires", burning, {59: False, 80: True})
    yield AlertCase(fast, "resolves", burning, {120: True, 180: False})
    below = {failed: f"0+0.06x{12 * 60}", fine: f"0+1x{12 * 60}"}  # 5.7 %, and 6 % fires
    yield AlertCase(fast, "silent below", below, dict.fromkeys((60, 200, 400, 700), False))
    quiet = {failed: held((0, 60), (1, 600)), fine: held((9, 660))}
    yield AlertCase(
        fast,
        "silent for one failure in a quiet hour",
        quiet,
        dict.fromkeys((60, 61, 62, 64, 70, 120), False),
    )

    slow = "PhalanxErrorBudgetBurnsSlowly"
    # One sample in ten minutes: 2 % of the jobs fail for three days, and then none.
    failing = {failed: "0+0.2x432 " + held((86.4, 300)), fine: "0+10x732"}
    yield AlertCase(slow, "fires", failing, {0: False, 4310: True}, interval_m=10)
    yield AlertCase(slow, "resolves", failing, {4310: True, 4310 + 720: False}, interval_m=10)
    less = {failed: "0+0.09x432", fine: "0+10x432"}
    yield AlertCase(slow, "silent below", less, {1440: False, 4310: False}, interval_m=10)


def _checkpoints() -> Iterator[AlertCase]:
    lost = 'phalanx_checkpoints_total{outcome="quarantined",instance="a"}'
    yield from counted("PhalanxCheckpointQuarantined", lost, 1, 30)
    resumes = 'phalanx_resumes_total{outcome="failed",instance="a"}'
    yield from counted("PhalanxResumeFailed", resumes, 1, 30)
    saves = 'phalanx_save_failures_total{save="final",instance="a"}'
    yield from counted("PhalanxSavesFail", saves, 3, 60)
    copies = 'phalanx_checkpoint_copies_total{outcome="failed",instance="a"}'
    yield from counted("PhalanxCheckpointCopiesFail", copies, 3, 60)
    age = f'phalanx_job_checkpoint_age_seconds{{{_JOB},instance="a"}}'
    every = {f'phalanx_job_checkpoint_interval_seconds{{{_JOB},instance="a"}}': held((600, 99))}
    yield from gauge("PhalanxCheckpointOverdue", age, 1801, 1800, 10, every)
    short = {f'phalanx_job_checkpoint_interval_seconds{{{_JOB},instance="a"}}': held((5, 99))}
    yield AlertCase(
        "PhalanxCheckpointOverdue",
        "silent for ten minutes of short intervals",
        {age: held((600, 99)), **short},
        {30: False},
    )


def _jobs() -> Iterator[AlertCase]:
    yield from counted(
        "PhalanxStartsFail",
        'phalanx_start_failures_total{cause="start_failed",instance="a"}',
        3,
        30,
    )
    yield from counted(
        "PhalanxRanksDoNotMatch", 'phalanx_preflight_failures_total{instance="a"}', 3, 60
    )
    placed = 'phalanx_attempts_total{instance="a"}'
    begun = 'phalanx_start_seconds_count{instance="a"}'
    name = "PhalanxGangsDoNotForm"
    bad = {placed: held((0, 5), (5, 200)), begun: held((0, 5), (2, 200))}
    yield AlertCase(name, "fires", bad, {10: False, 20: True})
    yield AlertCase(name, "resolves", bad, {20: True, 90: False})
    half = {placed: held((0, 5), (6, 200)), begun: held((0, 5), (3, 200))}
    yield AlertCase(name, "silent at half", half, {20: False})
    few = {placed: held((0, 5), (4, 200)), begun: held((0, 205))}
    yield AlertCase(name, "silent for few", few, {20: False})

    slow = f'straggler_score{{{_JOB},rank="3",instance="a"}}'
    rest = {f'straggler_score{{{_JOB},rank="0",instance="a"}}': held((1, 200))}
    yield from gauge("PhalanxStragglers", slow, 0.74, 0.75, 1, rest)
    split = rest | {f'batch_share{{{_JOB},rank="3",instance="a"}}': held((0.1, 200))}
    yield AlertCase(
        "PhalanxStragglers",
        "silent where batches are split by speed",
        {slow: held((0.5, 200)), **split},
        {60: False},
    )
    yield from counted("PhalanxGangsStall", 'phalanx_stalls_total{instance="a"}', 3, 60)
    diverged = 'phalanx_failures_total{cause="diverged",instance="a"}'
    yield from counted("PhalanxTrainingDiverges", diverged, 3, 60)
    yield from counted(
        "PhalanxTrainingDiverges",
        'phalanx_guard_actions_total{action="rollback",instance="a"}',
        10,
        60,
    )
    yield from counted("PhalanxOutOfMemory", 'phalanx_oom_kills_total{instance="a"}', 3, 60)
    preempted = 'phalanx_preemptions_total{cause="preempted",instance="a"}'
    yield from counted("PhalanxPreemptionStorm", preempted, 10, 60)
    yield from counted("PhalanxStopsOverdue", 'phalanx_stops_overdue_total{instance="a"}', 3, 60)
    yield from counted("PhalanxNodesLost", 'phalanx_nodes_lost_total{instance="a"}', 3, 60)

    most = f'training_samples_total{{{_JOB},rank="0",instance="a"}}'
    least = f'training_samples_total{{{_JOB},rank="1",instance="a"}}'
    skewed = {most: "0+160x60 9600+100x90", least: "0+100x150"}
    yield AlertCase("PhalanxDataSkew", "fires", skewed, {10: False, 50: True})
    yield AlertCase("PhalanxDataSkew", "resolves", skewed, {50: True, 90: False})
    even = {most: "0+149x60", least: "0+100x60"}
    yield AlertCase("PhalanxDataSkew", "silent below", even, {50: False})
    meant = skewed | {f'batch_share{{{_JOB},rank="0",instance="a"}}': held((0.6, 150))}
    yield AlertCase(
        "PhalanxDataSkew", "silent where batches are split by speed", meant, {50: False}
    )
    waits = f'data_wait_fraction{{{_JOB},rank="0",instance="a"}}'
    yield from gauge("PhalanxDataStarvation", waits, 0.31, 0.3, 0.05)

    rate = f'training_samples_total{{{_JOB},rank="0",instance="a"}}'
    # One sample in ten minutes: 20 hours at 1,000, then 3 at less, then at 1,000 again.
    slower = {rate: "0+1000x120 120000+600x30 138000+1000x40"}
    yield AlertCase("PhalanxThroughputDrop", "fires", slower, {1200: False, 1400: True}, 10)
    yield AlertCase("PhalanxThroughputDrop", "resolves", slower, {1400: True, 1700: False}, 10)
    little = {rate: "0+1000x120 120000+850x60"}
    yield AlertCase("PhalanxThroughputDrop", "silent below", little, {1400: False, 1700: False}, 10)


def _resources() -> Iterator[AlertCase]:
    yield from gauge(
        "PhalanxGuaranteeNotMet", 'phalanx_guaranteed_waiting_jobs{instance="a"}', 1, 0, 0
    )
    pool = '{pool="gpu",instance="a"}'
    waiting = f"phalanx_pool_waiting_jobs{pool}"
    full = {waiting: held((2, 600))}
    yield from gauge("PhalanxPoolExhausted", f"phalanx_pool_slots_free{pool}", 0, 1, 4, full)
    free = full | {f"phalanx_pool_slots_free{pool}": held((16, 600))}
    yield from gauge(
        "PhalanxPoolFragmented", f"phalanx_pool_largest_free_slots{pool}", 3, 4, 8, free
    )
    yield from gauge("PhalanxProbesFail", f"phalanx_probe_success{pool}", 0, 1, 1)
    yield from gauge("PhalanxProbesLate", f"phalanx_probe_open_seconds{pool}", 601, 600, 0, free)
    yield from gauge(
        "PhalanxNodesNotProvided", f"phalanx_scaling_gangs_without_nodes{pool}", 1, 0, 0
    )
    yield from gauge("PhalanxQueueWait", "phalanx_queue_oldest_seconds", 43_201, 43_200, 5)
    nodes = 'phalanx_pool_nodes{pool="gpu",state="quarantined",instance="a"}'
    yield from gauge("PhalanxNodesQuarantined", nodes, 1, 0, 0)
    yield from gauge("PhalanxDevicesUnhealthy", f"phalanx_pool_unhealthy_devices{pool}", 1, 0, 0)
    yield from gauge(
        "PhalanxCostAnomaly", 'phalanx_cost_anomalies{state="open",instance="a"}', 1, 0, 0
    )


def _limits() -> Iterator[AlertCase]:
    quota = '{project="vision",user="",slot_type="",unit="slots",instance="a"}'
    most = {f"phalanx_quota_limit{quota}": held((100, 200))}
    used = f"phalanx_quota_used{quota}"
    yield from gauge("PhalanxQuotaNearlyUsed", used, 90, 89, 10, most)
    none = {f"phalanx_quota_limit{quota}": held((0, 200)), used: held((0, 200))}
    yield AlertCase("PhalanxQuotaNearlyUsed", "silent for a quota of nothing", none, {60: False})
    spent = 'phalanx_budget_used_ratio{scope="project",name="vision",instance="a"}'
    yield from gauge("PhalanxBudgetNearlySpent", spent, 0.9, 0.89, 0.2)
    over = {spent: held((1, 90))}
    yield AlertCase("PhalanxBudgetNearlySpent", "silent once it is spent", over, {60: False})
    yield from gauge("PhalanxBudgetSpent", spent, 1, 0.99, 0.2)
    full = {'phalanx_log_quota_bytes{instance="a"}': held((1000, 300))}
    stored = 'phalanx_log_stored_bytes{instance="a"}'
    yield from gauge("PhalanxLogQuotaReached", stored, 950, 949, 100, full)
    lag = 'phalanx_log_sender_lag_seconds{sender="loki",instance="a"}'
    yield from gauge("PhalanxLogSenderLate", lag, 901, 900, 5)


CASES: tuple[AlertCase, ...] = (
    *_control_plane(),
    *_success(),
    *_checkpoints(),
    *_jobs(),
    *_resources(),
    *_limits(),
)
