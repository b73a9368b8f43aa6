"""The verb `why`: the planner's decision about a job, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from phalanx.cli.client.session import connected, one_job
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson, JobName
from phalanx.kit.text import job_label
from phalanx.kit.units import format_duration

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import JobView
    from phalanx.schemas.api.why import CounterfactualView, EvictionView, WaitView, WhyView

_MANY = 4


def why(ctx: typer.Context, job: JobName, json: AsJson = False) -> None:
    """Explain why a job waits: what blocks it, when it may start, and what would start it now."""
    with connected(ctx) as client:
        num = one_job(client, job)
        view = client.job(num)
        found = client.why(num)
    if json:
        body = found.model_dump(mode="json")
        body |= {
            "pending_reason": view.pending_reason and view.pending_reason.model_dump(mode="json"),
            "failure": view.failure and view.failure.model_dump(mode="json"),
        }
        output.as_json(body)
        return
    print(f"{found.label} is {found.state}: {found.reason.message or found.reason.code}")
    if found.trial:
        print(f"  {found.trial}")
    if found.growth:
        print(f"  {found.growth}")
    for one in view.waits_for:
        print(f"  {one.label} ({one.kind}) is {one.state}")
    waits = [_wait(one) for one in found.waits if one.text]
    for line in (*_waiting(found), *_victims(found), *map(_eviction, found.evictions), *waits):
        print(f"  {line}")
    if found.communication is not None and found.communication.num_nodes > 1:
        print(f"  placement: {found.communication.text}")
    _print_failure(view)


def _waiting(found: WhyView) -> list[str]:
    if found.position is None:
        return []
    lines = [f"position {found.position} of {found.num_waiting} in the queue; {_eta(found)}"]
    lines += [f"blocked by: {one.text}" for one in found.constraints]
    for change in found.changes:
        lines.append(f"{change.text}{_once(change)}")
    return lines


def _wait(one: WaitView) -> str:
    """A wait that is over."""
    return f"attempt {one.attempt} waited {format_duration(one.waited_s)}: {one.text}"


def _once(change: CounterfactualView) -> str:
    """The jobs that would be preempted first."""
    if not change.by_preemption:
        return ""
    names = [f"j-{num}" for num in change.victims[:_MANY]]
    more = f" and {len(change.victims) - _MANY} more" if len(change.victims) > _MANY else ""
    return f", once {', '.join(names) or 'others'}{more} have saved and exited"


def _eta(found: WhyView) -> str:
    if found.eta_p50_at is None:
        return "the start cannot be estimated yet"
    likely = f"expected to start at {output.moment(found.eta_p50_at)}"
    if found.eta_p90_at is None:
        return likely
    return f"{likely}, by {output.moment(found.eta_p90_at)} with a probability of 90%"


def _victims(found: WhyView) -> list[str]:
    lines = [f"{job_label(one.job)} {one.text}" for one in found.victims]
    if found.preempted_for is not None:
        lines.append(f"the job {found.preempted_for.text}")
    return lines


def _eviction(one: EvictionView) -> str:
    cost = "" if one.lost_s is None else f"; {format_duration(one.lost_s)} to its next step"
    return f"left at {output.moment(one.at)}: {one.text}{cost}"


def _print_failure(view: JobView) -> None:
    if view.failure is not None and view.failure.traceback:
        print("\n".join(f"  {line}" for line in view.failure.traceback.rstrip().splitlines()))
    if view.state == "failed":
        rank = None if view.failure is None else view.failure.rank
        only = "" if rank is None else f" --rank {rank}"
        print(f"  all output: phalanx logs {view.label}{only}")
