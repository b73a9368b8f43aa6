"""Every alert of the platform: rules and routing are made of `ALERTS`; runbooks and tests are compared.

A new alert is an entry here, a page in `docs/runbooks`, and its cases in `tests/support/alert_cases.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from phalanx.core.alerts.conditions import (
    HOUR_S,
    MINUTE_S,
    AllOf,
    AnyOf,
    Compare,
    Condition,
    Plus,
    Query,
    Ratio,
    Reading,
    Times,
    Unless,
    Value,
    burns,
)

SUCCESS_TARGET = 0.99
"""Share of the jobs of the platform that must not fail because of it."""


class Severity(StrEnum):
    """What an alert asks for."""

    PAGE = "page"  # a human, now
    TICKET = "ticket"  # a human, on a working day
    NONE = "none"  # nothing: it only says that alerts arrive


class FailureMode(StrEnum):
    """The kinds of failures that training jobs have; `NONE`: of the platform itself."""

    START = "F1"
    STRAGGLER = "F2"
    NETWORK = "F3"
    CHECKPOINT = "F4"
    DIVERGENCE = "F5"
    MEMORY = "F6"
    PREEMPTION = "F7"
    CONTENTION = "F8"
    TOPOLOGY = "F9"
    DATA = "F10"
    NONE = ""


MODE_MEANINGS: Mapping[FailureMode, str] = {
    FailureMode.START: "crash on start: an image, a mount, a secret or a variable is missing",
    FailureMode.STRAGGLER: "straggler: one rank is slow",
    FailureMode.NETWORK: "network: a collective does not end",
    FailureMode.CHECKPOINT: "checkpoints are late, lost or damaged",
    FailureMode.DIVERGENCE: "the loss is not finite, or rises",
    FailureMode.MEMORY: "out of memory",
    FailureMode.PREEMPTION: "slots are taken away: preemptions, lost nodes",
    FailureMode.CONTENTION: "contention: too few resources, or broken ones",
    FailureMode.TOPOLOGY: "wrong topology: ranks do not find one another",
    FailureMode.DATA: "data is uneven, or late",
}
"""One line for each failure mode of jobs."""


class AlertScreen(StrEnum):
    """The dashboard that an alert leads to."""

    EXECUTIVE = "executive"
    ON_CALL = "on-call"
    DEBUG = "debug"
    TRAINING = "training"
    DEVICES = "devices"
    CONTROL_PLANE = "control-plane"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. In `summary`, `{value}` and `{label}` stand for the value and the labels of a firing one.

    `{value:seconds}` and `{value:percent}` are a duration and a share.
    """

    name: str  # unique, and the name of its runbook
    severity: Severity  # page, ticket or none
    condition: Condition  # its labels are those of the firing alert
    summary: str  # one line with numbers
    meaning: str  # why it matters, one or two sentences
    screen: AlertScreen = AlertScreen.ON_CALL  # the dashboard to open first
    mode: FailureMode = FailureMode.NONE  # what fails
    hold_s: int = 0  # fires once the condition has held for so long
    keep_s: int = 0  # goes on firing for so long after the condition


_JOB = ("project", "phalanx_job")
_QUICK_KEEP = 15 * MINUTE_S  # for what is counted: the window is over before a human looks


def _now(
    name: str, by: tuple[str, ...] = (), where: Mapping[str, str] | None = None, how: str = "sum"
) -> Reading:
    return Reading(name, by, tuple((where or {}).items()), how=how)


def _grown(
    name: str, window_s: int, where: Mapping[str, str] | None = None, by: tuple[str, ...] = ()
) -> Reading:
    return Reading(name, by, tuple((where or {}).items()), window_s)


def _at_least(
    count: int, name: str, window_s: int, where: Mapping[str, str] | None = None
) -> Compare:
    return Compare(_grown(name, window_s, where), ">=", count)


def _failed(window_s: int) -> Reading:
    return _grown("phalanx_jobs_ended_total", window_s, {"fault": "platform"})


def _ended(window_s: int) -> Reading:
    """Ended jobs that were not cancelled."""
    return _grown("phalanx_jobs_ended_total", window_s, {"fault": "none|platform|user"})


def _burning(*, pages: bool) -> Condition:
    def exact(of: Callable[[int], Reading]) -> Callable[[int], Value]:
        return lambda window_s: replace(of(window_s), whole=False)

    found = burns(exact(_failed), exact(_ended), SUCCESS_TARGET, pages=pages)
    assert found is not None  # the objective above leaves windows of both kinds
    return found


