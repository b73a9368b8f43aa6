"""`init`: put a run together from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from phalanx.checkpoint import Disk, LocalDisk
from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.clock import SystemClock
from phalanx.train import context, failure, randomness, stacks, strategies
from phalanx.train.context import Every, RankInfo
from phalanx.train.devices import measured
from phalanx.train.groups import Connection
from phalanx.train.loop import Loop, StopSignal
from phalanx.train.report import NoReport, Report, ReportFile
from phalanx.train.run import Options, Parts, Run
from phalanx.train.saving import CheckpointDirectory, NoCheckpoints, Saver
from phalanx.train.staging import Direct, Staging
from phalanx.train.tuning import tuned
from phalanx.train.vault import vault_for


def start(
    options: Options,
    *,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: str | None = None,
    environ: Mapping[str, str] | None = None,
    disk: Disk | None = None,
) -> Run:
    """Build every part and meet the other ranks; see `phalanx.train.init`."""
    info = _with_arguments(context.read(environ), checkpoint_dir, checkpoint_every)
    if info.training:
        options = replace(options, **_from_spec(options, info.training))
    if info.strategy is not None:
        options = replace(options, strategy=info.strategy)
    failure.install(info.error_file)
    clock = SystemClock()
    stop = StopSignal(clock)
    stop.install()
    report: Report = NoReport()
    if info.report_file is not None:
        report = ReportFile(info.report_file, now=clock.now)
    stacks.listen(info.report_file)
    device = _device(info)
    randomness.seed_everything(options.seed)
    connection = Connection(info)
    saver: Saver = NoCheckpoints()
    if info.checkpoint_dir is not None:
        staging = Staging() if info.save_async else Direct()
        saver = CheckpointDirectory(
            info.checkpoint_dir, info, connection.private_channel(), report, clock,
            disk or LocalDisk(), staging,
        )  # fmt: skip
        saver.vault = vault_for(info, report)
    loop = Loop(info, saver, connection.channel, report, clock, stop)
    if info.report_file is not None:
        loop.timing = measured(info, report, device)
    return Run(
        Parts(
            info=info,
            options=options,
            connection=connection,
            report=report,
            saver=saver,
            stop=stop,
            loop=loop,
            device=device,
        )
    )


def check(options: dict[str, Any], tuning: Mapping[str, Any]) -> Options:
    """The options, or SpecInvalid naming each that makes no sense."""
    problems = []
    if not isinstance(options["accumulate"], int) or options["accumulate"] < 1:
        value = str(options["accumulate"])
        problems.append(Problem("accumulate", "must be a whole number, at least 1", value))
    if options["clip"] is not None and not options["clip"] > 0:
        problems.append(Problem("clip", "must be a norm above 0, or None", str(options["clip"])))
    if not isinstance(options["seed"], int):
        problems.append(Problem("seed", "must be a whole number", str(options["seed"])))
    strategy = options.get("strategy", "ddp")
    if strategy not in strategies.NAMES:
        problems.append(Problem("strategy", "must be ddp or fsdp", str(strategy)))
    if problems:
        raise SpecInvalid(problems, "these are arguments of phalanx.train.init")
    return Options(**options, tuning=tuned(tuning, {}))


def _from_spec(options: Options, training: Mapping[str, Any]) -> dict[str, Any]:
    """What the job's spec says about training stands over the script's arguments."""
    own = {key: training[key] for key in ("accumulate", "clip", "strategy") if key in training}
    rest = {key: value for key, value in training.items() if key not in own}
    named = {field.name: getattr(options.tuning, field.name) for field in fields(options.tuning)}
    plain: dict[str, Any] = {"seed": 0, "accumulate": options.accumulate, "clip": options.clip}
    plain |= {"strategy": options.strategy, **own}
    checked = check(plain, {})
    tuning = tuned(named, rest)
    return {
        "accumulate": checked.accumulate, "clip": checked.clip, "strategy": checked.strategy,
        "tuning": tuning,
    }  # fmt: skip


def _with_arguments(info: RankInfo, directory: str | Path | None, every: str | None) -> RankInfo:
    """What the launcher says stands; the script's arguments fill in where it says nothing."""
    if directory is not None and info.checkpoint_dir is None:
        info = replace(info, checkpoint_dir=Path(directory))
        if every is not None:
            try:
                info = replace(info, every=Every.parse(every))
            except ValueError as error:
                raise SpecInvalid([Problem("checkpoint_every", str(error), every)]) from error
    return info


def _device(info: RankInfo) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", info.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
