"""What live jobs and their ranks do: the instruments of the ranks, and the progress of jobs."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.metrics.family import Family, Label, MetricOrigin, gauge
from phalanx.core.telemetry.instruments import BOUNDS, INSTRUMENTS, OF_NODE, Instrument, Kind

MAX_JOBS = 2000
"""The most live jobs that have series."""
MAX_RANKS = 512
"""The most ranks that have series, of all jobs."""
MAX_RANKS_OF_A_JOB = 64
"""The most ranks of one job that have series."""
MAX_NAMES = 20
"""The most metrics of one script that have series."""

_LIVE = "the job is live"
_PER_JOB = (Label("project", most=MAX_JOBS), Label("job", most=1), Label("phalanx_job", most=1))
_PER_RANK = (
    Label("project", most=MAX_RANKS),
    Label("job", most=1),
    Label("phalanx_job", most=1),
    Label("rank", most=1),
)
_PER_NODE = (*_PER_RANK[:3], Label("node", most=1))

STEP_TIME = "step_time_seconds"
"""The one histogram that each rank has; those of the other sections are sums over the ranks of a job."""
SECTION = "phalanx_rank_section_seconds"

#: Names under which ranks report, and what the exposition calls them: other exporters have the former.
RENAMED = {
    "DCGM_FI_DEV_GPU_TEMP": "phalanx_gpu_temperature_celsius",
    "DCGM_FI_DEV_POWER_USAGE": "phalanx_gpu_power_watts",
}
_UNITS = (
    "seconds",
    "bytes",
    "celsius",
    "watts",
    "percent",
    "mb",
    "mhz",
    "joules",
    "fraction",
    "ratio",
)


def exposed_name(instrument: Instrument) -> str:
    """The family of an instrument, without `_total`."""
    return RENAMED.get(instrument.name, instrument.name)


def is_per_job(instrument: Instrument) -> bool:
    """Whether the values of all ranks of a job are added up in one series."""
    return instrument.kind is Kind.HISTOGRAM and instrument.name != STEP_TIME


def _family(instrument: Instrument) -> Family:
    name = exposed_name(instrument)
    fixed = tuple(Label(label, (value,)) for label, value in instrument.labels)
    of_node = instrument.name in OF_NODE
    base = Family(
        name,
        instrument.kind,
        instrument.help,
        (*(_PER_NODE if of_node else _PER_RANK), *fixed),
        origin=MetricOrigin.REPLICA,
        unit=next((one for one in _UNITS if name.endswith(one)), ""),
        where="the supervisors" if of_node else "the ranks",
        condition="a job with steps runs on the node" if of_node else "a rank has reported it",
    )
    if instrument.kind is not Kind.HISTOGRAM:
        return base
    labels = (*(_PER_JOB if is_per_job(instrument) else _PER_RANK), *fixed)
    return replace(base, labels=labels, bounds=BOUNDS)


RANKS = (
    *(
        _family(one)
        for one in INSTRUMENTS.values()
        if not is_per_job(one) and one.name not in OF_NODE
    ),
    Family(
        SECTION,
        Kind.GAUGE,
        "Mean time of a section of the step in the newest window",
        (*_PER_RANK, Label("section", most=len(INSTRUMENTS))),
        unit="seconds",
        where="the ranks",
        condition="a rank has reported it",
    ),
    gauge("phalanx_ranks_not_shown", "Ranks of live jobs without series"),
)

JOBS = (
    *(_family(one) for one in INSTRUMENTS.values() if is_per_job(one)),
    gauge(
        "training_step", "Optimizer steps done", *_PER_JOB, condition="a rank has reported a step"
    ),
    gauge("training_epoch", "Epochs begun", *_PER_JOB, condition="a rank has reported an epoch"),
    gauge(
        "training_loss",
        "Newest loss of rank 0",
        *_PER_JOB,
        condition="the script logs `loss` or `train_loss`",
    ),
    gauge(
        "training_accuracy",
        "Newest accuracy of rank 0",
        *_PER_JOB,
        condition="the script logs `accuracy`, `acc`, `train_acc` or `train_accuracy`",
    ),
    gauge(
        "training_metric",
        "Metrics that the script logs, on rank 0",
        *_PER_JOB,
        Label("name", most=MAX_NAMES),
        condition="the script logs metrics",
    ),
    gauge(
        "phalanx_job_info",
        "1, with the state, the pool, the owner and the class of a live job",
        *_PER_JOB,
        *(Label(name, most=1) for name in ("state", "pool", "owner", "class")),
        condition=_LIVE,
    ),
    gauge("phalanx_job_slots", "Slots that a live job holds", *_PER_JOB, condition=_LIVE),
    gauge("phalanx_job_ranks", "Ranks of a live job", *_PER_JOB, condition=_LIVE),
    gauge(
        "phalanx_job_checkpoint_step",
        "Step of the newest checkpoint of a live job",
        *_PER_JOB,
        condition="the job has a checkpoint",
    ),
    gauge(
        "phalanx_job_checkpoint_age_seconds",
        "Time since the newest checkpoint of a running job, or since its ranks run where that is shorter",
        *_PER_JOB,
        unit="seconds",
        condition="the job runs and has a checkpoint",
    ),
    gauge(
        "phalanx_job_checkpoint_interval_seconds",
        "Interval of the saves of a running job: that of its spec, else between the last two",
        *_PER_JOB,
        unit="seconds",
        condition="the job runs and has a checkpoint",
    ),
    Family(
        "phalanx_job_restarts",
        Kind.COUNTER,
        "Restarts of a live job that were charged",
        _PER_JOB,
        condition=_LIVE,
    ),
    Family(
        "phalanx_job_attempts", Kind.COUNTER, "Placements of a live job", _PER_JOB, condition=_LIVE
    ),
    gauge("phalanx_jobs_not_shown", "Live jobs without series"),
)

NODES = tuple(_family(INSTRUMENTS[name]) for name in sorted(OF_NODE))

TRAINING: tuple[tuple[str, tuple[Family, ...]], ...] = (
    ("Training, per job", JOBS),
    ("Training, per rank", RANKS),
    ("Nodes of live jobs", NODES),
)
