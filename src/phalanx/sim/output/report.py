"""From a finished run to figures. Times in hours, slot time in slot-hours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from phalanx.sim.cluster.run import Result
from phalanx.sim.model import SimulatedJob

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One row of a comparison. Delay is completion time beyond a run alone on an empty cluster."""

    policy: str
    num_jobs: int
    num_done: int
    jct_h: float
    delay_h: float
    delay_p50_h: float
    delay_p99_h: float
    delay_max_h: float
    gang_delay_h: float
    queue_h: float
    makespan_h: float
    useful: float
    busy: float
    preemptions: int
    preemptions_per_job: float
    lost_h: float
    overhead_h: float
    slowed_percent: float
    scattered_percent: float
    pass_p50_ms: float
    pass_p99_ms: float
    wall_s: float
    num_failed: int = 0
    lost_to_failures_h: float = 0.0
    lost_to_failures: float = 0.0
    useful_under_load: float = 0.0
    fragmented: float = 0.0
    cost: float = 0.0
    cost_per_useful_h: float = 0.0


@dataclass(frozen=True, slots=True)
class ProjectRow:
    """What one project got: waits in hours, slot-hours, and its part of the cost by use."""

    project: str
    num_jobs: int
    wait_h: float
    wait_p99_h: float
    delay_h: float
    slot_h: float
    share: float
    cost: float


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
        rows.append(
            ProjectRow(
                name,
                len(runs),
                mean(waits),
                quantile(waits, 0.99),
                mean(delay_s(result, run) / HOUR for run in runs),
                slot_h,
                slot_h * HOUR / max(total, 1.0),
                slot_h * price,
            )
        )
    return tuple(rows)


def delay_s(result: Result, run: SimulatedJob) -> float:
    """Completion time beyond what the job takes alone, seconds."""
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
    """The usual row. `price` is that of one slot for an hour."""
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
