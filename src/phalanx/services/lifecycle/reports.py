"""Turn supervisor reports into events of the job machine and rows of the store."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from phalanx.core.gang.failures import Failure
from phalanx.core.gang.roles import node_of_rank, part_at, world_of
from phalanx.core.gang.stalls import with_culprit
from phalanx.core.jobs import events as e
from phalanx.core.logs.segments import LogSegment
from phalanx.core.reasons import Cause
from phalanx.core.training.ledger import Consumed, merge
from phalanx.errors import UserError
from phalanx.schemas.wire import supervision as wire
from phalanx.schemas.wire.report_bytes import decode_columns
from phalanx.services.lifecycle.commit import LEAVING, Note
from phalanx.services.lifecycle.provenance.attempt_facts import (
    input_events,
    params_events,
    seed_events,
    software_events,
)
from phalanx.store import events, jobs, lineage, supervisors, telemetry
from phalanx.store.database import Tx
from phalanx.store.lineage import GenerationRow, LedgerSlice
from phalanx.store.metrics import arrivals
from phalanx.store.metrics.arrivals import MetricsKey
from phalanx.store.storage import objects
from phalanx.store.studies import trial_reports
from phalanx.store.studies.trial_reports import Taken

if TYPE_CHECKING:
    from phalanx.core.curves.columns import MetricColumns

_FAR_US = 1 << 62


@dataclass(slots=True)
class Inbox:
    """State while one sync call is processed."""

    tx: Tx  # the transaction of the call
    job: int  # number of the job
    attempt: int  # number of the attempt
    node_rank: int  # of the supervisor
    now: int  # microseconds UTC
    offset_us: int  # added to the supervisor's times
    log_limit: int | None = None  # bytes of output that the job may have stored; None: any number
    #: generation and step of the supervisor's row before the call
    known_step: tuple[int, int | None] = (0, None)
    events: list[e.JobEvent | Note] = field(default_factory=list)  # to commit at the end
    row: dict[str, Any] = field(default_factory=dict)  # changes of the supervisor's row
    #: rows of reports of a trial, stored together
    results: list[dict[str, Any]] = field(default_factory=list)
    #: metrics on the control plane's clock, stored together
    columns: list[tuple[MetricsKey, MetricColumns]] = field(default_factory=list)
    #: rows of generations by number, as they are stored
    _stored: dict[int, GenerationRow | None] = field(default_factory=dict)
    #: rows of the attempt's generations, where all of them have been read; None: they are read one by one
    known: Mapping[int, GenerationRow] | None = None
    #: the same with what the reports say
    _generations: dict[int, GenerationRow] = field(default_factory=dict)

    def ours(self, at: int) -> int:
        """Convert a time of the supervisor's clock to the server's; never in the future."""
        return min(at + self.offset_us, self.now)

    def key(self, generation: int) -> lineage.Key:
        """The key of a generation in the lineage tables."""
        return (self.job, self.attempt, generation)

    def generation(self, number: int) -> GenerationRow:
        """The times of a generation as they are with the reports so far."""
        if number not in self._generations:
            key = self.key(number)
            rows = self.known
            known = lineage.find_generation(self.tx, key) if rows is None else rows.get(number)
            self._stored[number] = known
            self._generations[number] = GenerationRow(*key) if known is None else known
        return self._generations[number]

    def touch(self, number: int, **times: Any) -> None:
        """Change times of a generation."""
        self._generations[number] = replace(self.generation(number), **times)

    def changed(self) -> list[tuple[GenerationRow, GenerationRow | None]]:
        """The rows of generations that were asked for, each with what is stored."""
        return [(row, self._stored[number]) for number, row in self._generations.items()]

    def flush(self) -> None:
        """Store the times of generations that the reports have changed, metrics, and results of a trial."""
        flush_all([self])


def flush_all(inboxes: Sequence[Inbox]) -> None:
    """`Inbox.flush` of many inboxes of one transaction, in a few statements."""
    for one in inboxes:
        if one.results:
            _store_results(one)
    if inboxes:
        changed = [row for one in inboxes for row in one.changed()]
        lineage.put_generations(inboxes[0].tx, changed)
        arrivals.add_columns(inboxes[0].tx, [report for one in inboxes for report in one.columns])


def read_report(inbox: Inbox, report: wire.Report) -> None:
    """Process one report. Raises UserError for an invalid one."""
    _READERS[type(report)](inbox, report)


def failure_of(report: wire.FailureReport, node_rank: int, offset_us: int) -> Failure:
    """The failure as a core value, on the server's clock. An unknown cause counts as a rank crash."""
    known = {cause.value for cause in Cause}
    cause = Cause(report.cause) if report.cause in known else Cause.RANK_CRASH
    return Failure(
        cause=cause,
        rank=report.rank,
        node_rank=node_rank,
        at=report.at + offset_us,
        message=report.message,
        collateral=report.collateral,
        exit_code=report.exit_code,
        signal=report.signal,
        exception=report.exception,
        traceback=report.traceback,
    )