def _samples(window_s: int, how: str) -> Reading:
    """Samples of the ranks of a job within a window, combined over its ranks."""
    return Reading("training_samples_total", _JOB, window_s=window_s, how=how, whole=False)


#: Batches are split by the measured speed of the ranks: uneven ranks are what the user asked for.
_SPLIT = _now("batch_share", _JOB)
_QUOTA = ("project", "user", "slot_type", "unit")
_BUDGET = ("scope", "name")
_SPENT = _now("phalanx_budget_used_ratio", _BUDGET, how="max")
_RUNNING = _now("phalanx_jobs", where={"state": "starting|running|recovering|stopping"})
_AGE = _now("phalanx_job_checkpoint_age_seconds", _JOB)
_INTERVAL = _now("phalanx_job_checkpoint_interval_seconds", _JOB)

CONTROL_PLANE = (
    Alert(
        "PhalanxHeartbeat",
        Severity.NONE,
        Query("vector(1)"),
        "Alerts of Phalanx are evaluated and delivered",
        "It always fires. Send it to a service that calls when it stops: then Prometheus or Alertmanager "
        "is down, and no other alert can arrive.",
        AlertScreen.CONTROL_PLANE,
    ),
    Alert(
        "PhalanxDown",
        Severity.PAGE,
        Query("absent(phalanx_build_info)"),
        "No control plane of Phalanx is scraped",
        "No control plane answers the scrapes. Running jobs go on; submissions, recovery from failures and "
        "all other alerts do not.",
        AlertScreen.CONTROL_PLANE,
        hold_s=2 * MINUTE_S,
    ),
    Alert(
        "PhalanxNoLeader",
        Severity.PAGE,
        Compare(_now("phalanx_leader", how="max"), "==", 0),
        "Control planes answer, and none of them is the leader",
        "The leader runs the loops: without it no job is placed, restarted or stopped.",
        AlertScreen.CONTROL_PLANE,
        hold_s=2 * MINUTE_S,
    ),
    Alert(
        "PhalanxLoopStuck",
        Severity.PAGE,
        Compare(
            _now(
                "phalanx_loop_idle_seconds",
                ("loop",),
                {"loop": "clock|dispatcher|polling|scheduler|timers"},
                how="max",
            ),
            ">",
            300,
        ),
        "The loop {loop} has made no step for {value:seconds}",
        "A loop of the leader waits for something that does not answer, such as a database or a cluster. "
        "What it does for jobs does not happen meanwhile.",
        AlertScreen.CONTROL_PLANE,
        hold_s=MINUTE_S,
    ),
    Alert(
        "PhalanxCommandsLate",
        Severity.PAGE,
        Compare(_now("phalanx_commands_oldest_seconds", how="max"), ">", 300),
        "The oldest command to an executor is {value:seconds} old",
        "Commands to start and stop gangs wait. An executor does not answer, or answers slowly.",
        AlertScreen.CONTROL_PLANE,
        hold_s=MINUTE_S,
    ),
    Alert(
        "PhalanxReplicaLost",
        Severity.TICKET,
        Query(
            "max without (instance, pod) (phalanx_replicas) < "
            "max without (instance, pod) (max_over_time(phalanx_replicas[1h]))"
        ),
        "{value} control planes live, fewer than within the last hour",
        "A replica of the control plane has ended. The others serve; the next loss may be the last one.",
        AlertScreen.CONTROL_PLANE,
        hold_s=10 * MINUTE_S,
    ),
    Alert(
        "PhalanxSeriesNotShown",
        Severity.TICKET,
        Compare(_now("phalanx_series_not_shown", how="sum"), ">", 0),
        "{value} series of live jobs are left out of the scrape",
        "The limit of series is reached: alerts and dashboards do not see the jobs and ranks that are "
        "left out.",
        AlertScreen.CONTROL_PLANE,
        hold_s=30 * MINUTE_S,
    ),
)

