"""One generation of ranks on this node: from their start until nothing of them is left."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.checkpoint.folders import FolderOrigin
from phalanx.core.gang.failures import Failure, RankExit, classify, describe, is_collateral
from phalanx.core.gang.ranks import GangEnvironment, RankFiles, RoleEnvironment, rank_environment
from phalanx.core.gang.stalls import StallWatch
from phalanx.core.jobs.model import NodeOutcome
from phalanx.core.reasons import Cause
from phalanx.core.training.checkpoints import Keep
from phalanx.kit.clock import Clock
from phalanx.kit.text import job_label
from phalanx.launch import linux
from phalanx.launch.cgroup import oom_kills
from phalanx.launch.command import PythonCommand
from phalanx.launch.ports import interface_towards
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
from phalanx.supervise.ranks import rendezvous
from phalanx.supervise.ranks.checkpoint_folder import (
    CheckpointFolder,
    CheckpointFolderConfig,
    NoCheckpointFolder,
    WatchedCheckpointFolder,
)
from phalanx.supervise.ranks.ledger_watermarks import WatermarkFile
from phalanx.supervise.ranks.line_metrics import LineMetrics
from phalanx.supervise.ranks.postmortem import signal_name
from phalanx.supervise.ranks.rank import LocalRank
from phalanx.supervise.ranks.records import GenerationRecords, MetricTail, Put, SideRecords
from phalanx.supervise.ranks.stall_monitor import StallMonitor, patience_of

# How long to look for the death that caused a collateral one.
SETTLE_S = 0.15
_SIGKILL, _SIGTERM = 9, 15
# How long a folder's copies may take once the ranks have ended well.
_UPLOAD_S = 600.0
_SHARE_OF_GRACE = 0.4


@dataclass(frozen=True, slots=True)
class GenerationContext:
    """What a generation is given by its supervisor."""

    assignment: Assignment
    command: PythonCommand | None
    processes: ProcessTree
    loop: EventLoop
    clock: Clock
    put: Put
    over: Callable[[Generation], None]
    opener: Callable[[Path], tuple[int, Callable[[bytes], int]]]
    acked: Callable[[], int]


class Generation:
    """Starts the ranks, watches them, ends them together. `over` is called once, at the very end."""

    def __init__(self, around: GenerationContext, orders: Orders) -> None:
        self._around = around
        self._orders = orders
        self.number = orders.generation
        self.leads = around.assignment.leads
        self.folder = Path(around.assignment.node_dir) / f"g{self.number:03d}"
        gang, node = around.assignment.gang, around.assignment.node_rank
        first = around.assignment.first_rank
        self.ranks = [
            LocalRank(first + local, self.folder, around.loop, self, around.opener)
            for local in range(gang.ranks_per_node)
        ]
        files = {one.rank: one.report_file for one in self.ranks}
        patience = patience_of(around.assignment.gang.stall_after)
        watch = StallWatch(patience, around.clock.monotonic())
        kind = GenerationRecords if self.leads else SideRecords
        watermarks = WatermarkFile(self.folder, around.acked)
        self.records = kind(self.number, files, around.put, watch, watermarks)
        self.vigil = StallMonitor(
            (node, self.number), self.ranks, watch, around.loop, around.clock, around.put,
            lambda: self.ending or self.failure is not None,
        )  # fmt: skip
        self.metrics = MetricTail(files)
        self._ear = LineMetrics(gang.metric_lines, around.clock, self.records, self.metrics)
        self._kept = kept_folder(around, orders, self._ear, self.ranks)
        self.failure: FailureReport | None = None
        self.stop_delivered = False
        self._ended_from_above = False
        self._oom_kills = oom_kills()
        self._announced = False
        self._killing = False
        self._killed = False
        self._finished = False
        self._settle: Timer | None = None
        self._deadline: Timer | None = None
        self._deadline_at = math.inf
        self._signalled: set[int] = set()

    # -- beginning ---------------------------------------------------------------------------------

    def open_prelude(self) -> tuple[int, int, int]:
        """Descriptors of a program that comes before the ranks; the first one's output holds its own.

        Raises OSError.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        return self.ranks[0].open_prelude()

    def close_prelude(self) -> None:
        """It is gone."""
        self.ranks[0].close_prelude()

    def begin(self) -> None:
        """Put back the folder that the script keeps, where there is one, then start every rank."""
        self._kept.open(self._start, lambda said: self.fail(said, Cause.START_FAILED))

    def _start(self) -> None:
        if self.ending or self._finished:
            return
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self.records.watermarks.begin()
            launches = [(rank, self._launch(rank)) for rank in self.ranks]
            self._start_rendezvous()
        except OSError as error:
            self.fail(f"the node cannot start ranks: {error}", Cause.START_FAILED)
            return
        around = self._around
        for rank, launch in launches:
            if around.command is not None:
                around.processes.start_python(around.command, launch, rank)
            else:
                workdir = around.assignment.workdir
                around.processes.start_command(around.assignment.command, launch, rank, workdir)

    def _launch(self, rank: LocalRank) -> LaunchRequest:
        assignment = self._around.assignment
        files = RankFiles(
            report_file=str(rank.report_file),
            control_file=str(self.folder / "control"),
            error_file=str(rank.error_file),
        )
        gang = gang_environment(assignment, self._orders)
        local = rank.rank - assignment.first_rank
        if gang.framework == "horovod":
            gang = replace(gang, interface=interface_towards(gang.master_address))
        env = rank_environment(gang, assignment.node_in_role, local, files)
        launch = LaunchRequest(env, assignment.cwd, rank.open_pipes())
        self._ear.attend(rank)
        return launch

    def _start_rendezvous(self) -> None:
        """Horovod's ranks meet at a store that is no rank. Raises OSError."""
        assignment = self._around.assignment
        if assignment.gang.framework == "horovod" and assignment.node_in_role == 0:
            rendezvous.start(self._around.processes, self._orders.master_port, assignment.node_dir)

    @property
    def ending(self) -> bool:
        """Whether nothing may be started any more."""
        return self._killing or self.stop_delivered

    # -- what ranks do -----------------------------------------------------------------------------

    def rank_started(self, rank: LocalRank) -> None:
        """See `RankObserver`."""
        if self._killing:
            self._kill_again()
            return
        if self.stop_delivered:
            self._follow(rank.terminate())
        self._announce_start()

    def _announce_start(self) -> None:
        if self._announced or any(one.pid is None for one in self.ranks):
            return
        self._announced = True
        pids = [one.pid or 0 for one in self.ranks]
        warm = all(one.warm for one in self.ranks)
        self._around.put(
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
                    self._settle = self._around.loop.call_later(SETTLE_S, self._conclude)
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
        """Name the first failing rank and end the rest."""
        if self.failure is not None or self._killing:
            return
        self.records.read()
        exits = [one.exit for one in self.ranks if one.exit and self._is_failure(one.exit)]
        if not exits:
            return
        first = min(exits, key=lambda exit: (is_collateral(exit), exit.at, exit.rank))
        first = replace(first, out_of_memory=self._was_oom_killed(first))
        stepped = self.records.step is not None or self._orders.restarts > 0
        self._report_failure(
            Failure(
                cause=classify(first, stepped=stepped),
                rank=first.rank,
                node_rank=self._around.assignment.node_rank,
                at=first.at,
                message=describe(first, signal_name(first)),
                collateral=is_collateral(first),
                exit_code=first.exit_code,
                signal=first.signal,
                exception=first.exception,
                traceback=first.traceback,
            )
        )

    def _was_oom_killed(self, exit: RankExit) -> bool:
        now = oom_kills()
        if exit.signal != _SIGKILL or now is None or self._oom_kills is None:
            return False
        return now > self._oom_kills

    def fail(
        self, message: str, cause: Cause, rank: int | None = None, traceback: str = ""
    ) -> None:
        """End the generation for a reason of our own."""
        if self.failure is None and not self._killing and not self._finished:
            now = self._around.clock.now()
            node = self._around.assignment.node_rank
            self._report_failure(Failure(cause, rank, node, now, message, traceback=traceback))
            self._check_over()

    def _report_failure(self, failure: Failure) -> None:
        report = FailureReport.from_core(failure)
        self.failure = report
        self._kill()
        if self.fault is None:
            role = self._around.assignment.role
            assert role is not None
            # No failure of the job; nobody would hear of it otherwise.
            said = f"role {role.name}: {report.message}; the job goes on without it"
            self._around.put(lambda seq: WarningReport(
                seq=seq, generation=self.number, rank=report.rank, message=said, at=report.at))  # fmt: skip
            return
        self._around.put(
            lambda seq: RankFailedReport(seq=seq, generation=self.number, failure=report)
        )

    # -- ending ------------------------------------------------------------------------------------

    def end(self) -> None:
        """Kill everything at once: another node's rank has failed, or the attempt is over."""
        self._kept.hurry()
        if not self._killing:
            self._ended_from_above = True
            self._kill()

    def stop(self, grace_s: float) -> None:
        """Ask the ranks to leave, and kill what is left when the grace is over."""
        around = self._around
        at = around.clock.monotonic() + grace_s
        if at < self._deadline_at:
            # Said again, a grace may become shorter and never longer.
            self._deadline_at = at
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = around.loop.call_later(grace_s, self._kill)
        if self._finished or not self._announced:
            self._kept.hurry()
        if self.stop_delivered:
            return
        self.stop_delivered = True
        for rank in self.ranks:
            self._follow(rank.terminate())
        # What comes before the ranks has nothing to save.
        self._check_over()

    def _follow(self, handles: list[int]) -> None:
        for handle in handles:
            self._signalled.add(handle)
            self._around.loop.watch(handle, lambda handle=handle: self._left(handle))  # type: ignore[misc]

    def _left(self, handle: int) -> None:
        self._around.loop.forget(handle)
        self._signalled.discard(handle)
        os.close(handle)
        self._check_over()

    def _kill(self) -> None:
        if not self._killing:
            self._killing = True
            self._kill_again()

    def _kill_again(self) -> None:
        self._killed = False
        self._around.processes.kill_all(self._all_killed)

    def _all_killed(self) -> None:
        self._killed = True
        self._check_over()

    def _check_over(self) -> None:
        if self._finished or not all(one.settled or not one.asked for one in self.ranks):
            return
        if not self._killing:
            if self._settle is not None and self.failure is None:
                # Every rank has ended; no better cause will come.
                self._conclude()
            elif not self._signalled:
                # All have left. What they left behind (daemons, data workers) goes now.
                self._kill()
        if self._killed and not self._finished:
            self._finished = True
            if self.failure is None and all(_is_clean(one) for one in self.ranks):
                left_s = max(0.0, self._deadline_at - self._around.clock.monotonic())
                self._kept.finish(self._finish, min(_UPLOAD_S, _SHARE_OF_GRACE * left_s))
            else:
                self._kept.abandon(self._finish)

    def close(self) -> None:
        """Nothing of it will be read again."""
        self.records.close()
        self.metrics.close()

    def _finish(self) -> None:
        for timer in (self._settle, self._deadline):
            if timer is not None:
                timer.cancel()
        for handle in list(self._signalled):
            self._around.loop.forget(handle)
            os.close(handle)
        self._signalled.clear()
        for rank in self.ranks:
            rank.close()
        self.records.read()
        self._around.over(self)

    @property
    def fault(self) -> FailureReport | None:
        """Its failure, where that is one of the job: not that of a role which is not required."""
        role = self._around.assignment.role
        return self.failure if role is None or role.required else None

    @property
    def outcome(self) -> NodeOutcome:
        """How it ended on this node."""
        exits = [one.exit for one in self.ranks]
        if self.failure is not None or self._ended_from_above:
            return NodeOutcome.FAILED
        numbers = {one.rank for one in self.ranks}
        if all(exit is not None and exit.exit_code == 0 for exit in exits):
            left_early = self.stop_delivered or self.records.stopped
            return (
                NodeOutcome.STOPPED
                if left_early and self.records.done != numbers
                else NodeOutcome.SUCCEEDED
            )
        return NodeOutcome.STOPPED if self.stop_delivered else NodeOutcome.FAILED


def gang_environment(assignment: Assignment, orders: Orders) -> GangEnvironment:
    """What all ranks of one generation find in their environment."""
    gang = assignment.gang
    env = {"PYTHONUNBUFFERED": "1", **assignment.env}
    return GangEnvironment(
        job=gang.job,
        job_name=gang.job_name,
        project=gang.project,
        attempt=gang.attempt,
        generation=orders.generation,
        restarts=orders.restarts,
        restart_cause=orders.after,
        framework=gang.framework,
        num_nodes=gang.num_nodes,
        ranks_per_node=gang.ranks_per_node,
        reference_world=gang.reference_world,
        slots_per_rank=gang.slots_per_rank,
        cpus_per_node=assignment.cpus,
        master_address=orders.master_address,
        master_port=orders.master_port,
        grace_s=gang.grace_s,
        checkpoint_dir=gang.checkpoint_dir,
        checkpoint_every=gang.checkpoint_every,
        checkpoint_keep=gang.checkpoint_keep,
        checkpoint_async=gang.checkpoint_async,
        checkpoint_compress=gang.checkpoint_compress,
        checkpoint_store=gang.checkpoint_store,
        checkpoint_key_env=gang.checkpoint_key_env,
        checkpoint_key_file=gang.checkpoint_key_file,
        training=gang.training,
        job_started_at=gang.job_started_at,
        resume_path=orders.resume_path,
        code_dir=assignment.workdir,
        user_env=env,
        role=_role_environment(assignment, orders),
    )


def _role_environment(assignment: Assignment, orders: Orders) -> RoleEnvironment | None:
    role = assignment.role
    if role is None:
        return None
    masters = {one.name: f"{one.address}:{one.port}" for one in orders.masters}
    return RoleEnvironment(role.name, role.first_rank, role.gang_size, role.lead_dir, masters)


def kept_folder(
    around: GenerationContext, orders: Orders, ear: LineMetrics, ranks: list[LocalRank]
) -> CheckpointFolder:
    """The folder that the job's script keeps its state in; node rank 0 commits it."""
    assignment = around.assignment
    gang = assignment.gang
    if gang.checkpoint_directory is None:
        return NoCheckpointFolder()
    facts = CheckpointFolderConfig(
        folder=Path(assignment.cwd, gang.checkpoint_directory),
        store=Path(gang.checkpoint_dir),
        origin=FolderOrigin(
            job=job_label(gang.job),
            attempt=gang.attempt,
            generation=orders.generation,
            world_size=gang.num_nodes * gang.ranks_per_node,
            reference_world=gang.reference_world,
        ),
        keep=Keep.from_json(gang.checkpoint_keep or {}),
        commits=assignment.node_rank == 0,
        far=gang.checkpoint_store,
        env=assignment.env,
        meeting=f"{orders.master_address}:{orders.master_port}",
    )
    outside = around.loop.call_from_outside

    def intact() -> bool:
        return all(one.pid is not None and linux.holds_files(one.pid) for one in ranks)

    return WatchedCheckpointFolder(facts, around.clock, outside, ear.found, ear.progress, intact)


def _is_clean(rank: LocalRank) -> bool:
    return rank.exit is not None and rank.exit.exit_code == 0


def _terminated(exit: RankExit) -> bool:
    return exit.signal == _SIGTERM or exit.exit_code == 128 + _SIGTERM