def ended_event(
    report: wire.RanksEndedReport, attempt: int, node_rank: int, offset_us: int
) -> e.RanksEnded:
    """The RanksEnded event for a report or an exit record."""
    failure = report.failure
    return e.RanksEnded(
        attempt=attempt,
        generation=report.generation,
        node_rank=node_rank,
        outcome=report.outcome,
        port=report.port,
        step=report.step,
        unsaved=report.unsaved,
        target=report.target,
        failure=None if failure is None else failure_of(failure, node_rank, offset_us),
    )


def _node_ready(inbox: Inbox, report: wire.NodeReadyReport) -> None:
    inbox.events.append(
        e.NodeReady(inbox.attempt, inbox.node_rank, report.port, tuple(report.addresses[:64]))
    )
    inbox.row |= {"host": report.host, "pid": report.pid}


def _ranks_started(inbox: Inbox, report: wire.RanksStartedReport) -> None:
    inbox.events.append(e.RanksStarted(inbox.attempt, report.generation, inbox.node_rank))
    inbox.row |= {"generation": report.generation, "pids": report.pids, "warm": report.warm}
    inbox.touch(report.generation, up_at=inbox.now)


def _rank_failed(inbox: Inbox, report: wire.RankFailedReport | wire.RanksStalledReport) -> None:
    stalled = isinstance(report, wire.RanksStalledReport)
    failure = failure_of(report.failure, inbox.node_rank, inbox.offset_us)
    event = e.RanksStalled if stalled else e.RankFailed
    inbox.events.append(event(inbox.attempt, report.generation, inbox.node_rank, failure))
    _record_failure(inbox, report.generation, failure)


def _record_failure(inbox: Inbox, generation: int, failure: Failure) -> None:
    """Keep the earliest failure time of the generation; collateral failures are left out."""
    if failure.collateral:
        return
    known = inbox.generation(generation).failed_at
    at = min(failure.at, inbox.now)
    if known is None or at < known:
        inbox.touch(generation, failed_at=at)


def _ranks_ended(inbox: Inbox, report: wire.RanksEndedReport) -> None:
    if report.step is None and inbox.known_step[0] == report.generation:
        # The script has sent its steps to the API, not to its supervisor.
        report = report.model_copy(update={"step": inbox.known_step[1]})
    event = ended_event(report, inbox.attempt, inbox.node_rank, inbox.offset_us)
    inbox.events.append(event)
    inbox.row["pids"] = []
    if event.failure is not None:
        _record_failure(inbox, report.generation, event.failure)
    inbox.touch(report.generation, ended_at=inbox.now)
    if report.step is not None:
        record_step(inbox, report.generation, report.step, inbox.now)


def _checkpoint(inbox: Inbox, report: wire.CheckpointReport) -> None:
    values = report.model_dump(exclude={"kind", "seq", "generation", "at"})
    values["created_at"] = inbox.ours(report.at)
    if lineage.add_checkpoint(inbox.tx, inbox.key(report.generation), values):
        objects.keep(inbox.tx, inbox.job, report.path, inbox.now)
        inbox.events.append(
            e.CheckpointCommitted(inbox.attempt, report.generation, report.step, report.path)
        )