SUCCESS = (
    Alert(
        "PhalanxJobFailureCascade",
        Severity.PAGE,
        AnyOf(
            (
                _at_least(3, "phalanx_jobs_ended_total", 10 * MINUTE_S, {"fault": "platform"}),
                AllOf(
                    (
                        _at_least(
                            2, "phalanx_jobs_ended_total", 10 * MINUTE_S, {"fault": "platform"}
                        ),
                        Compare(
                            Ratio(_failed(10 * MINUTE_S), Plus(_failed(10 * MINUTE_S), _RUNNING)),
                            ">=",
                            0.2,
                        ),
                    )
                ),
            )
        ),
        "{value} jobs have failed because of the platform in 10 minutes",
        "Jobs fail together for a cause outside of their scripts: at least three, or two that are a "
        "fifth of those that ran. More will follow while the cause lasts.",
        keep_s=_QUICK_KEEP,
    ),
    Alert(
        "PhalanxErrorBudgetBurnsFast",
        Severity.PAGE,
        _burning(pages=True),
        "{value:percent} of the jobs that ended failed because of the platform",
        "The error budget of job success, 1 % in 30 days, is spent within days: 2 % of it within an "
        "hour, or 5 % within six.",
        AlertScreen.EXECUTIVE,
        keep_s=_QUICK_KEEP,
    ),
    Alert(
        "PhalanxErrorBudgetBurnsSlowly",
        Severity.TICKET,
        _burning(pages=False),
        "{value:percent} of the jobs that ended failed because of the platform",
        "The error budget of job success is spent before its 30 days are over, without an outage.",
        AlertScreen.EXECUTIVE,
        keep_s=HOUR_S,
    ),
)

CHECKPOINTS = (
    Alert(
        "PhalanxCheckpointQuarantined",
        Severity.PAGE,
        _at_least(1, "phalanx_checkpoints_total", 30 * MINUTE_S, {"outcome": "quarantined"}),
        "{value} checkpoints did not verify within 30 minutes",
        "A checkpoint was damaged after it was committed. Where the storage is the cause, others are "
        "damaged too.",
        mode=FailureMode.CHECKPOINT,
        keep_s=_QUICK_KEEP,
    ),
    Alert(
        "PhalanxCheckpointOverdue",
        Severity.PAGE,
        AllOf((Compare(_AGE, ">", Times(3.0, _INTERVAL)), Compare(_AGE, ">", 600))),
        "{phalanx_job} of {project} has no new checkpoint for {value:seconds}, more than 3 intervals",
        "The job trains, and a failure now would cost all steps since its last checkpoint.",
        AlertScreen.TRAINING,
        FailureMode.CHECKPOINT,
        hold_s=5 * MINUTE_S,
    ),
    Alert(
        "PhalanxResumeFailed",
        Severity.PAGE,
        _at_least(1, "phalanx_resumes_total", 30 * MINUTE_S, {"outcome": "failed"}),
        "{value} resumes found no checkpoint within 30 minutes",
        "Jobs with committed checkpoints do not find them. They wait and fail rather than begin anew.",
        mode=FailureMode.CHECKPOINT,
        keep_s=_QUICK_KEEP,
    ),
    Alert(
        "PhalanxSavesFail",
        Severity.TICKET,
        _at_least(3, "phalanx_save_failures_total", HOUR_S),
        "{value} saves have failed within an hour",
        "Checkpoints are not stored: a failure would cost the steps since the last one that is.",
        mode=FailureMode.CHECKPOINT,
    ),
    Alert(
        "PhalanxCheckpointCopiesFail",
        Severity.TICKET,
        _at_least(3, "phalanx_checkpoint_copies_total", HOUR_S, {"outcome": "failed"}),
        "{value} copies of checkpoints to object stores have failed within an hour",
        "Checkpoints exist on their nodes only: the loss of a node would lose them.",
        mode=FailureMode.CHECKPOINT,
    ),
)

