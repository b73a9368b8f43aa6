"""One generation of ranks on this node, from their start until all processes have ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.checkpoint.folders import FolderOrigin
from phalanx.core.contract.gang import RankFiles
from phalanx.core.contract.secrecy import OutputMask
from phalanx.core.frameworks.rank_environment import NodeSetting, rank_environment
from phalanx.core.gang.failures import Failure, RankExit, failure_of_node, is_collateral
from phalanx.core.gang.stalls import StallWatch
from phalanx.core.jobs.model import NodeOutcome
from phalanx.core.reasons import Cause
from phalanx.kit.clock import Clock
from phalanx.launch import linux
from phalanx.launch.cgroup import group_name, oom_kills
from phalanx.launch.command import PythonCommand
from phalanx.launch.ports import HeldPort
from phalanx.schemas.frameworks import framework
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import (
    FailureReport,
    Orders,
    RankFailedReport,
    RanksStartedReport,
    WarningReport,
)
from phalanx.supervise.eventloop import EventLoop, Timer
from phalanx.supervise.processes import LaunchRequest, ProcessTree
from phalanx.supervise.ranks import restore_lock
from phalanx.supervise.ranks.checkpoint_folder import CheckpointFolder, WatchedCheckpointFolder
from phalanx.supervise.ranks.folder_commits import CheckpointFolderConfig
from phalanx.supervise.ranks.grace_period import GracePeriod
from phalanx.supervise.ranks.ledger_watermarks import WatermarkFile
from phalanx.supervise.ranks.line_metrics import RecordsFromOutput
from phalanx.supervise.ranks.network import (
    GangNetwork,
    MetricsReporting,
    network_is_shared,
)
from phalanx.supervise.ranks.rank import LocalRank, Stream
from phalanx.supervise.ranks.records import GenerationRecords, MetricTail, Put, SideRecords
from phalanx.supervise.ranks.stall_monitor import StallMonitor

# How long to wait for the death that caused a collateral one.
SETTLE_S = 0.15
_SIGTERM = 15
# How long a folder's copies may take once the ranks have ended well.
_UPLOAD_S = 600.0
_SHARE_OF_GRACE = 0.4


@dataclass(frozen=True, slots=True)
class GenerationContext:
    """What a generation uses of its supervisor."""

    assignment: Assignment  # the gang and its settings
    command: PythonCommand | None  # None: the command is no Python program
    processes: ProcessTree  # children of the supervisor
    loop: EventLoop  # of the main thread
    clock: Clock  # times and monotonic time
    put: Put  # queues a report
    ended: Callable[[Generation], None]  # called once, when all of a generation has ended
    acked: Callable[[], int]  # the number of the last report that is stored
    server: Callable[[], tuple[str, str]]  # URL of the control plane now, and its authority


class Generation:
    """Starts the ranks, watches them and ends them together; calls `context.ended` once, when all are gone.

    Reading order: `start`, `rank_exited`, `_conclude` (the first failure ends all), `_check_over`.
    """

    def __init__(self, context: GenerationContext, orders: Orders, port: HeldPort) -> None:
        """`port` is held for the rendezvous of ranks on this node."""
        self._context = context
        self._orders = orders
        self._port = port
        self.number = orders.generation
        self.leads = context.assignment.leads
        self.folder = Path(context.assignment.node_dir) / f"g{self.number:03d}"
        gang, node = context.assignment.gang, context.assignment.node_rank
        self._framework = framework(gang.role.framework)
        self._reporting = MetricsReporting(context.assignment, self.number, self.folder)
        mask = OutputMask([*context.assignment.secret_values, self._reporting.token])
        self.ranks = [
            LocalRank(context.assignment.first_rank + local, self.folder, context.loop, self, mask)
            for local in range(context.assignment.num_ranks)
        ]
        files = {one.rank: one.report_file for one in self.ranks}
        watch = _stall_watch(context, orders)
        kind = GenerationRecords if self.leads else SideRecords
        marks = WatermarkFile(self.folder, context.acked)
        self.metrics = MetricTail(files)
        self.records = kind(self.number, files, context.put, watch, marks, self.metrics.add)
        self.metrics.check = self.records.warn_not_finite
        self.stalls = StallMonitor(
            (node, self.number),
            self.ranks,
            watch,
            loop=context.loop,
            clock=context.clock,
            put=context.put,
            ending=lambda: self.ending or self.failure is not None,
        )
        self._line_metrics = RecordsFromOutput(
            gang.role.metric_lines,
            context.clock,
            self.records,
            self.metrics,
            gang.trial if context.assignment.leads else None,
        )
        self.checkpoint_folder = open_checkpoint_folder(
            context, orders, self._line_metrics, self.ranks
        )
        self.failure: FailureReport | None = None
        self.stop_delivered = False
        self._ended_from_above = False
        self._oom_kills = _oom_kills(context.processes)
        self._announced = self._killing = False
        self._killed = self._finished = False
        self._settle: Timer | None = None
        self._grace = GracePeriod(context.loop, context.clock, self._check_over, self._kill)

    # -- starting ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Restore the script's checkpoint folder, where there is one, then start every rank."""
        self.checkpoint_folder.open(self._start_ranks, self.fail)

    def _start_ranks(self) -> None:
        if self.ending or self._finished:
            return
        self._line_metrics.begin(self.checkpoint_folder.restored_step, self._orders.last_step)
        context = self._context
        if not network_is_shared(context.assignment, context.command, context.processes.guard):
            self._port.release()
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self.records.watermarks.begin()
            network = GangNetwork(context.assignment, self._orders, self.folder)
            network.write_secret()
            launches = [(rank, self._launch(rank, network)) for rank in self.ranks]
            network.start_rendezvous(context.processes)
        except OSError as error:
            self.fail(f"the node cannot start ranks: {error}", Cause.START_FAILED)
            return
        for rank, launch in launches:
            if context.command is not None:
                context.processes.start_python(context.command, launch, rank)
            else:
                workdir = context.assignment.workdir
                context.processes.start_command(context.assignment.command, launch, rank, workdir)

    def _launch(self, rank: LocalRank, network: GangNetwork) -> LaunchRequest:
        assignment, adapter = self._context.assignment, self._framework
        files = RankFiles(
            report_file=str(rank.report_file),
            control_file=str(self.folder / "control"),
            error_file=str(rank.error_file),
            code_dir=assignment.workdir,
            secret_file=str(network.secret_file),
            resume_from=self.checkpoint_folder.begins_from,
        )
        gang, orders, first = assignment.gang, network.orders, assignment.first_rank
        contract = gang.rank(orders, assignment.node_in_world, rank.rank - first, files)
        node = NodeSetting(
            env={"PYTHONUNBUFFERED": "1", **network.variables(), **assignment.env},
            cpus=assignment.cpus,
            interface=network.interface,
            place=assignment.role,
            devices=assignment.devices,
            device_kind=assignment.device_kind,
        )
        env = rank_environment(adapter, gang, orders, contract, node)
        env |= self._reporting.variables(self._context.server(), rank.rank)
        rank.make_question_pipe()
        rank.env = env
        launch = LaunchRequest(env, assignment.cwd, rank.open_pipes())
        self._context.processes.keep_output(rank.output_descriptors)
        self._line_metrics.attach(rank)
        return launch

    @property
    def streams(self) -> list[Stream]:
        """The captured output of all its ranks."""
        return [stream for rank in self.ranks for stream in rank.streams]

    @property
    def ending(self) -> bool:
        """Whether the generation is being ended, so that nothing more may be started."""
        return self._killing or self.stop_delivered

    # -- what ranks do -----------------------------------------------------------------------------

    def rank_started(self, rank: LocalRank) -> None:
        """See `RankObserver`."""
        if self._killing:
            self._kill_again()
            return
        if self.stop_delivered:
            self._grace.follow(rank.terminate())
        self._announce_start()

    def _announce_start(self) -> None:
        if self._announced or any(one.pid is None for one in self.ranks):
            return
        self._announced = True
        pids = [one.pid or 0 for one in self.ranks]
        warm = all(one.warm for one in self.ranks)
        self._context.put(
            lambda seq: RanksStartedReport(seq=seq, generation=self.number, pids=pids, warm=warm)
        )

    def rank_refused(self, rank: LocalRank, message: str, *, missing: bool) -> None:
        """See `RankObserver`."""
        cause = Cause.USER_ERROR if missing else Cause.START_FAILED
        self.fail(f"rank {rank.rank} could not be started: {message}", cause, rank.rank)
        self._check_over()

    def rank_exited(self, rank: LocalRank) -> None:
        """See `RankObserver`."""
        exit = rank.exit
        assert exit is not None
        if not self._killing and self._is_failure(exit):
            if is_collateral(exit):
                if self._settle is None:
                    self._settle = self._context.loop.call_later(SETTLE_S, self._conclude)
            else:
                self._conclude()
        self._check_over()

    def _is_failure(self, exit: RankExit) -> bool:
        if exit.exit_code == 0:
            return False
        if self.stop_delivered:
            return not (_terminated(exit) or is_collateral(exit))
        return True

    def _conclude(self) -> None:
        """Report the first rank that failed and end the others."""
        if self.failure is not None or self._killing:
            return
        self.records.read()
        exits = [one.exit for one in self.ranks if one.exit and self._is_failure(one.exit)]
        if not exits:
            return
        self._report_failure(
            failure_of_node(
                exits,
                node_rank=self._context.assignment.node_rank,
                stepped=self.records.step is not None or self._orders.restarts > 0,
                oom_killed=_more(self._oom_kills, _oom_kills(self._context.processes)),
            )
        )

    def fail(
        self, message: str, cause: Cause, rank: int | None = None, traceback: str = ""
    ) -> None:
        """End the generation because of a failure outside its ranks."""
        if self.failure is None and not self._killing and not self._finished:
            now, node = self._context.clock.now(), self._context.assignment.node_rank
            self._report_failure(Failure(cause, rank, node, now, message, traceback=traceback))
            self._check_over()

    def _report_failure(self, failure: Failure) -> None:
        report = FailureReport.from_core(failure)
        self.failure = report
        self._kill()
        if self.fault is None:
            role = self._context.assignment.role
            assert role is not None
            # The role is not required: its failure does not fail the job, but the user must see it.
            said = f"role {role.name}: {report.message}; the job continues without the role"
            fields: dict[str, Any] = {"rank": report.rank, "message": said, "at": report.at}
            self._context.put(lambda seq: WarningReport(seq=seq, generation=self.number, **fields))
            return
        self._context.put(
            lambda seq: RankFailedReport(seq=seq, generation=self.number, failure=report)
        )

    # -- ending ------------------------------------------------------------------------------------

    def end(self) -> None:
        """Kill every rank at once: another node's rank has failed, or the attempt is over."""
        self.checkpoint_folder.hurry()
        if not self._killing:
            self._ended_from_above = True
            self._kill()

    def stop(self, grace_s: float) -> None:
        """Ask the ranks to leave with SIGTERM, and kill the rest when the grace period is over."""
        self._grace.begin(grace_s)
        if self._finished or not self._announced:
            self.checkpoint_folder.hurry()
        if self.stop_delivered:
            return
        self.stop_delivered = True
        for rank in self.ranks:
            self._grace.follow(rank.terminate())
        # A program that runs before the ranks has nothing to save.
        self._check_over()

    def _kill(self) -> None:
        if not self._killing:
            self._killing = True
            self._kill_again()

    def _kill_again(self) -> None:
        self._killed = False
        self._context.processes.kill_all(self._all_killed)

    def _all_killed(self) -> None:
        self._killed = True
        self._check_over()

    def _check_over(self) -> None:
        if self._finished or not all(one.settled or not one.asked for one in self.ranks):
            return
        if not self._killing:
            if self._settle is not None and self.failure is None:
                # Every rank has ended: the cause of a collateral death will not appear any more.
                self._conclude()
            elif not self._grace.waiting:
                # All ranks have ended. Kill what they left behind: daemons, data workers.
                self._kill()
        if self._killed and not self._finished:
            self._finished = True
            if self.failure is None and all(_is_clean(one) for one in self.ranks):
                upload_s = min(_UPLOAD_S, _SHARE_OF_GRACE * self._grace.left_s)
                self.checkpoint_folder.finish(self._finish, upload_s)
            else:
                self.checkpoint_folder.abandon(self._finish)

    def close(self) -> None:
        """Close its report files: everything in them was read."""
        self.records.close()
        self.metrics.close()

    def _finish(self) -> None:
        if self._settle is not None:
            self._settle.cancel()
        self._grace.close()
        for rank in self.ranks:
            rank.close()
        self._context.processes.forget_output()
        self.records.read()
        self.failure = self.failure or _unsaved_as_failure(self._context, self.checkpoint_folder)
        self._context.ended(self)

    @property
    def unsaved(self) -> str:
        """Why the last checkpoint of a run that came to its end is missing; empty: it is not."""
        return (self.records.unsaved or self.checkpoint_folder.unsaved) if self.leads else ""

    @property
    def fault(self) -> FailureReport | None:
        """The failure to report for the job; None for that of a role which is not required."""
        role = self._context.assignment.role
        return self.failure if role is None or role.required else None

    @property
    def outcome(self) -> NodeOutcome:
        """How it ended on this node."""
        ended_well = self.failure is None and not self._ended_from_above
        return _outcome_of(self) if ended_well else NodeOutcome.FAILED


