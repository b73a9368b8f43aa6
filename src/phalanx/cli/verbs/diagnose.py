"""Verbs that look into the running ranks of a job: stacks, profile."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from phalanx.cli.client.session import connected, job_number
from phalanx.cli.terminal import options, output
from phalanx.cli.terminal.options import AsJson, JobName
from phalanx.errors import NotFound, UserError
from phalanx.kit.text import job_label

if TYPE_CHECKING:
    from phalanx.schemas.api.telemetry import ProfileView, RankStacksView, SplitView, StacksCapture
    from phalanx.sdk import PhalanxClient

T = TypeVar("T", "StacksCapture", "ProfileView")
_STACKS_WAIT_S = 15.0
_POLL_S = 20.0
_COLUMNS = (
    ("DATA", "data_s"),
    ("FORWARD", "forward_s"),
    ("BACKWARD", "backward_s"),
    ("COMM", "exposed_s"),
    ("OPTIMIZER", "optimizer_s"),
    ("SAVING", "stall_s"),
    ("REST", "rest_s"),
)


def stacks(
    ctx: typer.Context,
    job: JobName,
    rank: Annotated[int | None, typer.Option("--rank", "-r", min=0, help="Only this rank.")] = None,
    kept: Annotated[
        bool, typer.Option("--kept", help="Show the last stored stacks, without a new request.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show the stacks of all threads of every rank of a job; they are stored with the attempt."""
    num = job_number(job)
    with connected(ctx) as client:
        if kept:
            found = _newest(client.stacks(num).captures, "capture of stacks", num)
        else:
            found = _take_stacks(client, num)
    if json:
        output.as_json(found)
        return
    what = "taken because no rank made a step" if found.request == 0 else "requested"
    print(
        f"attempt {found.attempt}, generation {found.generation},"
        f" {output.clock_time(found.at)} ({what})"
    )
    _print_places(found)
    for one in found.ranks:
        if rank in (None, one.rank):
            print(f"\nrank {one.rank}:")
            print("\n".join(f"  {line}" for line in (one.text or one.why).splitlines()))


def _take_stacks(client: PhalanxClient, num: int) -> StacksCapture:
    asked = client.ask_stacks(num)
    view = client.stacks(num, asked=asked, wait_s=_STACKS_WAIT_S)
    found = [one for one in view.captures if one.answers == asked.answers]
    if not found:
        raise NotFound(
            f"the ranks of {job_label(num)} ended before they responded",
            f"stored stacks: phalanx stacks {job_label(num)} --kept",
        )
    return found[-1]


def _newest(stored: Sequence[T], what: str, num: int) -> T:
    """The newest stored result. Raises NotFound when there is none."""
    if not stored:
        hint = "run the verb without --kept to request it"
        raise NotFound(f"no {what} is stored for {job_label(num)}", hint)
    return max(stored, key=lambda one: one.at)


def _print_places(found: StacksCapture) -> None:
    """Print ranks at the same place on one line; ranks elsewhere than the others are marked."""
    places: dict[str, list[RankStacksView]] = {}
    for one in found.ranks:
        places.setdefault(one.place or one.why, []).append(one)
    for place, ranks in places.items():
        names = ", ".join(str(one.rank) for one in ranks)
        alone = all(one.rank in found.elsewhere for one in ranks) and bool(found.elsewhere)
        print(f"  rank {names}: {place}{'  <- differs from the other ranks' if alone else ''}")


def profile(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    job: JobName,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Steps to measure without a trace.")
    ] = 20,
    trace: Annotated[
        int, typer.Option("--trace", min=0, help="Steps to trace after them; 0: no trace.")
    ] = 3,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also take a snapshot of GPU memory.")
    ] = False,
    nvtx: Annotated[
        bool, typer.Option("--nvtx", help="Also emit NVTX ranges, for Nsight.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="Copy the merged trace to this file.")
    ] = None,
    kept: Annotated[
        bool, typer.Option("--kept", help="Show the last stored profile, without a new request.")
    ] = False,
    wait: Annotated[str, typer.Option("--wait", help="Maximum wait for the steps.")] = "10m",
    json: AsJson = False,
) -> None:
    """Profile the steps of a running job on every rank, and name what limits them."""
    num = job_number(job)
    extras = [name for name, wanted in (("memory", memory), ("nvtx", nvtx)) if wanted]
    wait_s = options.duration("--wait", wait) or 0.0
    with connected(ctx) as client:
        if kept:
            found = _newest(client.profiles(num).profiles, "profile", num)
        else:
            found = _take_profile(client, num, (steps, trace), extras, wait_s)
    if out is not None:
        _copy_trace(found, out)
    if json:
        output.as_json(found)
        return
    _print_profile(found)
    if out is not None:
        print(f"trace        {out}")


def _take_profile(
    client: PhalanxClient, num: int, steps: tuple[int, int], extras: list[str], wait_s: float
) -> ProfileView:
    from phalanx.schemas.api.telemetry import ProfileRequest

    body = ProfileRequest(steps=steps[0], traced=steps[1], extras=extras)
    asked = client.ask_profile(num, body)
    for left in range(max(1, math.ceil(wait_s / _POLL_S)), 0, -1):
        view = client.profiles(num, asked=asked, wait_s=min(_POLL_S, wait_s))
        found = [one for one in view.profiles if one.answers == asked.answers]
        if found:
            return found[-1]
        if (view.attempt, view.generation) != asked.answers[:2]:
            raise NotFound(f"{job_label(num)} ended or restarted before its steps were profiled")
        if left > 1:
            output.note("waiting for the steps")
    raise NotFound(
        f"{job_label(num)} did not make {sum(steps)} steps within {wait_s:.0f} s",
        "increase --wait; profiles need a script with the loader of phalanx.train",
    )


def _copy_trace(found: ProfileView, out: Path) -> None:
    if not found.trace:
        raise UserError("this profile has no trace", "request one with --trace 3")
    try:
        shutil.copyfile(found.trace, out)
    except OSError as error:
        raise UserError(
            f"the trace cannot be copied: {error}",
            f"the trace is on the node of the ranks: {found.trace}",
        ) from None


def _print_profile(found: ProfileView) -> None:
    steps = found.splits[0].steps if found.splits else 0
    print(
        f"attempt {found.attempt}, generation {found.generation}, {steps} steps from step"
        f" {found.first_step} on, {output.clock_time(found.at)}"
    )
    heads = ("RANK", "STEP", *(name for name, _ in _COLUMNS), "HIDDEN", "SAMPLES/S")
    output.table(heads, [_split_row(one) for one in found.splits], "no rank responded")
    print("\nmilliseconds per step; COMM is exposed communication, HIDDEN overlapped with BACKWARD")
    output.facts(
        (
            ("verdict", found.finding),
            ("because", found.said),
            ("to do", found.advice),
            ("trace", found.trace),
            ("notes", "\n".join(found.notes)),
        )
    )


def _split_row(one: SplitView) -> Sequence[object]:
    rate = one.samples / one.step_s if one.step_s > 0 else 0.0
    parts = [f"{getattr(one, name) * 1e3:.2f}" for _, name in _COLUMNS]
    return (one.rank, f"{one.step_s * 1e3:.2f}", *parts, f"{one.hidden_s * 1e3:.2f}", f"{rate:.0f}")