JOBS = (
    Alert(
        "PhalanxStartsFail",
        Severity.TICKET,
        _at_least(3, "phalanx_start_failures_total", 30 * MINUTE_S),
        "{value} starts of supervisors or ranks have failed within 30 minutes",
        "Gangs end before their first step: an image, a mount, a secret or a variable is missing, or a "
        "check before the start fails.",
        mode=FailureMode.START,
    ),
    Alert(
        "PhalanxGangsDoNotForm",
        Severity.TICKET,
        AllOf(
            (
                Compare(
                    Ratio(
                        _grown("phalanx_start_seconds_count", HOUR_S),
                        _grown("phalanx_attempts_total", HOUR_S),
                    ),
                    "<",
                    0.5,
                ),
                _at_least(5, "phalanx_attempts_total", HOUR_S),
            )
        ),
        "Only {value:percent} of the placements of the last hour reached a gang with all ranks",
        "Gangs are placed, and their ranks do not meet: wrong addresses, ports, host files or versions.",
        mode=FailureMode.TOPOLOGY,
        hold_s=10 * MINUTE_S,
    ),
    Alert(
        "PhalanxRanksDoNotMatch",
        Severity.TICKET,
        _at_least(3, "phalanx_preflight_failures_total", HOUR_S),
        "{value} gangs had ranks that do not fit together within an hour",
        "The check before the first step found ranks with other versions, used twice, missing, or on nodes "
        "that do not reach one another.",
        AlertScreen.DEBUG,
        FailureMode.TOPOLOGY,
    ),
    Alert(
        "PhalanxStragglers",
        Severity.TICKET,
        Unless(Compare(_now("straggler_score", _JOB, how="min"), "<", 0.75), _SPLIT),
        "The slowest rank of {phalanx_job} of {project} computes at {value:percent} of the fastest",
        "A gang is as fast as its slowest rank: the other ranks wait for it in every step.",
        AlertScreen.DEBUG,
        FailureMode.STRAGGLER,
        hold_s=30 * MINUTE_S,
    ),
    Alert(
        "PhalanxGangsStall",
        Severity.TICKET,
        _at_least(3, "phalanx_stalls_total", HOUR_S),
        "{value} generations made no step within an hour although they ran",
        "Ranks wait in a collective that does not end: a network or a node is in trouble, or a script "
        "has a deadlock.",
        AlertScreen.DEBUG,
        FailureMode.NETWORK,
    ),
    Alert(
        "PhalanxTrainingDiverges",
        Severity.TICKET,
        AnyOf(
            (
                _at_least(3, "phalanx_failures_total", HOUR_S, {"cause": "diverged"}),
                _at_least(10, "phalanx_guard_actions_total", HOUR_S, {"action": "rollback|stop"}),
            )
        ),
        "{value} generations diverged, or were rolled back, within an hour",
        "Losses are not finite or rise. One job is a matter of its script; several at once point to "
        "data, a library or a device.",
        AlertScreen.TRAINING,
        FailureMode.DIVERGENCE,
    ),
    Alert(
        "PhalanxOutOfMemory",
        Severity.TICKET,
        _at_least(3, "phalanx_oom_kills_total", HOUR_S),
        "{value} failures within an hour because memory was exhausted",
        "Ranks need more memory than their slots have, or something else on the nodes uses it.",
        AlertScreen.DEBUG,
        FailureMode.MEMORY,
    ),
    Alert(
        "PhalanxPreemptionStorm",
        Severity.TICKET,
        _at_least(10, "phalanx_preemptions_total", HOUR_S, {"cause": "preempted"}),
        "{value} jobs had to leave their slots for others within an hour",
        "Jobs spend their time with saving and starting. Each preemption costs the steps since the last "
        "save and a start.",
        mode=FailureMode.PREEMPTION,
    ),
    Alert(
        "PhalanxStopsOverdue",
        Severity.TICKET,
        _at_least(3, "phalanx_stops_overdue_total", HOUR_S),
        "{value} stops were not followed in time within an hour",
        "Ranks do not save and exit within their grace: they are killed, and the steps since their last "
        "checkpoint are lost.",
        mode=FailureMode.PREEMPTION,
    ),
    Alert(
        "PhalanxNodesLost",
        Severity.TICKET,
        _at_least(3, "phalanx_nodes_lost_total", HOUR_S),
        "{value} supervisors died with their ranks within an hour",
        "Machines or pods disappear: hardware, an eviction, or the end of spot capacity.",
        mode=FailureMode.PREEMPTION,
    ),
    Alert(
        "PhalanxDataSkew",
        Severity.TICKET,
        Unless(
            Compare(
                Ratio(_samples(15 * MINUTE_S, "max"), _samples(15 * MINUTE_S, "min")), ">", 1.5
            ),
            _SPLIT,
        ),
        "One rank of {phalanx_job} of {project} trains on {value} times as many samples as another",
        "The shares of the ranks differ though batches are not split by speed: ranks with short shares "
        "wait, and the gradient has a bias.",
        AlertScreen.DEBUG,
        FailureMode.DATA,
        hold_s=30 * MINUTE_S,
    ),
    Alert(
        "PhalanxDataStarvation",
        Severity.TICKET,
        Compare(_now("data_wait_fraction", _JOB, how="avg"), ">", 0.3),
        "The ranks of {phalanx_job} of {project} wait for data {value:percent} of the time",
        "Slots are paid for and wait for the loader.",
        AlertScreen.TRAINING,
        FailureMode.DATA,
        hold_s=30 * MINUTE_S,
    ),
    Alert(
        "PhalanxThroughputDrop",
        Severity.TICKET,
        Compare(
            Ratio(Times(24.0, _samples(HOUR_S, "sum")), _samples(24 * HOUR_S, "sum")), "<", 0.8
        ),
        "{phalanx_job} of {project} trains at {value:percent} of its speed of the last 24 hours",
        "The job has become slower by a fifth or more, and has not failed.",
        AlertScreen.TRAINING,
        FailureMode.CONTENTION,
        hold_s=HOUR_S,
    ),
)

