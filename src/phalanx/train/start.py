"""`init`: put a run together from the environment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from phalanx.checkpoint import Disk, LocalDisk
from phalanx.core.gang import meshes
from phalanx.core.gang.meshes import Layout
from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.clock import SystemClock
from phalanx.train import settings
from phalanx.train.gang import context, failure, preflight, randomness, stacks
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import Connection
from phalanx.train.gang.report import NoReport, Report, ReportFile
from phalanx.train.gang.stopping import StopSignal
from phalanx.train.numerics.local_sgd.server_ranks import as_worker, is_server, run_server
from phalanx.train.observe.devices import step_timing
from phalanx.train.run import Run
from phalanx.train.settings import RunOptions
from phalanx.train.state import warm_start
from phalanx.train.state.saving import CheckpointDirectory, NoCheckpoints, Saver
from phalanx.train.state.staging import NoStaging, Staging
from phalanx.train.state.storage import storage_for
from phalanx.train.step.components import RunComponents
from phalanx.train.step.loop import Loop

_stand_ins: list[Callable[[RunOptions], Any]] = []


@contextlib.contextmanager
def standing_in(make: Callable[[RunOptions], Any]) -> Iterator[None]:
    """In here `init` returns what `make` makes: for programs that look at a script."""
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
    """Build every part and meet the other ranks; see `phalanx.train.init`."""
    if _stand_ins:
        made: Run = _stand_ins[-1](options)
        return made
    info = context.with_checkpoints(context.read(environ), checkpoints or {}, environ)
    if info.training:
        options = settings.with_spec(options, info.training)
    if info.strategy is not None:
        options = replace(options, strategy=info.strategy)
    sync, gang = options.sync, info
    serves, info = is_server(sync, gang), as_worker(sync, gang)
    layout = _laid_out(options, info.world_size)
    if options.strategy == meshes.AUTO or layout.dp < info.world_size:
        # Shards map and give back large blocks all the time (`making`): page by page that is slow.
        context.ask_for_huge_pages()
    failure.install(info.error_file)
    clock = SystemClock()
    stop = StopSignal(clock)
    stop.install()
    report: Report = NoReport()
    if info.report_file is not None:
        report = ReportFile(info.report_file, now=clock.now)
    stacks.install_handler(info.report_file)
    if serves:
        run_server(sync, gang, lambda: stop.at is not None, report)
    if resume_from is not None:
        warm_start.adopt(resume_from, info, disk or LocalDisk())
    device = _device(info)
    randomness.seed_everything(options.seed)
    look = preflight.check if options.preflight == "check" else preflight.skip_check
    connection = Connection(info, look)
    saver: Saver = NoCheckpoints()
    if info.checkpoint_dir is not None:
        staging = Staging() if info.checkpoint.background else NoStaging()
        saver = CheckpointDirectory(
            info.checkpoint_dir,
            info,
            connection.private_channel(),
            report,
            clock,
            disk or LocalDisk(),
            staging,
        )
        saver.storage = storage_for(info, report)
    loop = Loop(info, saver, connection.channel, report, clock, stop)
    if info.report_file is not None:
        loop.timing = step_timing(info, report, device)
    return Run(
        RunComponents(
            info=info,
            options=options,
            connection=connection,
            report=report,
            saver=saver,
            stop=stop,
            loop=loop,
            device=device,
            layout=layout,
        )
    )


def _laid_out(options: RunOptions, world_size: int) -> Layout:
    """How the ranks are laid out. Raises SpecInvalid for wishes that do not go together."""
    problems = []
    layout = Layout(dp=world_size)
    try:
        layout = meshes.layout(options.strategy, world_size)
    except ValueError as error:
        problems.append(Problem("strategy", str(error)))
    method = options.compression.method
    if method != "none" and layout.dp != world_size:
        problems.append(
            Problem("compression", "works between whole replicas: strategy ddp", method)
        )
    problems += settings.sync_conflicts(options, layout)
    for name, size in (("tp", layout.tp), ("pp", layout.pp)):
        if options.sync_batchnorm and size > 1:
            problems.append(Problem("sync_batchnorm", f"does not go together with {name}"))
        if options.batch_shares != "even" and size > 1:
            problems.append(Problem("batch_shares", f"does not go together with {name}"))
    if options.max_micro_batch is not None and layout.pp > 1:
        said = "does not go together with pp: give more micro_batches"
        problems.append(Problem("max_micro_batch", said))
    if problems:
        raise SpecInvalid(problems, "these are arguments of phalanx.train.init")
    return layout


def _device(info: RankInfo) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", info.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
