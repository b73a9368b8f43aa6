"""Pools, quotas, scaling, cost, retention, and the control plane itself."""

from __future__ import annotations

from phalanx.core.cost.anomaly_life import LIVE
from phalanx.core.cost.ledger import Account
from phalanx.core.metrics.family import Family, Label, MetricOrigin, counter, gauge
from phalanx.core.retention.holds import RemovalCause
from phalanx.core.retention.policy import DataKind
from phalanx.core.scaling.model import DecisionKind
from phalanx.core.telemetry.instruments import Kind

MAX_QUOTAS = 500
"""The most quotas that have series."""
MAX_BUDGETS = 500
"""The most budgets that have series."""
MAX_ANOMALIES = 100
"""The most anomalies of cost that have series of their own."""
MAX_POOLS = 200
"""The most pools that have series."""
MAX_PROJECTS = 200
"""The most projects with series of slot time and money."""
MAX_SENDERS = 8
"""The most senders of output to other log stores."""
#: Kinds of decisions about the size of a pool.
DECISIONS = tuple(sorted(one.value for one in DecisionKind))

_POOL = Label("pool", most=MAX_POOLS)
_PROJECT = Label("project", most=MAX_PROJECTS)
_QUOTA = (
    Label("project", most=MAX_QUOTAS),
    *(Label(name, most=1) for name in ("user", "slot_type", "unit")),
)
_BUDGET = (Label("scope", most=MAX_BUDGETS), Label("name", most=1))
_ANOMALY = (Label("scope", most=MAX_ANOMALIES), Label("name", most=1), Label("state", most=1))
_SENDER = Label("sender", most=MAX_SENDERS)
_REMOVED = (
    Label("kind", tuple(sorted(one.value for one in DataKind))),
    Label("cause", tuple(sorted(one.value for one in RemovalCause))),
)
_SCALES = "a pool is grown by its cluster"
_PROBED = "a pool has been probed"
_COSTS = "cost ledger, as waits and attempts end"


def _counted(
    name: str, text: str, *labels: Label, unit: str = "", condition: str = "", where: str = ""
) -> Family:
    """A counter that another table of the database keeps."""
    return Family(name, Kind.COUNTER, text, labels, unit=unit, condition=condition, where=where)


def _own(
    name: str,
    text: str,
    *labels: Label,
    kind: Kind = Kind.GAUGE,
    unit: str = "",
    condition: str = "",
) -> Family:
    """A family of one control plane process."""
    return Family(
        name, kind, text, labels, origin=MetricOrigin.REPLICA, unit=unit, condition=condition
    )


POOLS = (
    gauge("phalanx_pool_slots", "Slots of a pool", _POOL),
    gauge("phalanx_pool_slots_free", "Free slots of a pool", _POOL),
    gauge(
        "phalanx_pool_largest_free_slots",
        "Free slots of the node that has the most: far below all free slots, the pool is fragmented",
        _POOL,
    ),
    gauge(
        "phalanx_pool_nodes",
        "Nodes of a pool by state",
        _POOL,
        Label("state", ("closed", "drained", "open", "quarantined")),
    ),
    gauge("phalanx_pool_waiting_jobs", "Queued jobs that may run in a pool", _POOL),
    gauge("phalanx_pool_unhealthy_devices", "Devices of a pool that are not offered", _POOL),
    gauge("phalanx_pool_memory_bytes", "Memory of the nodes of a pool", _POOL, unit="bytes"),
    gauge("phalanx_pools_not_shown", "Pools without series"),
)

PROBES = (
    gauge(
        "phalanx_probe_success",
        "Whether the newest probe of a pool that has ended succeeded: 1 or 0",
        _POOL,
        condition=_PROBED,
    ),
    gauge(
        "phalanx_probe_open_seconds",
        "Time since the submission of a probe that has not ended; 0: the newest one has",
        _POOL,
        unit="seconds",
        condition=_PROBED,
    ),
    gauge(
        "phalanx_probe_seconds",
        "Time from the submission of the newest ended probe until its start, its step and its end",
        _POOL,
        Label("until", ("end", "first_step", "start")),
        unit="seconds",
        condition=_PROBED,
    ),
)

SCALING = (
    gauge(
        "phalanx_scaling_nodes",
        "Nodes of a pool that scales, by state",
        _POOL,
        Label("state", ("draining", "present", "released", "requested")),
        condition=_SCALES,
    ),
    gauge("phalanx_scaling_max_nodes", "Most nodes of a pool", _POOL, condition=_SCALES),
    gauge(
        "phalanx_scaling_gangs_without_nodes",
        "Waiting gangs with a failed request for nodes",
        _POOL,
        condition=_SCALES,
    ),
    gauge(
        "phalanx_scaling_spent_today_usd",
        "Cost of the nodes since midnight UTC",
        _POOL,
        unit="US dollars",
        condition=_SCALES,
    ),
    _counted(
        "phalanx_scaling_decisions",
        "Decisions about the size of a pool",
        _POOL,
        Label("kind", DECISIONS),
        condition=_SCALES,
    ),
)

QUOTAS = (
    gauge("phalanx_quota_used", "What counts against a quota", *_QUOTA, condition="quotas are set"),
    gauge(
        "phalanx_quota_limit", "The most that a quota allows", *_QUOTA, condition="quotas are set"
    ),
    gauge("phalanx_quotas_not_shown", "Quotas without series"),
)