RESOURCES = (
    Alert(
        "PhalanxGuaranteeNotMet",
        Severity.PAGE,
        Compare(_now("phalanx_guaranteed_waiting_jobs", how="max"), ">", 0),
        "{value} queued jobs wait within the guarantee of their projects",
        "A project does not get the slots that it was promised: the pools are exhausted, or slots are "
        "broken.",
        mode=FailureMode.CONTENTION,
        hold_s=30 * MINUTE_S,
    ),
    Alert(
        "PhalanxPoolExhausted",
        Severity.TICKET,
        AllOf(
            (
                Compare(_now("phalanx_pool_waiting_jobs", ("pool",), how="max"), ">", 0),
                Compare(_now("phalanx_pool_slots_free", ("pool",), how="max"), "==", 0),
            )
        ),
        "{value} jobs wait for the pool {pool}, which has had no free slot for 6 hours",
        "Demand is above the capacity of the pool, for longer than a busy hour.",
        mode=FailureMode.CONTENTION,
        hold_s=6 * HOUR_S,
    ),
    Alert(
        "PhalanxProbesFail",
        Severity.PAGE,
        Compare(_now("phalanx_probe_success", ("pool",), how="max"), "==", 0),
        "Probe jobs of the pool {pool} have failed for half an hour",
        "The platform's own small jobs fail there, on free slots: jobs of users do as well.",
        mode=FailureMode.START,
        hold_s=30 * MINUTE_S,
    ),
    Alert(
        "PhalanxProbesLate",
        Severity.TICKET,
        AllOf(
            (
                Compare(_now("phalanx_probe_open_seconds", ("pool",), how="max"), ">", 600),
                Compare(_now("phalanx_pool_slots_free", ("pool",), how="max"), ">", 0),
            )
        ),
        "A probe job of the pool {pool} has not ended for {value:seconds}, and slots are free",
        "A job of one slot and some seconds does not start, or does not end, and nothing is in its way.",
        mode=FailureMode.CONTENTION,
        hold_s=5 * MINUTE_S,
    ),
    Alert(
        "PhalanxPoolFragmented",
        Severity.TICKET,
        AllOf(
            (
                Compare(_now("phalanx_pool_waiting_jobs", ("pool",), how="max"), ">", 0),
                Compare(
                    Ratio(
                        _now("phalanx_pool_largest_free_slots", ("pool",), how="max"),
                        _now("phalanx_pool_slots_free", ("pool",), how="max"),
                    ),
                    "<",
                    0.25,
                ),
            )
        ),
        "{value} jobs wait for the pool {pool}, where free slots are scattered over the nodes",
        "Slots are free, and no node has enough of them for the gangs that wait.",
        mode=FailureMode.CONTENTION,
        hold_s=HOUR_S,
    ),
    Alert(
        "PhalanxNodesNotProvided",
        Severity.TICKET,
        Compare(_now("phalanx_scaling_gangs_without_nodes", ("pool",), how="max"), ">", 0),
        "{value} gangs wait for nodes that the cluster of the pool {pool} did not provide",
        "The pool may grow, and its cluster refuses or does not answer: capacity, a quota of the "
        "provider, or a "
        "budget.",
        mode=FailureMode.CONTENTION,
        hold_s=15 * MINUTE_S,
    ),
    Alert(
        "PhalanxQueueWait",
        Severity.TICKET,
        Compare(_now("phalanx_queue_oldest_seconds", how="max"), ">", 12 * HOUR_S),
        "The oldest queued job has waited for {value:seconds}",
        "A job waits for longer than half a day: a quota, a shape that fits nowhere, or too few slots.",
        mode=FailureMode.CONTENTION,
        hold_s=10 * MINUTE_S,
    ),
    Alert(
        "PhalanxNodesQuarantined",
        Severity.TICKET,
        Compare(_now("phalanx_pool_nodes", ("pool",), {"state": "quarantined"}, how="max"), ">", 0),
        "{value} nodes of the pool {pool} are quarantined",
        "Nodes failed again and again, and get no more jobs until they have been looked at.",
        AlertScreen.DEVICES,
        FailureMode.CONTENTION,
        hold_s=15 * MINUTE_S,
    ),
    Alert(
        "PhalanxDevicesUnhealthy",
        Severity.TICKET,
        Compare(_now("phalanx_pool_unhealthy_devices", ("pool",), how="max"), ">", 0),
        "{value} devices of the pool {pool} are not offered",
        "Accelerators are broken or closed: the pool has fewer slots than it seems.",
        AlertScreen.DEVICES,
        FailureMode.CONTENTION,
        hold_s=15 * MINUTE_S,
    ),
    Alert(
        "PhalanxCostAnomaly",
        Severity.TICKET,
        Compare(_now("phalanx_cost_anomalies", where={"state": "open"}, how="max"), ">", 0),
        "{value} groups of jobs cost much more than expected",
        "Days of a project, a user, a pool or a label cost much more than days like it did before.",
        AlertScreen.EXECUTIVE,
    ),
)

