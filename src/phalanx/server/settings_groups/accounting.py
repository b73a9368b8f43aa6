"""Settings of cost and of retention: what is kept for how long, and which costs are unusual."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from phalanx.core.cost.anomalies import AnomalyLimits
from phalanx.core.cost.prices import HOUR_US, NANO
from phalanx.core.retention.policy import RetentionPeriods
from phalanx.server.settings_groups.forms import Age, SettingsGroup, Size
from phalanx.services.cost.anomalies import AnomalyConfig


class CostSettings(SettingsGroup):
    """Anomalies of cost: days that cost much more than expected."""

    anomaly_usd: float = Field(
        default=10.0, ge=0, le=1e9, description="Least extra US dollars of a day that are told."
    )
    anomaly_slot_hours: float = Field(
        default=24.0,
        ge=0,
        le=1e9,
        description="Least extra slot-hours of a day that are told, where nothing has a price.",
    )
    anomaly_labels: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        default=("team",),
        max_length=8,
        description="Names of labels: the jobs with each value are judged together.",
    )
    anomaly_tick_s: float = Field(default=600.0, gt=0, description="Interval between judgements.")

    def resolved(self) -> AnomalyConfig:
        """The values of the detector."""
        limits = AnomalyLimits(
            round(self.anomaly_usd * NANO), round(self.anomaly_slot_hours * HOUR_US)
        )
        return AnomalyConfig(limits, self.anomaly_labels)


class RetentionSettings(SettingsGroup):
    """Times after the end of a job at which its data are deleted, such as `30d`; projects may differ."""

    logs: Age = Field(
        default=None,
        description="Age of stored output of ranks, and time after the end of a job, at which log files "
        "are deleted; absent: never.",
    )
    failed_logs: Age = Field(
        default=None,
        description="The same of jobs that failed, where it is longer than `logs`; for so long after the "
        "end of a failed job, `log_bytes` does not delete its output either. Absent: as `logs`.",
    )
    metrics: Age = Field(
        default=None,
        description="Age of ended jobs at which their metrics are deleted; absent: never.",
    )
    checkpoints: Age = Field(
        default=None,
        description="Time after the end of a job at which its checkpoints are deleted, except the newest, "
        "the best and pinned ones; absent: never.",
    )
    code: Age = Field(
        default=7 * 86_400.0,
        description="Time after the end of the last job with a code archive at which it is deleted.",
    )
    jobs: Age = Field(
        default=None,
        description="Time after the end of a job at which it is deleted with everything that it has; "
        "absent: never.",
    )
    log_bytes_per_job: Size = Field(
        default=512 << 20,
        description="Output of ranks that is stored of one job, such as `512MiB`. Above it, output behind "
        "the first eighth is deleted, the oldest first, and its place shows the number of bytes.",
    )
    log_bytes: Size = Field(
        default=None,
        description="Output of ranks that is stored of all jobs, before compression, such as `200GiB`. "
        "Above it, the output of the jobs that ended first is deleted; that of pinned jobs, and of failed "
        "ones during `failed_logs`, stays. Absent: any amount.",
    )
    tick_s: float = Field(default=600.0, gt=0, description="Interval between retention sweeps.")
    stores: tuple[str, ...] | None = Field(
        default=None,
        description="Prefixes of object stores in which the control plane may delete the checkpoints of "
        'deleted jobs, as JSON: `["s3://team/"]`. Absent: every store that a job names.',
    )

    @property
    def periods(self) -> RetentionPeriods:
        """The periods of projects that have none of their own."""
        return RetentionPeriods(
            logs=self.logs,
            failed_logs=self.failed_logs,
            metrics=self.metrics,
            checkpoints=self.checkpoints,
            code=self.code,
            jobs=self.jobs,
        )