COST = (
    _counted(
        "phalanx_slot_seconds",
        "Slot time of a project, by what it was used for",
        _PROJECT,
        Label("account", tuple(sorted(one.value for one in Account))),
        unit="seconds",
        where=_COSTS,
        condition="the project is set up, has jobs or has had some",
    ),
    _counted(
        "phalanx_cost_usd",
        "Cost of a project",
        _PROJECT,
        unit="US dollars",
        where=_COSTS,
        condition="the project is set up, has jobs or has had some",
    ),
    gauge("phalanx_cost_projects_not_shown", "Projects without series of cost"),
    gauge(
        "phalanx_budget_used_ratio",
        "Share of a budget that was used in its period, running jobs included",
        *_BUDGET,
        condition="budgets are set",
    ),
    gauge("phalanx_budgets_not_shown", "Budgets without series"),
    gauge(
        "phalanx_cost_anomalies",
        "Anomalies of cost that are not closed",
        Label("state", tuple(one.value for one in LIVE)),
    ),
    gauge(
        "phalanx_cost_anomaly_extra_usd",
        "US dollars above the expectation",
        *_ANOMALY,
        unit="US dollars",
        condition="such an anomaly is open",
    ),
    gauge(
        "phalanx_cost_anomaly_extra_slot_hours",
        "Slot-hours above the expectation",
        *_ANOMALY,
        unit="slot-hours",
        condition="such an anomaly is open",
    ),
)

RETENTION = (
    _counted("phalanx_removed_items", "Deleted items of a kind", *_REMOVED),
    _counted("phalanx_removed_bytes", "Deleted bytes of a kind", *_REMOVED, unit="bytes"),
    gauge("phalanx_deletions_open", "Deleted jobs with data that is left"),
    gauge(
        "phalanx_log_stored_bytes", "Stored output of all jobs, before compression", unit="bytes"
    ),
    gauge(
        "phalanx_log_quota_bytes",
        "The quota of stored output of all jobs",
        unit="bytes",
        condition="there is a quota",
    ),
)

_SENDS = "a sender of output is set up"
LOG_SENDERS = (
    _counted(
        "phalanx_log_sender_lines",
        "Lines of output that the endpoint of a sender took",
        _SENDER,
        condition=_SENDS,
    ),
    _counted(
        "phalanx_log_sender_refused_lines",
        "Lines of output that the endpoint of a sender does not take",
        _SENDER,
        condition=_SENDS,
    ),
    gauge(
        "phalanx_log_sender_lag_seconds",
        "Age of the oldest line of output that waits for a sender",
        _SENDER,
        unit="seconds",
        condition=_SENDS,
    ),
    gauge(
        "phalanx_log_sender_failures",
        "Tries of a sender that failed since its last success",
        _SENDER,
        condition=_SENDS,
    ),
)

CONTROL_PLANE = (
    _own("phalanx_build_info", "1 for the running release", Label("version", most=1)),
    _own("phalanx_leader", "1 where this process runs the loops, else 0"),
    _own(
        "phalanx_loop_idle_seconds",
        "Time since the last completed step of a loop",
        Label("loop", most=40),
        unit="seconds",
        condition="the process runs the loops",
    ),
    _own("phalanx_requests_open", "HTTP requests that are being answered, long polls included"),
    _own("phalanx_event_streams_open", "Open streams of events"),
    _own(
        "phalanx_process_cpu_seconds",
        "Processor time of this process",
        kind=Kind.COUNTER,
        unit="seconds",
    ),
    _own("phalanx_process_resident_memory_bytes", "Resident memory of this process", unit="bytes"),
    _own("phalanx_process_virtual_memory_bytes", "Virtual memory of this process", unit="bytes"),
    _own("phalanx_process_start_time_seconds", "Start of this process, Unix time", unit="seconds"),
    _own("phalanx_process_open_fds", "Open file descriptors of this process"),
    _own("phalanx_process_max_fds", "The most file descriptors that this process may open"),
    _own("phalanx_process_threads", "Threads of this process"),
    gauge("phalanx_replicas", "Control planes that live"),
    Family("phalanx_events", Kind.COUNTER, "Events of jobs in the event log"),
    gauge("phalanx_commands_open", "Commands to executors that are not done"),
    gauge(
        "phalanx_commands_oldest_seconds",
        "Age of the oldest command that is not done",
        unit="seconds",
    ),
    counter(
        "phalanx_trace_spans",
        "Spans of jobs for an OpenTelemetry endpoint",
        Label("result", ("dropped", "sent")),
        where="services/tracing/export.py",
    ),
    _own("phalanx_scrape_series", "Series of this scrape"),
    _own("phalanx_scrape_seconds", "Time of the scrape before this one", unit="seconds"),
    _own(
        "phalanx_series_not_shown",
        "Series that the limit left out: of jobs, of their ranks, of their histograms",
        Label("level", ("histogram", "job", "rank")),
    ),
)

PLATFORM: tuple[tuple[str, tuple[Family, ...]], ...] = (
    ("Pools", POOLS),
    ("Probes", PROBES),
    ("Pools that scale", SCALING),
    ("Quotas", QUOTAS),
    ("Cost", COST),
    ("Retention", RETENTION),
    ("Senders of output", LOG_SENDERS),
    ("Control plane", CONTROL_PLANE),
)
