"""The verb profile."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.client.session import Session, job_number
from phalanx.cli.terminal import options, output
from phalanx.cli.terminal.options import AsJson, JobName
from phalanx.errors import NotFound, UserError
from phalanx.kit.text import job_label

if TYPE_CHECKING:
    from phalanx.schemas.api.telemetry import ProfileView, SplitView
    from phalanx.sdk import PhalanxClient

_ROUND_S = 20.0
_COLUMNS = (
    ("DATA", "data_s"), ("FORWARD", "forward_s"), ("BACKWARD", "backward_s"),
    ("COMM", "exposed_s"), ("OPTIMIZER", "optimizer_s"), ("SAVING", "stall_s"), ("REST", "rest_s"),
)  # fmt: skip


def profile(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    job: JobName,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Steps measured with clocks alone.")
    ] = 20,
    trace: Annotated[
        int, typer.Option("--trace", min=0, help="Steps traced behind them; 0: no trace.")
    ] = 3,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also a snapshot of the GPU's memory.")
    ] = False,
    nvtx: Annotated[bool, typer.Option("--nvtx", help="Also NVTX ranges, for Nsight.")] = False,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="Copy the merged trace to this file.")
    ] = None,
    kept: Annotated[
        bool, typer.Option("--kept", help="Ask nobody: the last profile that is kept.")
    ] = False,
    wait: Annotated[
        str, typer.Option("--wait", help="How long to wait for the steps to be made.")
    ] = "10m",
    json: AsJson = False,
) -> None:
    """Show where the steps of a running job spend their time on every rank, and what limits them."""
    num = job_number(job)
    extras = [name for name, wanted in (("memory", memory), ("nvtx", nvtx)) if wanted]
    wait_s = options.duration("--wait", wait) or 0.0
    session: Session = ctx.obj
    with session.client() as client:
        found = _kept(client, num) if kept else _asked(client, num, (steps, trace), extras, wait_s)
    if out is not None:
        _copy(found, out)
    if json:
        output.as_json(found)
        return
    _print(found)
    if out is not None:
        print(f"trace        {out}")


def _asked(
    client: PhalanxClient, num: int, steps: tuple[int, int], extras: list[str], wait_s: float
) -> ProfileView:
    from phalanx.schemas.api.telemetry import ProfileRequest

    wish = ProfileRequest(steps=steps[0], traced=steps[1], extras=extras)
    asked = client.ask_profile(num, wish)
    want = (asked.attempt, asked.generation, asked.request)
    for left in range(max(1, math.ceil(wait_s / _ROUND_S)), 0, -1):
        view = client.profiles(num, asked=asked, wait_s=min(_ROUND_S, wait_s))
        found = [one for one in view.profiles if one.answers == want]
        if found:
            return found[-1]
        if (view.attempt, view.generation) != want[:2]:
            raise NotFound(f"{job_label(num)} ended or began anew before its steps were profiled")
        if left > 1:
            output.note("waiting for the steps to be made")
    raise NotFound(
        f"{job_label(num)} did not make {sum(steps)} steps within {wait_s:.0f} s",
        "give --wait more time; a script is profiled where it uses phalanx.train and its loader",
    )


def _kept(client: PhalanxClient, num: int) -> ProfileView:
    found = client.profiles(num).profiles
    if not found:
        raise NotFound(f"no profile is kept of {job_label(num)}", "without --kept one is taken")
    return max(found, key=lambda one: one.at)


def _copy(found: ProfileView, out: Path) -> None:
    if not found.trace:
        raise UserError("this profile has no trace", "ask for one with --trace 3")
    try:
        shutil.copyfile(found.trace, out)
    except OSError as error:
        raise UserError(
            f"the trace cannot be copied: {error}", f"it lies where the ranks ran: {found.trace}"
        ) from None


def _print(found: ProfileView) -> None:
    steps = found.splits[0].steps if found.splits else 0
    print(
        f"attempt {found.attempt}, generation {found.generation}, {steps} steps from step"
        f" {found.first_step} on, {output.clock_time(found.at)}"
    )
    heads = ("RANK", "STEP", *(name for name, _ in _COLUMNS), "HIDDEN", "SAMPLES/S")
    output.table(heads, [_row(one) for one in found.splits], "no rank answered")
    print("\nmilliseconds a step; COMM is waited for, HIDDEN ran beside BACKWARD and costs nothing")
    output.facts(
        (
            ("verdict", found.finding),
            ("because", found.said),
            ("to do", found.advice),
            ("trace", found.trace),
            ("notes", "\n".join(found.notes)),
        )
    )


def _row(one: SplitView) -> Sequence[object]:
    rate = one.samples / one.step_s if one.step_s > 0 else 0.0
    parts = [f"{getattr(one, name) * 1e3:.2f}" for _, name in _COLUMNS]
    return (one.rank, f"{one.step_s * 1e3:.2f}", *parts, f"{one.hidden_s * 1e3:.2f}", f"{rate:.0f}")
