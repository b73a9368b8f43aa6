"""Figures of a finished simulation: times in hours, slot time in slot-hours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from phalanx.sim.cluster.engine import Result
from phalanx.sim.model import SimulatedJob

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One row of a comparison. Delay is completion time beyond a run alone on an empty cluster."""

    policy: str  # name of the policy
    num_jobs: int  # submitted jobs
    num_done: int  # completed jobs
    jct_h: float  # mean job completion time
    delay_h: float  # mean delay
    delay_p50_h: float  # median delay
    delay_p99_h: float  # 99th percentile of the delay
    delay_max_h: float  # maximum delay
    gang_delay_h: float  # mean delay of large gangs (`gang_slots`)
    queue_h: float  # mean total time in the queue
    makespan_h: float  # first submission to the end
    useful: float  # useful part of the capacity
    busy: float  # useful, overhead, slowed and lost part of the capacity
    preemptions: int  # preemptions of all jobs
    preemptions_per_job: float  # mean preemptions of a job
    lost_h: float  # slot-hours of lost work
    overhead_h: float  # slot-hours of starts, restarts and saves
    slowed_percent: float  # gangs slowed on their last placement, % of gangs
    scattered_percent: float  # slot time on scattered placements, % of multi-node gangs
    pass_p50_ms: float  # median CPU time of a pass
    pass_p99_ms: float  # 99th percentile of the CPU time of a pass
    wall_s: float  # wall time of the simulation
    num_failed: int = 0  # jobs that failed finally
    lost_to_failures_h: float = 0.0  # slot-hours of work lost to failures
    lost_to_failures: float = 0.0  # the same as a part of the held slot time
    useful_under_load: float = 0.0  # useful part of the capacity while jobs arrive
    fragmented: float = 0.0  # mean part of the free slots on broken nodes
    cost: float = 0.0  # price of the capacity
    cost_per_useful_h: float = 0.0  # cost of a useful slot-hour


@dataclass(frozen=True, slots=True)
class ProjectRow:
    """The figures of one project: waits and delays in hours, slot-hours, and its part of the cost."""

    project: str  # its name
    num_jobs: int  # its jobs
    wait_h: float  # mean wait
    wait_p99_h: float  # 99th percentile of the waits
    jct_h: float  # mean time from submission to end
    delay_h: float  # mean delay
    delay_p99_h: float  # 99th percentile of the delays
    preemptions: int  # evictions of its jobs
    useful: float  # part of its slot time that advanced its jobs
    slot_h: float  # slot-hours held
    share: float  # part of the slot time of all projects
    cost: float  # slot-hours times the price


def project_rows(result: Result, price: float = 0.0) -> tuple[ProjectRow, ...]:
    """One row a project, by name."""
    by_name: dict[str, list[SimulatedJob]] = {}
    for run in result.runs.values():
        by_name.setdefault(run.job.project, []).append(run)
    total = sum(result.slot_times.by_project.values())
    rows = []
    for name, runs in sorted(by_name.items()):
        slot_h = result.slot_times.by_project.get(name, 0.0) / HOUR
        waits = [run.waited_s / HOUR for run in runs]
        delays = [delay_s(result, run) / HOUR for run in runs]
        done_s = sum((run.job.duration_s - run.left_s) * run.job.num_slots for run in runs)
        rows.append(
            ProjectRow(
                name,
                len(runs),
                mean(waits),
                quantile(waits, 0.99),
                mean((run.end_s or result.end_s) - run.job.submit_s for run in runs) / HOUR,
                mean(delays),
                quantile(delays, 0.99),
                sum(run.preemptions for run in runs),
                min(done_s / max(slot_h * HOUR, 1.0), 1.0),
                slot_h,
                slot_h * HOUR / max(total, 1.0),
                slot_h * price,
            )
        )
    return tuple(rows)


def delay_s(result: Result, run: SimulatedJob) -> float:
    """Return the completion time beyond that of the job alone, seconds."""
    end_s = result.end_s if run.end_s is None else run.end_s
    alone = run.job.duration_s + result.setup.costs.start_s
    return max(end_s - run.job.submit_s - alone, 0.0)


def quantile(values: Iterable[float], at: float) -> float:
    """The value at this quantile (nearest rank); 0 of nothing."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[min(int(at * len(ordered)), len(ordered) - 1)]


def mean(values: Iterable[float]) -> float:
    """The mean; 0 of nothing."""
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def delays_h(
    result: Result, chosen: Callable[[SimulatedJob], bool] = lambda run: True
) -> list[float]:
    """Delays of the jobs that `chosen` accepts, hours."""
    return [delay_s(result, run) / HOUR for run in result.runs.values() if chosen(run)]


def figures(result: Result, gang_slots: int = 8, price: float = 0.0) -> RunFigures:
    """Return the figures of a simulation. `price` is that of one slot for an hour."""
    runs = list(result.runs.values())
    done = [run for run in runs if run.end_s is not None]
    delays = delays_h(result)
    jct = [(run.end_s or result.end_s) - run.job.submit_s for run in runs]
    span_s = max(result.end_s - min((r.job.submit_s for r in runs), default=0.0), 1.0)
    capacity = span_s * sum(node.num_slots for node in result.setup.nodes)
    slot_times = result.slot_times
    slowed = [r for r in runs if r.job.num_slots > 1 and r.factor > 1.0]
    gangs = [r for r in runs if r.job.num_slots > 1]
    preemptions = sum(run.preemptions for run in runs)
    return RunFigures(
        result.policy,
        len(runs),
        len(done),
        mean(jct) / HOUR,
        mean(delays),
        quantile(delays, 0.5),
        quantile(delays, 0.99),
        max(delays, default=0.0),
        mean(delays_h(result, lambda run: run.job.num_slots >= gang_slots)),
        mean(run.waited_s for run in runs) / HOUR,
        span_s / HOUR,
        slot_times.useful / capacity,
        (slot_times.useful + slot_times.overhead + slot_times.slowed + slot_times.lost) / capacity,
        preemptions,
        preemptions / max(len(runs), 1),
        slot_times.lost / HOUR,
        slot_times.overhead / HOUR,
        100.0 * len(slowed) / max(len(gangs), 1),
        100.0 * slot_times.scattered / max(slot_times.gang, 1.0),
        1e3 * quantile(slot_times.pass_s, 0.5),
        1e3 * quantile(slot_times.pass_s, 0.99),
        result.wall_s,
        sum(run.failed_s is not None for run in runs),
        slot_times.lost_to_failures / HOUR,
        slot_times.lost_to_failures / max(slot_times.held, 1.0),
        useful_under_load(result),
        mean(sample.fragmented for sample in result.timeline.samples),
        capacity / HOUR * price,
        capacity * price / max(slot_times.useful, 1.0),
    )


def useful_under_load(result: Result) -> float:
    """Useful slot time as a part of capacity while jobs arrive: the first tenth is left out."""
    times = [run.job.submit_s for run in result.runs.values()]
    first, last = min(times, default=0.0), max(times, default=0.0)
    return result.timeline.useful_between(first + 0.1 * (last - first), last)