def _trial(inbox: Inbox, report: wire.TrialReport) -> None:
    values = report.model_dump(exclude={"kind", "seq"}) | {"at": inbox.ours(report.at)}
    values |= {"job": inbox.job, "attempt": inbox.attempt, "checkpoint": report.checkpoint or None}
    inbox.results.append(values)


def _store_results(inbox: Inbox) -> None:
    """Store the results of a trial; of those that differ from the first one of their unit, warn."""
    taken = trial_reports.add_many(inbox.tx, inbox.job, inbox.results)
    for values, one in zip(inbox.results, taken, strict=True):
        if one is Taken.DIFFERS:
            said = f"the report of unit {values['unit']} differs from the first one, which stands"
            message = f"{said}: {values['value']}"
            data = {"message": message, "rank": 0, "node_rank": inbox.node_rank}
            inbox.events.append(Note("warned", inbox.attempt, values["generation"], data))
    inbox.results.clear()


def _restored(inbox: Inbox, report: wire.RestoredReport) -> None:
    values = report.model_dump(exclude={"kind", "seq", "generation"}) | {"at": inbox.now}
    if lineage.add_restore(inbox.tx, inbox.key(report.generation), values):
        if report.path is not None and "://" in report.path:
            objects.read(inbox.tx, inbox.job, report.path, inbox.now)
        inbox.events.append(Note("restored", inbox.attempt, report.generation, values))


def _quarantined(inbox: Inbox, report: wire.QuarantinedReport) -> None:
    key = inbox.key(report.generation)
    lineage.quarantine_checkpoint(inbox.tx, key, report.path, inbox.now)
    objects.end(inbox.tx, inbox.job, [report.path], inbox.now)
    beginning = jobs.load(inbox.tx, inbox.job).job.progress.beginning
    left = lineage.newest_valid(inbox.tx, inbox.job, after_attempt=beginning)
    inbox.events.append(
        e.CheckpointQuarantined(
            inbox.attempt,
            report.generation,
            report.path,
            report.message,
            None if left is None else left.path,
            None if left is None else left.step,
        )
    )


def _removed(inbox: Inbox, report: wire.CheckpointRemovedReport) -> None:
    lineage.mark_checkpoint(inbox.tx, inbox.job, report.path, "removed")
    objects.end(inbox.tx, inbox.job, [report.path], inbox.now)


def _copy(inbox: Inbox, report: wire.CheckpointCopyReport) -> None:
    at = inbox.ours(report.at)
    lineage.mark_copy(inbox.tx, inbox.job, report.name, report.state, report.size_bytes, at)
    if report.state in ("stored", "failed"):
        inbox.tx.touched.totals.add("phalanx_checkpoint_copies", report.state)
    if report.state == "stored":
        for path in lineage.paths_named(inbox.tx, inbox.job, report.name):
            objects.keep(inbox.tx, inbox.job, path, inbox.now, size=report.size_bytes)


def _warning(inbox: Inbox, report: wire.WarningReport) -> None:
    data = {"message": report.message, "rank": report.rank, "node_rank": inbox.node_rank}
    if report.code:
        data["code"] = report.code
    inbox.events.append(Note("warned", inbox.attempt, report.generation, data))


def _guard(inbox: Inbox, report: wire.GuardReport) -> None:
    data = report.model_dump(exclude={"kind", "seq", "generation"})
    job = jobs.load(inbox.tx, inbox.job).job
    if job.attempt is not None:
        # The ranks of such a report are those of the first world, which have the same number in the gang.
        shares, parts = job.attempt.placement.shares, job.parts_now()
        places = [node_of_rank(parts, rank) for rank in report.ranks]
        data["nodes"] = [shares[place].node for place in places if place is not None]
    inbox.events.append(Note("guarded", inbox.attempt, report.generation, data))