LIMITS = (
    Alert(
        "PhalanxQuotaNearlyUsed",
        Severity.TICKET,
        Compare(
            Ratio(
                _now("phalanx_quota_used", _QUOTA, how="max"),
                _now("phalanx_quota_limit", _QUOTA, how="max"),
            ),
            ">=",
            0.9,
        ),
        "{value:percent} of a quota of {project} {user} are used ({slot_type} {unit})",
        "Further jobs of the project or user wait although slots are free.",
        AlertScreen.CONTROL_PLANE,
        FailureMode.CONTENTION,
        hold_s=10 * MINUTE_S,
    ),
    Alert(
        "PhalanxBudgetNearlySpent",
        Severity.TICKET,
        AllOf((Compare(_SPENT, ">=", 0.9), Compare(_SPENT, "<", 1))),
        "{value:percent} of the budget of {scope} {name} are spent",
        "Once it is spent no job of it starts, and beyond its limit for pauses running jobs pause.",
        AlertScreen.EXECUTIVE,
    ),
    Alert(
        "PhalanxBudgetSpent",
        Severity.TICKET,
        Compare(_SPENT, ">=", 1),
        "The budget of {scope} {name} is spent: {value:percent}",
        "No job of it starts until the budget is raised or its period ends.",
        AlertScreen.EXECUTIVE,
    ),
    Alert(
        "PhalanxLogQuotaReached",
        Severity.TICKET,
        Compare(
            Ratio(
                _now("phalanx_log_stored_bytes", how="max"),
                _now("phalanx_log_quota_bytes", how="max"),
            ),
            ">=",
            0.95,
        ),
        "Stored output of jobs takes {value:percent} of its quota",
        "Output of ended jobs is deleted before its period is over, the oldest first. Output that is "
        "pinned or held stays.",
        AlertScreen.CONTROL_PLANE,
        hold_s=HOUR_S,
    ),
    Alert(
        "PhalanxLogSenderLate",
        Severity.TICKET,
        Compare(_now("phalanx_log_sender_lag_seconds", ("sender",), how="max"), ">", 15 * MINUTE_S),
        "The sender {sender} has output that is {value:seconds} old",
        "The endpoint of the sender does not answer, refuses, or takes less than ranks write. Output stays "
        "in the platform, and is sent once the endpoint takes it, unless its period ends before.",
        AlertScreen.CONTROL_PLANE,
        hold_s=10 * MINUTE_S,
    ),
)

ALERTS: tuple[Alert, ...] = (*CONTROL_PLANE, *SUCCESS, *CHECKPOINTS, *JOBS, *RESOURCES, *LIMITS)
BY_NAME: Mapping[str, Alert] = {one.name: one for one in ALERTS}
"""Every alert by its name."""
