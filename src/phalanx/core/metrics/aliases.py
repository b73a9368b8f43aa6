"""Names of metrics that dashboards of other platforms have, as recording rules over the catalogue.

A rule costs no series of a scrape. Each takes the maximum over replicas of the control plane first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.metrics.catalogue import CATALOGUE

GROUP = "phalanx-aliases"
#: On series that stand in for those of another exporter; the rules of that exporter do not have it.
SOURCE = "phalanx"


@dataclass(frozen=True, slots=True)
class RecordedName:
    """A name, the expression behind it, and its meaning."""

    name: str
    query: str
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)


def one_of(query: str) -> str:
    """The series of one replica: the largest, where several export them."""
    return f"max without (instance, pod) ({query})"


def _rate(name: str, window: str = "5m") -> str:
    return one_of(f"rate({name}[{window}])")


def _of_device(name: str, query: str, text: str) -> RecordedName:
    """A name of NVIDIA's exporter, for as long as no exporter of NVIDIA is scraped."""
    foreign = f'{name}{{source!="{SOURCE}"}}'
    return RecordedName(name, f"{one_of(query)} unless on () {foreign}", text, {"source": SOURCE})


def _quantile(share: float, name: str, metric: str, by: str) -> RecordedName:
    rates = _rate(f"{metric}_bucket")
    query = f"histogram_quantile({share}, sum by ({by}, le) ({rates}))"
    return RecordedName(name, query, f"Quantile {share} of `{metric}` over five minutes")


_JOB = "project, phalanx_job"
_OF_RANKS = 'process_resident_memory_bytes{rank!=""}'
_COMMITTED = 'phalanx_checkpoints_total{outcome="committed"}'
_RESUMED = 'phalanx_resumes_total{outcome!="failed"}'
_AT_START = 'phalanx_failures_total{cause=~"user_error|params_rejected|secret_unavailable"}'
_SAMPLES = _rate("training_samples_total")

ALIASES: tuple[RecordedName, ...] = (
    _of_device("DCGM_FI_DEV_GPU_UTIL", "gpu_utilization_percent", "Utilisation of a device, %"),
    _of_device("DCGM_FI_DEV_FB_USED", "gpu_memory_used_mb", "Memory in use of a device, MiB"),
    _of_device(
        "DCGM_FI_DEV_GPU_TEMP", "phalanx_gpu_temperature_celsius", "Temperature of a device, °C"
    ),
    _of_device("DCGM_FI_DEV_POWER_USAGE", "phalanx_gpu_power_watts", "Power of a device, watts"),
    RecordedName("ray_workers_active", f"sum({one_of('phalanx_job_ranks')})", "Ranks of live jobs"),
    RecordedName("ray_gpus_utilized", one_of("phalanx_held_slots"), "Slots that jobs hold"),
    RecordedName(
        "ray_memory_used_gb",
        f"sum({one_of(_OF_RANKS)}) / 1e9",
        "Memory of the processes of all ranks, GB",
    ),
    _quantile(0.5, "training_step_latency_p50_seconds", "step_time_seconds", _JOB),
    _quantile(0.95, "training_step_latency_p95_seconds", "step_time_seconds", _JOB),
    _quantile(0.99, "training_step_latency_p99_seconds", "step_time_seconds", _JOB),
    RecordedName(
        "training_samples_per_sec",
        f"sum by ({_JOB}) ({_SAMPLES})",
        "Samples per second of a job, of the ranks with series",
    ),
    RecordedName(
        "training_sample_skew_ratio",
        f"max by ({_JOB}) ({_SAMPLES}) / min by ({_JOB}) ({_SAMPLES})",
        "Samples of the rank with the most by those of the rank with the fewest",
    ),
    RecordedName(
        "training_loss_trend_per_second",
        one_of("deriv(training_loss[30m])"),
        "Slope of the loss over half an hour",
    ),
    RecordedName(
        "training_loss_variance",
        one_of("stdvar_over_time(training_loss[30m])"),
        "Variance of the loss over half an hour",
    ),
    RecordedName(
        "checkpoint_success_ratio",
        f"sum({_rate(_COMMITTED, '1h')}) / "
        f"(sum({_rate('phalanx_checkpoints_total', '1h')}) + "
        f"sum({_rate('phalanx_save_failures_total', '1h')}))",
        "Committed checkpoints among all that were committed, quarantined or failed, over an hour",
    ),
    RecordedName(
        "resume_success_ratio",
        f"sum({_rate(_RESUMED, '1h')}) / sum({_rate('phalanx_resumes_total', '1h')})",
        "Resumes that did not fail, over an hour",
    ),
    RecordedName("oom_kills_total", one_of("phalanx_oom_kills_total"), "Failures without memory"),
    RecordedName(
        "pod_evictions_total",
        f"sum({one_of('phalanx_preemptions_total')})",
        "Requests to leave slots",
    ),
    RecordedName(
        "container_start_failures_total",
        f"sum({one_of('phalanx_start_failures_total')})",
        "Supervisors and ranks that could not be started",
    ),
    RecordedName(
        "init_errors_total",
        f"sum({one_of(_AT_START)})",
        "Failures before the first step that another start would repeat",
    ),
    RecordedName(
        "job_requeues_total", one_of("phalanx_restarts_total"), "Restarts of jobs by cause"
    ),
    RecordedName(
        "pool_utilization_ratio",
        f"1 - {one_of('phalanx_pool_slots_free')} / ({one_of('phalanx_pool_slots')} > 0)",
        "Share of the slots of a pool that jobs hold",
    ),
    RecordedName(
        "pool_fragmentation_ratio",
        f"1 - {one_of('phalanx_pool_largest_free_slots')} / ({one_of('phalanx_pool_slots_free')} > 0)",
        "Share of the free slots that is not on the node with the most",
    ),
)


def rule_file() -> dict[str, Any]:
    """The rules as Prometheus reads them from a file."""
    rules = []
    for one in ALIASES:
        rule: dict[str, Any] = {"record": one.name, "expr": one.query}
        rules.append(rule | ({"labels": dict(one.labels)} if one.labels else {}))
    return {"groups": [{"name": GROUP, "rules": rules}]}


def exported_names() -> frozenset[str]:
    """Every name of a series that a scrape can contain, for what reads queries."""
    found = set[str]()
    for one in CATALOGUE.values():
        parts = ("_bucket", "_count", "_sum") if one.bounds else ("",)
        found |= {one.exported + part for part in parts}
    return frozenset(found)