def _stall_watch(context: GenerationContext, orders: Orders) -> StallWatch:
    gang = context.assignment.gang
    return StallWatch(
        gang.role.stall,
        context.clock.monotonic(),
        repeated=orders.after == Cause.STALLED.value,
        # Ranks of another role may well be idle: they serve those of the first one.
        gang_size=gang.world.size if context.assignment.leads else 1,
    )


def open_checkpoint_folder(
    context: GenerationContext,
    orders: Orders,
    line_metrics: RecordsFromOutput,
    ranks: list[LocalRank],
) -> CheckpointFolder:
    """The folder that the job's script saves its state in; node rank 0 commits it."""
    assignment = context.assignment
    gang, policy = assignment.gang, assignment.gang.role.checkpoint
    if policy.directory is None:
        return CheckpointFolder()
    cwd = Path(assignment.cwd)
    folder = cwd / policy.directory
    facts = CheckpointFolderConfig(
        folder=folder,
        store=Path(gang.checkpoint_dir),
        origin=FolderOrigin(
            job=gang.job.label,
            job_uid=gang.job.uid or None,
            provenance=gang.provenance,
            attempt=gang.attempt,
            generation=orders.generation,
            world_size=gang.world.size,
            reference_world=gang.role.reference_world,
            beginning=orders.beginning,
        ),
        keep=policy.keep,
        commits=assignment.node_rank == 0,
        far=policy.store,
        env=assignment.env,
        meeting=f"{orders.master_address}:{orders.master_port}",
        lock=restore_lock.lock_file(cwd, folder) if gang.world.num_nodes > 1 else None,
        newest=Path(orders.resume_path).name if orders.resume_path and gang.role.leads else None,
        wait_s=policy.wait_s,
        job_uid=None if policy.continues else gang.job.uid or None,
    )
    outside = context.loop.call_from_outside

    def intact() -> bool:
        return all(one.pid is not None and linux.holds_files(one.pid) for one in ranks)

    return WatchedCheckpointFolder(
        facts, context.clock, outside, line_metrics.add_folder_record, line_metrics.progress, intact
    )