def _stacks(inbox: Inbox, report: wire.StacksReport) -> None:
    data = report.model_dump(exclude={"kind", "seq", "generation"})
    data |= {"node_rank": inbox.node_rank, "at": inbox.ours(report.at)}
    inbox.events.append(Note("stacks", inbox.attempt, report.generation, data))
    failure = _stall_over_all_nodes(inbox, report)
    excuse = "" if failure is None else report.excuse
    if excuse:
        inbox.touch(report.generation, failed_at=None)
    inbox.events.append(
        e.StacksCaptured(
            inbox.attempt,
            report.generation,
            inbox.node_rank,
            report.request,
            None if excuse else failure,
            excuse,
        )
    )


def _stall_over_all_nodes(inbox: Inbox, report: wire.StacksReport) -> Failure | None:
    """The stall that these stacks were asked for, compared with those of all other nodes; None: none.

    Ranks of another world run another script: where they are says nothing about these.
    """
    job = jobs.load(inbox.tx, inbox.job).job
    attempt = job.attempt
    if attempt is None or attempt.stall is None or attempt.generation != report.generation:
        return None
    if report.request < attempt.stacks:
        return None
    parts = job.parts_now()
    world = world_of(parts, part_at(parts, attempt.stall.node_rank))
    node_ranks = {node for part in world for node in part.nodes}
    if inbox.node_rank not in node_ranks:
        return None
    notes = [
        one
        for one in events.of_job(inbox.tx, inbox.job, limit=100_000, kinds=("stacks",))
        if (one.attempt, one.generation) == (attempt.num, attempt.generation)
        and one.data["request"] in (0, attempt.stacks)
        and one.data["node_rank"] in node_ranks
    ]
    found = {
        row["rank"]: wire.RankStacks.model_validate(row).to_core(one.data["node_rank"])
        for one in notes
        for row in one.data["ranks"]
    }
    for row in report.ranks:
        found[row.rank] = row.to_core(inbox.node_rank)
    return with_culprit(attempt.stall, dict(sorted(found.items())))


def _profile(inbox: Inbox, report: wire.ProfileReport) -> None:
    data = report.model_dump(exclude={"kind", "seq", "generation"})
    data["at"] = inbox.ours(report.at)
    inbox.events.append(Note("profiled", inbox.attempt, report.generation, data))


def _save_begun(inbox: Inbox, report: wire.SaveBegunReport) -> None:
    data = report.model_dump(exclude={"kind", "seq", "generation"})
    inbox.events.append(Note("save_begun", inbox.attempt, report.generation, data))


def _ledger(inbox: Inbox, report: wire.LedgerReport) -> None:
    rows = merge(
        Consumed(row.epoch, row.lo, row.hi, getattr(row, "times", 1)) for row in report.rows
    )
    key = inbox.key(report.generation)
    if report.added:
        lineage.add_to_ledger(inbox.tx, key, report.num_samples, rows)
        return
    slice_ = LedgerSlice(*key, inbox.node_rank, report.num_samples, rows)
    lineage.put_ledger(inbox.tx, slice_)


def _metrics(inbox: Inbox, report: wire.MetricsReport) -> None:
    for columns in arrivals.columns_in(report.points):
        _take_columns(inbox, report, columns)


def _metric_columns(inbox: Inbox, report: wire.MetricColumnsReport) -> None:
    try:
        columns = decode_columns(report)
    except ValueError as error:
        raise UserError(f"report {report.seq}: {error}") from error
    _take_columns(inbox, report, columns)


def _take_columns(
    inbox: Inbox, report: wire.MetricsReport | wire.MetricColumnsReport, columns: MetricColumns
) -> None:
    offset = inbox.offset_us
    # Far below any time, so that the sum has 64 bits.
    times = columns.times.clip(-_FAR_US, inbox.now - offset) + offset
    inbox.columns.append((inbox.key(report.generation), replace(columns, times=times)))
    for place in (0, -1) if report.leads else ():
        record_step(inbox, report.generation, int(columns.steps[place]), int(times[place]))


