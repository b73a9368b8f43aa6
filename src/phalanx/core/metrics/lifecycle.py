"""What happens to jobs, counted in the transactions that store it: queue, starts, failures, checkpoints."""

from __future__ import annotations

from phalanx.core.jobs.faults import JobFault
from phalanx.core.jobs.model import TERMINAL, JobState
from phalanx.core.metrics.family import Family, Label, counter, gauge, histogram
from phalanx.core.reasons import Cause, ReasonCode, code_of

WAIT_BOUNDS = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
START_BOUNDS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
SAVE_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
JOB_BOUNDS = (10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0, 259200.0, 604800.0)

#: Reasons of stops that make room: the job goes back to the queue, and no failure is charged.
MADE_ROOM = (
    ReasonCode.PREEMPTED,
    ReasonCode.RESIZED,
    ReasonCode.MOVED,
    ReasonCode.NODE_DRAINED,
)
_CAUSES = tuple(sorted(one.value for one in Cause))
_RESTARTS = tuple(
    sorted({*(code_of(one).value for one in Cause), *(one.value for one in MADE_ROOM)})
)
_FAULTS = tuple(sorted(one.value for one in JobFault))
_STATES = tuple(one.value for one in JobState)
_ENDS = tuple(sorted(one.value for one in TERMINAL))
#: The settings have 50 classes at most, and there is the default one.
_CLASS = Label("class", most=51)
_COMMIT = "services/ledger/counting.py"
_REPORTS = "store/lineage.py"

JOBS = (
    gauge("phalanx_jobs", "Jobs by state", Label("state", _STATES)),
    gauge("phalanx_queue_length", "Queued jobs"),
    gauge("phalanx_queue_slots", "Slots that the queued jobs ask for"),
    gauge("phalanx_queue_oldest_seconds", "Age of the oldest queued job", unit="seconds"),
    gauge("phalanx_held_slots", "Slots that jobs hold"),
    histogram(
        "phalanx_queue_wait_seconds", "Time from queue to placement", WAIT_BOUNDS, where=_COMMIT
    ),
    histogram(
        "phalanx_start_seconds",
        "Time from placement until all ranks run",
        START_BOUNDS,
        where=_COMMIT,
    ),
    histogram(
        "phalanx_job_seconds",
        "Time from submission to the end of a job, by state",
        JOB_BOUNDS,
        Label("state", _ENDS),
        where=_COMMIT,
    ),
    counter("phalanx_jobs_submitted", "Jobs submitted", where=_COMMIT),
    counter("phalanx_jobs_finished", "Ended jobs by state", Label("state", _ENDS), where=_COMMIT),
    counter(
        "phalanx_jobs_ended",
        "Ended jobs by what ended them: none is success",
        Label("fault", _FAULTS),
        where=_COMMIT,
    ),
    counter(
        "phalanx_class_jobs_ended",
        "Ended jobs of a class by what ended them: none is success",
        _CLASS,
        Label("fault", _FAULTS),
        where=_COMMIT,
    ),
    counter(
        "phalanx_class_slot_seconds",
        "Held slot time of a class, as attempts end: in steps made for the first time, or other",
        _CLASS,
        Label("use", ("other", "productive")),
        unit="seconds",
        where="services/ledger/settle.py",
    ),
    histogram(
        "phalanx_class_queue_wait_seconds",
        "Time from queue to placement of the jobs of a class",
        WAIT_BOUNDS,
        _CLASS,
        where=_COMMIT,
    ),
    histogram(
        "phalanx_class_recovery_seconds",
        "Time from a failure until all ranks run again, of the jobs of a class",
        START_BOUNDS,
        _CLASS,
        where=_COMMIT,
    ),
    counter("phalanx_attempts", "Placements of jobs", where=_COMMIT),
    gauge(
        "phalanx_guaranteed_waiting_jobs",
        "Queued jobs that fit into the guarantee of their project, or of one that it is part of",
    ),
)

RELIABILITY = (
    counter(
        "phalanx_restarts",
        "Restarts of jobs by cause: a failure that was charged, or a request to make room",
        Label("cause", _RESTARTS),
        where=_COMMIT,
    ),
    counter(
        "phalanx_preemptions",
        "Requests to leave slots for another job, another size or place, or a drained node",
        Label("cause", tuple(sorted(one.value for one in MADE_ROOM))),
        where=_COMMIT,
    ),
    counter(
        "phalanx_failures",
        "First failures of the ranks of a node by cause, those caused by other ranks left out",
        Label("cause", _CAUSES),
        where=_COMMIT,
    ),
    counter("phalanx_oom_kills", "Failures of ranks because memory was exhausted", where=_COMMIT),
    counter(
        "phalanx_start_failures",
        "Supervisors and ranks that could not be started, by cause",
        Label("cause", _CAUSES),
        where=_COMMIT,
    ),
    counter(
        "phalanx_preflight_failures",
        "Gangs with ranks of other versions, used twice, missing or not reachable",
        where=_COMMIT,
    ),
    counter("phalanx_nodes_lost", "Supervisors that died with their ranks", where=_COMMIT),
    counter("phalanx_stalls", "Generations that made no step although they ran", where=_COMMIT),
    counter("phalanx_stops_overdue", "Stops that ranks did not follow in time", where=_COMMIT),
    counter(
        "phalanx_guard_actions",
        "Steps that a training guard refused, by its action",
        Label("action", ("applied", "rollback", "skip", "stop")),
        where=_COMMIT,
    ),
    counter("phalanx_warnings", "Warnings of ranks and supervisors", where=_COMMIT),
    histogram(
        "phalanx_recovery_seconds",
        "Time from a failure until all ranks run again, where the slots were kept",
        START_BOUNDS,
        where=_COMMIT,
    ),
)

CHECKPOINTS = (
    counter(
        "phalanx_checkpoints",
        "Checkpoints by outcome",
        Label("outcome", ("committed", "quarantined")),
        where=_REPORTS,
    ),
    counter(
        "phalanx_checkpoint_bytes", "Bytes of committed checkpoints", unit="bytes", where=_REPORTS
    ),
    histogram(
        "phalanx_checkpoint_save_seconds", "Time to save a checkpoint", SAVE_BOUNDS, where=_REPORTS
    ),
    counter(
        "phalanx_save_failures",
        "Saves that failed: regular ones, those that users asked for, the last ones of complete runs",
        Label("save", ("final", "regular", "requested")),
        where=_COMMIT,
    ),
    counter(
        "phalanx_checkpoint_copies",
        "Copies of checkpoints in object stores by outcome",
        Label("outcome", ("failed", "stored")),
        where="services/lifecycle/reports.py",
    ),
    counter(
        "phalanx_resumes",
        "Resumes from a checkpoint: with the exact order of the data, without it, or failed",
        Label("outcome", ("exact", "failed", "not_exact")),
        where=_COMMIT,
    ),
    histogram("phalanx_resume_seconds", "Time to read a checkpoint", SAVE_BOUNDS, where=_COMMIT),
)

LIFECYCLE: tuple[tuple[str, tuple[Family, ...]], ...] = (
    ("Jobs and queue", JOBS),
    ("Reliability", RELIABILITY),
    ("Checkpoints", CHECKPOINTS),
)