def _more(before: int | None, now: int | None) -> bool:
    """Whether the kernel has killed in this memory group since the generation was created."""
    return now is not None and before is not None and now > before


def _oom_kills(processes: ProcessTree) -> int | None:
    return oom_kills(name=group_name(processes.reaper.pid))


def _unsaved_as_failure(
    context: GenerationContext, folder: CheckpointFolder
) -> FailureReport | None:
    """The failure for a folder that could not be committed in the end, where the spec asks for one."""
    policy = context.assignment.gang.role.checkpoint
    if not folder.unsaved or policy.on_final_failure != "fail":
        return None
    cause, node = Cause.FINAL_CHECKPOINT_NOT_SAVED, context.assignment.node_rank
    return FailureReport.from_core(Failure(cause, None, node, context.clock.now(), folder.unsaved))


def _outcome_of(generation: Generation) -> NodeOutcome:
    """How ranks ended that did not fail."""
    records, stopped = generation.records, generation.stop_delivered
    if not all(_is_clean(one) for one in generation.ranks):
        return NodeOutcome.STOPPED if stopped else NodeOutcome.FAILED
    if records.target is not None and not stopped:
        return NodeOutcome.AT_TARGET
    done = records.done == {one.rank for one in generation.ranks}
    asked_to_stop = stopped or bool(records.stopped)
    return NodeOutcome.STOPPED if asked_to_stop and not done else NodeOutcome.SUCCEEDED


def _is_clean(rank: LocalRank) -> bool:
    return rank.exit is not None and rank.exit.exit_code == 0


def _terminated(exit: RankExit) -> bool:
    return exit.signal == _SIGTERM or exit.exit_code == 128 + _SIGTERM
