"""The service-level indicators M1 to M15 as a table: what each measures, its query and its target.

Jobs that were cancelled or that failed because of their script are no bad events of the platform. Sums of
bad over sums of all, never means of ratios.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.metrics.aliases import one_of

_JOB = "project, phalanx_job"


@dataclass(frozen=True, slots=True)
class ServiceIndicator:
    """One indicator. `name` is that of its recording rule, behind `phalanx:sli_`."""

    code: str  # M1 to M15
    name: str
    title: str
    query: str
    target: str  # in words; empty: to be watched over time
    note: str  # how it misleads, or where else it is

    @property
    def recorded(self) -> str:
        """The name of its series in Prometheus."""
        return f"phalanx:sli_{self.name}"


def counted(series: str, window: str, by: str = "") -> str:
    """The increase of a counter over a window, over all its series or by labels."""
    kept = f" by ({by})" if by else ""
    return f"sum{kept} ({one_of(f'increase({series}[{window}])')})"


def ratio(part: str, total: str) -> str:
    """One query by another, without a value where the latter is 0."""
    return f"{part} / ({total} > 0)"


def _p95(metric: str, window: str, by: str = "", matchers: str = "") -> str:
    rates = one_of(f"rate({metric}_bucket{matchers}[{window}])")
    kept = f"{by}, le" if by else "le"
    return f"histogram_quantile(0.95, sum by ({kept}) ({rates}))"


def _rate(series: str, by: str) -> str:
    return f"sum by ({by}) ({one_of(f'rate({series}[5m])')})"


_BAD_ENDS = 'phalanx_jobs_ended_total{fault="platform"}'
_ENDS = 'phalanx_jobs_ended_total{fault=~"none|platform|user"}'
_COMMITTED = 'phalanx_checkpoints_total{outcome="committed"}'
_HELD = 'phalanx_slot_seconds_total{account!="queued"}'
_SAVES = (
    f"({counted('phalanx_checkpoints_total', '7d')} + "
    f"{counted('phalanx_save_failures_total', '7d')})"
)
_EPOCHS = f"sum by (project) (clamp_min({one_of('delta(training_epoch[1d])')}, 0))"

INDICATORS: tuple[ServiceIndicator, ...] = (
    ServiceIndicator(
        "M1",
        "job_success_ratio",
        "Ended jobs that did not fail because of the platform, of a week",
        "1 - " + ratio(counted(_BAD_ENDS, "7d"), counted(_ENDS, "7d")),
        "≥ 99 %",
        "Cancelled jobs are left out; failures of scripts are no bad events.",
    ),
    ServiceIndicator(
        "M2",
        "time_to_complete_p95_seconds",
        "Time from submission to success that 95 % of the jobs of a day stay below",
        _p95("phalanx_job_seconds", "1d", matchers='{state="succeeded"}'),
        "",
        "The time of the queue and of pauses is in it.",
    ),
    ServiceIndicator(
        "M3",
        "samples_per_second",
        "Throughput of each live job",
        _rate("training_samples_total", _JOB),
        "",
        "Compare a job with itself: other models have other samples.",
    ),
    ServiceIndicator(
        "M4",
        "accelerator_utilization_ratio",
        "Share of the time that devices of live jobs were busy",
        f"avg({one_of('gpu_utilization_percent')}) / 100",
        "> 80 %",
        "A busy device may still do useless work: see goodput.",
    ),
    ServiceIndicator(
        "M5",
        "step_p95_by_p50",
        "Step time that 95 % of the steps of a job stay below, by its median",
        f"{_p95('step_time_seconds', '15m', _JOB)} / "
        + _p95("step_time_seconds", "15m", _JOB).replace("(0.95,", "(0.5,"),
        "≤ 2",
        "Within one job only.",
    ),
    ServiceIndicator(
        "M6",
        "checkpoint_save_p95_seconds",
        "Time to save that 95 % of the checkpoints of a day stay below",
        _p95("phalanx_checkpoint_save_seconds", "1d"),
        "",
        "Training waits for a part of it only: saves go on in the background.",
    ),
    ServiceIndicator(
        "M7",
        "checkpoint_success_ratio",
        "Saves that are committed and not damaged, of a week",
        ratio(counted(_COMMITTED, "7d"), _SAVES),
        "100 %",
        "One that is damaged pages at once: `PhalanxCheckpointQuarantined`.",
    ),
    ServiceIndicator(
        "M8",
        "network_bytes_per_second",
        "Bytes that each node of a live job sends and receives",
        f"{_rate('phalanx_host_network_sent_bytes_total', 'node')} + "
        + _rate("phalanx_host_network_received_bytes_total", "node"),
        "",
        "Of the whole node: several jobs on it each report all of its bytes.",
    ),
    ServiceIndicator(
        "M9",
        "gradient_sync_share",
        "Time in exchanges of gradients by the time of the steps, overlap included",
        ratio(
            _rate("gradient_sync_time_seconds_sum", _JOB),
            _rate("step_time_seconds_sum", _JOB),
        ),
        "small",
        "What overlaps with the backward pass costs nothing: see `communication_time_seconds`.",
    ),
    ServiceIndicator(
        "M10",
        "preemptions_per_day",
        "Requests to leave slots, of a day",
        counted("phalanx_preemptions_total", "1d"),
        "",
        "Resizes, moves and drained nodes are in it.",
    ),
    ServiceIndicator(
        "M11",
        "resume_success_ratio",
        "Resumes that found their checkpoint, of a week",
        ratio(
            counted('phalanx_resumes_total{outcome!="failed"}', "7d"),
            counted("phalanx_resumes_total", "7d"),
        ),
        "100 %",
        "One that fails pages at once: `PhalanxResumeFailed`.",
    ),
    ServiceIndicator(
        "M12",
        "loss_falls_ratio",
        "Share of the live jobs with a loss that fell over half an hour",
        f"avg({one_of('deriv(training_loss[30m])')} < bool 0)",
        "",
        "Near the end of training a loss falls no more: never a page.",
    ),
    ServiceIndicator(
        "M13",
        "cost_per_epoch_usd",
        "Cost of a project by the epochs that its live jobs began, of a day",
        ratio(counted("phalanx_cost_usd_total", "1d", "project"), _EPOCHS),
        "",
        "Cost is booked when attempts end; `phalanx cost report --by job` has it for each job.",
    ),
    ServiceIndicator(
        "M14",
        "idle_slot_time_ratio",
        "Held slot time without steps, of a day",
        ratio(counted('phalanx_slot_seconds_total{account="idle"}', "1d"), counted(_HELD, "1d")),
        "< 5 %",
        "Jobs without steps, such as servers, are idle by this count.",
    ),
    ServiceIndicator(
        "M15",
        "requeue_ratio",
        "Restarts of jobs by their placements, of a week",
        ratio(counted("phalanx_restarts_total", "7d"), counted("phalanx_attempts_total", "7d")),
        "",
        "Restarts in place have no placement of their own.",
    ),
)
"""Every indicator in the order of its code."""
