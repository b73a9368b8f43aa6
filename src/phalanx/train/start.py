"""Construction of a run from the environment and the script's options, for `init`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from phalanx.checkpoint import Disk
from phalanx.core.contract.records import SeedRecord
from phalanx.core.gang import meshes
from phalanx.core.gang.meshes import Layout
from phalanx.core.training.guards import GuardPolicy
from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.clock import Clock, SystemClock
from phalanx.train import settings
from phalanx.train.data.shares import AUTO, MEASURED_STEPS, Shares, shares_for
from phalanx.train.gang import context, failure, preflight, randomness, stacks
from phalanx.train.gang.agreement import Agreement, agreement_for
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import Connection
from phalanx.train.gang.report import Journal, NoReport, Report, report_to
from phalanx.train.gang.stopping import StopSignal
from phalanx.train.numerics import batch_norm, kernels, local_sgd, precision
from phalanx.train.numerics.compression import CompressionContext, Compressors
from phalanx.train.numerics.local_sgd.server_ranks import as_worker, is_server, run_server
from phalanx.train.numerics.precision import Scale
from phalanx.train.observe.devices import step_timing
from phalanx.train.observe.profiling import Profiler
from phalanx.train.observe.stragglers import ComputeTimes, NoStragglers, Stragglers
from phalanx.train.observe.timing import CurrentTiming, NoTiming
from phalanx.train.parallel import strategy_choice
from phalanx.train.parallel.replica import GradientScale
from phalanx.train.run import Run
from phalanx.train.settings import RunOptions
from phalanx.train.state import warm_start
from phalanx.train.state.resuming import Resumption
from phalanx.train.state.saving import CheckpointDirectory, Saver
from phalanx.train.state.staging import NoStaging, Staging
from phalanx.train.state.storage import storage_for
from phalanx.train.step.divergence import LossGuard, SpikeGuard
from phalanx.train.step.engine import StepEngine, StepParts
from phalanx.train.step.guard import StepGuard
from phalanx.train.step.guard_state import GuardStateFile, GuardStateStore
from phalanx.train.step.policies import RunComponents, TrainingPolicies
from phalanx.train.step.preparation import RunPreparation
from phalanx.train.step.progress import Progress
from phalanx.train.step.requested_saves import RequestedSaves
from phalanx.train.step.rung import RungGate
from phalanx.train.step.save_schedule import SaveSchedule
from phalanx.train.step.trained import TrainedObjects
from phalanx.train.trial.reporting import TrialReporter

_stand_ins: list[Callable[[RunOptions], Any]] = []


@contextlib.contextmanager
def standing_in(make: Callable[[RunOptions], Any]) -> Iterator[None]:
    """Return a context in which `init` returns `make(options)`, for programs that plan a script."""
    _stand_ins.append(make)
    try:
        yield
    finally:
        _stand_ins.pop()


def start(
    options: RunOptions,
    *,
    checkpoints: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    disk: Disk | None = None,
    resume_from: str | Path | None = None,
) -> Run:
    """Build every part and connect to the other ranks; see `phalanx.train.init`."""
    if _stand_ins:
        made: Run = _stand_ins[-1](options)
        return made
    info = context.with_checkpoints(context.read(environ), checkpoints or {}, environ)
    if info.training:
        options = settings.with_spec(options, info.training)
    if info.trial.seed is not None:
        options = replace(options, seed=info.trial.seed)
    if info.strategy is not None:
        options = replace(options, strategy=info.strategy)
    serves, gang, info = is_server(options.sync, info), info, as_worker(options.sync, info)
    layout = _laid_out(options, info.world_size)
    if options.strategy == meshes.AUTO or layout.dp < info.world_size:
        # Shards allocate and release large blocks often (`materialize`): small pages are slow.
        context.ask_for_huge_pages()
    failure.install(info.error_file)
    clock = SystemClock()
    stop = StopSignal(clock)
    stop.install()
    report = report_to(info.report_file, clock.now)
    stacks.install_handler(info.report_file)
    if serves:
        run_server(options.sync, gang, lambda: stop.at is not None, report)
    disk = disk or Disk()
    if info.trial.fork_of is not None:
        warm_start.adopt_parent(info.trial.fork_of, info, disk)
    elif (begins := info.resume_from or resume_from) is not None:
        warm_start.adopt(begins, info, disk)
    device = _device(info)
    kernels.choose_kernels()
    randomness.seed_everything(options.seed)
    if info.is_main:
        report.write(SeedRecord(seed=options.seed))
    look = preflight.check if options.preflight == "check" else preflight.skip_check
    connection = Connection(info, look)
    components = RunComponents(
        info=info,
        options=options,
        clock=clock,
        connection=connection,
        report=report,
        saver=_saver(info, connection, report, disk, stop, clock),
        stop=stop,
        device=device,
        layout=layout,
    )
    return assemble(components)


def _saver(
    info: RankInfo,
    connection: Connection,
    report: Report,
    disk: Disk,
    stop: StopSignal,
    clock: Clock,
) -> Saver:
    """Return what saves the checkpoints of this run. Collective."""
    if info.checkpoint_dir is None:
        return Saver()
    staging = Staging() if info.checkpoint.background else NoStaging()
    channel = connection.private_channel()
    storage = storage_for(info, report, channel)
    return CheckpointDirectory(
        info.checkpoint_dir, info, channel, report, clock, disk, staging, storage, stop.pause
    )


def assemble(components: RunComponents) -> Run:
    """Build the step engine and the run around it: the only wiring. Collective."""
    info, options, report = components.info, components.options, components.report
    channel, saver = components.connection.channel, components.saver
    progress, journal, timing = Progress(), Journal(report), _timing(components)
    share_scale, loss_scale = GradientScale(), precision.scale_for(options.precision)
    strategy = strategy_choice.strategy_for(
        options, components.layout, info, channel=channel, report=report, on_choice=saver.share_as
    )
    compressors = _compressors(options, progress, loss_scale, report)
    rounds = local_sgd.rounds_for(options.sync, info, report)
    trained = TrainedObjects(progress, strategy, channel, compressors, rounds, options.seed)
    saver.watch(trained.models, trained.optimizers, strategy.name, strategy.place)
    store = _guard_state_store(components)
    guard, losses = _guards(components, progress, journal, store, loss_scale)
    shares = shares_for(
        options.batch_shares, info.world_size, report if info.is_main else NoReport()
    )
    resumption = Resumption(saver)

    def begin_training() -> Agreement:
        resumption.used_up(trained.held())
        gate.resumed()
        reduces = strategy.reduces(trained.models)
        return agreement_for(info, components.connection, report, reduces, rounds.agreement)

    def first_step_done() -> None:
        components.connection.settle()
        saver.warm(engine.state)

    parts = StepParts(
        trial=TrialReporter(info, channel, report, components.stop, components.clock),
        at_target=lambda: gate.pause(),
        progress=progress,
        journal=journal,
        timing=timing,
        profiling=Profiler(
            timing, lambda: progress.step, info, channel, report, trained.models, components.device
        ),
        trained=trained,
        strategy=strategy,
        compressors=compressors,
        rounds=rounds,
        share_scale=share_scale,
        loss_scale=loss_scale,
        guard=guard,
        losses=losses,
        policies=TrainingPolicies(
            components, progress, store, loss_scale, shares, _statistics(components, share_scale)
        ),
        stragglers=_stragglers(components, shares),
        schedule=SaveSchedule(info, components.clock.monotonic(), components.clock.now()),
        requested=RequestedSaves(info, components.report),
        start=begin_training,
        on_first_step=first_step_done,
    )
    engine = StepEngine(components, parts)
    gate = RungGate(components, parts, engine)
    preparation = RunPreparation(components, parts, engine, resumption)
    return Run(components, parts, engine, preparation, gate)


def _timing(components: RunComponents) -> CurrentTiming:
    """Return the measurement of steps; a run that nothing launched has none."""
    info, timing = components.info, CurrentTiming(NoTiming())
    if info.report_file is not None:
        timing.replace(step_timing(info, components.report, components.device))
    return timing


def _compressors(
    options: RunOptions, progress: Progress, scale: Scale, report: Report
) -> Compressors:
    """Return what compresses the gradients of each replica."""
    context = CompressionContext(lambda: progress.step, lambda: scale.factor, report)
    return Compressors(options.compression, options.seed, context)


def _guard_state_store(components: RunComponents) -> GuardStateStore:
    """Return the storage of what a generation leaves to the next one."""
    info = components.info
    if info.checkpoint_dir is None:
        return GuardStateStore()
    channel = components.connection.channel
    tier = components.saver.storage.tier
    return GuardStateFile(info.checkpoint_dir, info, channel, components.report, tier)


def _guards(
    components: RunComponents,
    progress: Progress,
    journal: Journal,
    store: GuardStateStore,
    scale: Scale,
) -> tuple[StepGuard, LossGuard]:
    """Return the guards against gradients that are not finite, and against losses that jump."""
    info, options = components.info, components.options
    channel, report = components.connection.channel, components.report if info.is_main else None
    guard = StepGuard(
        progress,
        report,
        channel,
        store,
        options.on_non_finite,
        scale,
        independent=options.sync.is_local,
    )
    if options.on_spike is GuardPolicy.OFF:
        return guard, LossGuard()
    place = (info.attempt, info.generation)
    return guard, SpikeGuard(progress, journal, guard, channel, options.on_spike, place)


def _statistics(
    components: RunComponents, scale: GradientScale
) -> batch_norm.StatisticsGroup | None:
    """Return the group over which batch norms are synchronised, if they are. Collective."""
    if not components.options.sync_batchnorm or components.info.world_size == 1:
        return None
    return batch_norm.StatisticsGroup(components.connection.private_group(), scale)


def _stragglers(components: RunComponents, shares: Shares) -> Stragglers:
    """Return what compares the compute times of the ranks, if anything does."""
    info, options = components.info, components.options
    window = options.straggler_window
    if options.batch_shares == AUTO:
        window = window or MEASURED_STEPS
    if not window or info.world_size == 1:
        return NoStragglers()
    place, channel = (info.rank, info.world_size), components.connection.channel
    return ComputeTimes(window, place, channel, components.report, shares.observe)


def _laid_out(options: RunOptions, world_size: int) -> Layout:
    """Return the layout of the ranks. Raises SpecInvalid for options that exclude each other."""
    problems = []
    layout = Layout(dp=world_size)
    try:
        layout = meshes.layout(options.strategy, world_size)
    except ValueError as error:
        problems.append(Problem("strategy", str(error)))
    method = options.compression.method
    if method != "none" and layout.dp != world_size:
        problems.append(Problem("compression", "needs whole replicas; use strategy ddp", method))
    problems += settings.sync_conflicts(options, layout)
    for name, size in (("tp", layout.tp), ("pp", layout.pp)):
        if options.sync_batchnorm and size > 1:
            problems.append(Problem("sync_batchnorm", f"cannot be combined with {name}"))
        if options.batch_shares != "even" and size > 1:
            problems.append(Problem("batch_shares", f"cannot be combined with {name}"))
    if options.max_micro_batch is not None and layout.pp > 1:
        said = "cannot be combined with pp; use more micro_batches"
        problems.append(Problem("max_micro_batch", said))
    if problems:
        raise SpecInvalid(problems, "these are arguments of phalanx.train.init")
    return layout


def _device(info: RankInfo) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", info.device_index(torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device