def _log(inbox: Inbox, report: wire.LogReport) -> None:
    try:
        data = base64.b64decode(report.data, validate=True)
    except binascii.Error as error:
        raise UserError(f"report {report.seq}: the log is not base64") from error
    place = (*inbox.key(report.generation), report.rank, report.stream)
    segment = LogSegment(0, *place, report.offset, report.dropped, inbox.now, data)
    if report.end:
        telemetry.end_log(inbox.tx, segment)
    else:
        telemetry.add_log(inbox.tx, segment, inbox.log_limit)


def _software(inbox: Inbox, report: wire.SoftwareReport) -> None:
    key = (inbox.job, inbox.attempt, inbox.node_rank)
    inbox.events += software_events(inbox.tx, key, report, inbox.now)


def _seed(inbox: Inbox, report: wire.SeedReport) -> None:
    inbox.events += seed_events(inbox.tx, (inbox.job, inbox.attempt, inbox.node_rank), report)


def _params(inbox: Inbox, report: wire.ParamsReport) -> None:
    inbox.events += params_events(
        inbox.tx, (inbox.job, inbox.attempt, inbox.node_rank), report, inbox.now
    )


def _inputs(inbox: Inbox, report: wire.InputsReport) -> None:
    key = (inbox.job, inbox.attempt, inbox.node_rank)
    inbox.events += input_events(inbox.tx, key, report, inbox.now)


def _leaving(inbox: Inbox, report: wire.LeavingReport) -> None:
    inbox.row |= {"released_at": inbox.now, "pids": []}
    inbox.tx.touched.topics.add(LEAVING)


def record_step(inbox: Inbox, generation: int, step: int, at: int) -> None:
    """Record a completed step: the first and the last one of a generation are kept."""
    known = inbox.generation(generation)
    changes: dict[str, int] = {}
    if known.first_step_at is None or at < known.first_step_at:
        changes |= {"first_step_at": at, "first_step": step}
    if known.last_step is None or step > known.last_step:
        changes |= {"last_step_at": at, "last_step": step}
    if changes:
        inbox.touch(generation, **changes)


def read_heartbeat(inbox: Inbox, beat: wire.Heartbeat, known: supervisors.SupervisorRow) -> None:
    """Record a node's progress. A late heartbeat of an ended generation is ignored."""
    if beat.generation < known.generation:
        return
    inbox.row |= beat.model_dump(include={"generation", "step", "epoch", "num_epochs"})
    if beat.step is None and beat.generation == known.generation:
        inbox.row.pop("step")  # that of a script which sends its metrics to the API stays
    inbox.row["phase"] = beat.phase[:64]
    if beat.step is not None and (beat.generation, beat.step) != (known.generation, known.step):
        record_step(inbox, beat.generation, beat.step, inbox.now)


_READERS: Mapping[type, Callable[[Inbox, Any], None]] = {
    wire.NodeReadyReport: _node_ready,
    wire.RanksStartedReport: _ranks_started,
    wire.RankFailedReport: _rank_failed,
    wire.RanksEndedReport: _ranks_ended,
    wire.CheckpointReport: _checkpoint,
    wire.CheckpointCopyReport: _copy,
    wire.TrialReport: _trial,
    wire.RestoredReport: _restored,
    wire.QuarantinedReport: _quarantined,
    wire.CheckpointRemovedReport: _removed,
    wire.WarningReport: _warning,
    wire.GuardReport: _guard,
    wire.StacksReport: _stacks,
    wire.ProfileReport: _profile,
    wire.SaveBegunReport: _save_begun,
    wire.RanksStalledReport: _rank_failed,
    wire.LedgerReport: _ledger,
    wire.MetricsReport: _metrics,
    wire.MetricColumnsReport: _metric_columns,
    wire.LogReport: _log,
    wire.SeedReport: _seed,
    wire.ParamsReport: _params,
    wire.SoftwareReport: _software,
    wire.InputsReport: _inputs,
    wire.LeavingReport: _leaving,
}
