"""Verbs on jobs: ps, show, stop, pause, resume, wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.client.checkpoint_locations import copies_of
from phalanx.cli.client.session import connected, job_number, job_numbers
from phalanx.cli.exits import code_of
from phalanx.cli.terminal import output
from phalanx.cli.terminal.faults import show_faults
from phalanx.cli.terminal.job_filters import parse_filters
from phalanx.cli.terminal.options import AsJson, JobName, JobNames, RoleName, duration
from phalanx.cli.terminal.provenance import show_differences, show_provenance
from phalanx.cli.terminal.roles import role_line, show_role
from phalanx.cli.verbs.cost.report import unit_lines
from phalanx.errors import UserError
from phalanx.kit.clock import SystemClock
from phalanx.kit.units import format_duration

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import JobView, LineageView
    from phalanx.sdk import PhalanxClient

_WAIT_S = 20.0
_FEW = 5
_OVER = ("succeeded", "failed", "cancelled")
_LIVE = ("waiting", "queued", "starting", "running", "recovering", "stopping", "paused")


States = Annotated[
    list[str] | None, typer.Option("--state", help="Only this state; may be repeated.")
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Only this label; may be repeated."),
]
Since = Annotated[
    str | None, typer.Option("--since", help="Only jobs submitted within this time: 7d, 12h.")
]
Sort = Annotated[
    str | None,
    typer.Option(
        "--sort",
        help="num, name, project, owner, state, reason, cause, framework, kind, pool, slot_type, image, "
        "entry_point, algorithm, "
        "priority, num_slots, num_nodes, restarts, submitted_at, started_at, ended_at, queue_s, "
        "duration_s, slot_seconds, usd, metric or study; - in front: the largest first.",
    ),
]
Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="FIELD=VALUE",
        help="Only jobs with this value, or FIELD>=VALUE, FIELD<=VALUE; may be repeated: "
        "'usd>=10', 'queue>=1h', 'started>=7d', reason=oom, 'image=ghcr.io/*', entry_point=train.py, "
        "'data=s3://data/*', algorithm=tpe.",
    ),
]
NamePattern = Annotated[
    str | None, typer.Option("--name", help="Only this name; * stands for any text.")
]
PlacedIn = Annotated[
    str | None, typer.Option("--pool", help="Only jobs with their newest placement in this pool.")
]


def ps(  # noqa: PLR0913 (one parameter for each filter)
    ctx: typer.Context,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Include all jobs that have ended.")
    ] = False,
    state: States = None,
    project: Annotated[str | None, typer.Option("--project", help="Only this project.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only this owner.")] = None,
    name: NamePattern = None,
    label: Labels = None,
    framework: Annotated[str | None, typer.Option(help="Only this framework.")] = None,
    pool: PlacedIn = None,
    since: Since = None,
    where: Filters = None,
    archived: Annotated[bool, typer.Option("--archived", help="Only archived jobs.")] = False,
    all_archived: Annotated[
        bool, typer.Option("--all-archived", help="Archived jobs beside the others.")
    ] = False,
    sort: Sort = None,
    cursor: Annotated[str | None, typer.Option(help="Continue behind an earlier page.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-l", min=1, max=1000, help="Maximum number of jobs.")
    ] = 50,
    json: AsJson = False,
) -> None:
    """List jobs, newest first; without --all or a filter, the live ones and the last few that ended."""
    given: dict[str, Any] = {
        "states": state or (),
        "project": project,
        "owner": owner,
        "name": name,
        "labels": dict(_label(one) for one in label or ()),
        "framework": framework,
        "pool": pool,
        "submitted_from": _moment_before(since),
        "cursor": cursor,
        "archived": "only" if archived else "include" if all_archived else None,
    }
    for key, value in parse_filters(where or (), _now()).items():
        if given.get(key):
            raise UserError(f"--filter: an option says {key} already", "give each filter once")
        given[key] = value
    filtered = sort is not None or any(given.values())
    more = None
    with connected(ctx) as client:
        if everything or filtered:
            page = client.jobs(limit=limit, sort=sort or "-num", **given)
            jobs, more = page.jobs, page.cursor
        else:
            jobs = _current(client, limit)
    nothing = "no such jobs" if filtered else "no jobs yet; start one with: phalanx run train.py"
    output.listing(jobs, json, _columns((sort or "").removeprefix("-")), nothing)
    if more is not None:
        output.note(f"there are more: repeat the command with --cursor {more}")


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UserError(f"--label: {text!r} is not a label", "write KEY=VALUE")
    return key, value


def _moment_before(since: str | None) -> datetime | None:
    seconds = duration("--since", since)
    return None if seconds is None else _now() - timedelta(seconds=seconds)


def _now() -> datetime:
    return datetime.fromtimestamp(SystemClock().now() / 1e6, UTC)


def _current(client: PhalanxClient, limit: int) -> list[JobView]:
    """All live jobs, and the last few that ended."""
    live = client.jobs(states=_LIVE, limit=limit).jobs
    over = client.jobs(states=_OVER, limit=_FEW).jobs[: limit - len(live)]
    return sorted([*live, *over], key=lambda job: -job.num)


def _reason(job: JobView) -> str:
    reason = job.pending_reason or job.reason
    return reason.message or reason.code


def show(  # noqa: PLR0913 (one parameter for each flag)
    ctx: typer.Context,
    job: JobName,
    json: AsJson = False,
    all_events: Annotated[bool, typer.Option("--events", help="Show every event.")] = False,
    faults: Annotated[bool, typer.Option("--faults", help="Show each fault and its cost.")] = False,
    role: RoleName = None,
    provenance: Annotated[
        bool, typer.Option("--provenance", help="Show what the job was made of.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="JOB",
            help="With --provenance: show what differs from this job; exit code 1 where something does.",
        ),
    ] = None,
    diff: Annotated[
        bool,
        typer.Option("--diff", help="With --provenance: print the difference to the commit only."),
    ] = False,
) -> None:
    """Show one job: its state, progress, restarts, lineage and first failure; or one of its roles."""
    with connected(ctx) as client:
        nums = job_numbers(client, [job])
        if len(nums) > 1:
            _show_array(client, nums, json)
            return
        num = nums[0]
        if (against is not None or diff) and not provenance:
            raise UserError("--against and --diff belong to --provenance", "add --provenance")
        if against is not None:
            show_differences(client.provenance_diff(num, job_number(against)), json)
            return
        if provenance:
            show_provenance(client.provenance(num), "diff" if diff else "json" if json else "text")
            return
        view = client.job(num)
        if faults:
            show_faults(view, json)
            return
        if role is not None:
            show_role(view, role, "json" if json else "text")
            return
        events = list(client.history(num)) if all_events or not json else []
    if json:
        body = view.model_dump(mode="json")
        if all_events:
            body["events"] = [event.model_dump(mode="json") for event in events]
        output.as_json(body)
        return
    output.facts(_facts(view))
    if view.failure is not None and view.failure.traceback:
        print(f"\nfirst failure, {view.failure.where}:")
        print(_indent(view.failure.traceback))
    print("\nhistory:")
    for event in events if all_events else _turns(events):
        said = output.notice(event) or event.reason.message or event.reason.code
        print(f"  {output.clock_time(event.at)}  {event.kind:<22} {event.state:<11} {said}")


def _show_array(client: PhalanxClient, nums: Sequence[int], json: bool) -> None:
    """Show the elements of an array, in the order of their indices."""
    array = client.job(nums[0]).array
    views = client.jobs(array=array, archived="include", limit=1000).jobs[::-1]
    columns = {
        "ELEMENT": lambda job: f"a-{job.array}_{job.array_index}",
        "JOB": lambda job: job.label,
        "STATE": lambda job: job.state,
        "STEP": lambda job: job.progress.high_water_step,
        "RESTARTS": lambda job: job.restarts or None,
        "RAN": lambda job: output.lasted(job.started_at, job.ended_at),
        "REASON": _reason,
    }
    output.listing(views, json, columns, "")


def _turns(events: list[Any]) -> list[Any]:
    """The events that changed the state or its reason, and warnings."""
    kept: list[Any] = []
    before = None
    for event in events:
        if (event.state, event.reason) != before or output.notice(event) is not None:
            kept.append(event)
        before = (event.state, event.reason)
    return kept


def _facts(view: JobView) -> list[tuple[str, Any]]:
    progress, lineage = view.progress, view.lineage
    metrics = ", ".join(
        f"{name} {output.number(value)}" for name, value in sorted(progress.last_metrics.items())
    )
    epoch = progress.epoch
    epochs = f"epoch {epoch}" + (f" of {progress.num_epochs}" if progress.num_epochs else "")
    where = f"attempt {view.attempt}, generation {view.generation}" if view.attempt else None
    shape = f"{view.world_size} ranks, {view.num_slots} slots" + (
        f" of pool {view.pool}" if view.pool else ""
    )
    return [
        ("job", f"{view.label} {view.name}"),
        ("state", view.state + (f" (to {view.goal})" if view.goal else "")),
        ("reason", _reason(view)),
        ("waits for", "\n".join(f"{o.label} ({o.kind}), {o.state}" for o in view.waits_for)),
        ("project", view.project),
        ("description", view.description or None),
        ("labels", ", ".join(f"{key}={value}" for key, value in view.labels.items())),
        ("tags", " ".join(view.tags)),
        ("group", view.group or None),
        ("gang", shape),
        ("placement", None if view.communication is None else view.communication.text),
        ("roles", "\n".join(role_line(one) for one in view.roles)),
        ("now", where),
        ("step", progress.high_water_step),
        ("epoch", epochs if epoch is not None else None),
        ("speed", f"{progress.steps_per_s:.3g} steps/s" if progress.steps_per_s else None),
        ("metrics", metrics),
        ("ran", output.lasted(view.started_at, view.ended_at)),
        ("archived", None if view.archived_at is None else output.moment(view.archived_at)),
        ("pinned", _pin(view)),
        ("deleted at", "\n".join(f"{output.moment(o.at)}: {o.kind}" for o in view.expires)),
        ("restarts", _restarts(view)),
        ("lineage", None if lineage is None else _lineage(lineage)),
        ("cost", _cost(view)),
        ("budget", _budget(view)),
        ("checkpoints", _checkpoints(view)),
        ("code", view.code and view.code[:12]),
        ("folder", view.directory),
        ("trace", view.trace_id),
        ("url", view.url),
    ]


def _pin(view: JobView) -> str | None:
    """When a job was pinned, and by what."""
    if view.pinned_at is None:
        return None
    return f"{output.moment(view.pinned_at)}, by {view.pinned_by}"


def _cost(view: JobView) -> str | None:
    """The slot-hours of a job, what of them was wasted, and its money."""
    one = view.cost
    if one is None or not one.held:
        return None
    wasted = f", {one.wasted / one.held:.0%} of them wasted by interruptions" if one.wasted else ""
    usd = "" if one.usd is None else f", {one.usd:.2f} USD"
    each = "".join(f"\n{name}: {said}" for name, said in unit_lines(view.unit_costs))
    return f"{output.number(one.held / 3600)} slot-hours{wasted}{usd}{each}"


def _budget(view: JobView) -> str | None:
    """The limits of the job's own budget, and how much of them is used."""
    one = view.budget
    if one is None:
        return None
    limits = [
        None if one.usd is None else f"{one.usd:.2f} USD",
        None if one.slot_hours is None else f"{output.number(one.slot_hours)} slot-hours",
    ]
    said = " and ".join(limit for limit in limits if limit is not None)
    state = "" if one.state == "open" else f", {one.state}"
    return f"{one.used_percent} % of {said} used{state}; pauses at {one.pause_percent} %"


def _restarts(view: JobView) -> str:
    lines = [str(view.restarts)]
    after = "no step was completed after it" if view.is_terminal else "under way"
    for one in view.lineage.restarts if view.lineage else []:
        lost = after if one.lost_s is None else f"{format_duration(one.lost_s)} lost"
        lines.append(f"attempt {one.attempt}, generation {one.generation}: {one.message}; {lost}")
    return "\n".join(lines)


def _lineage(lineage: LineageView) -> str | None:
    if lineage.missed is None:
        return None
    exact = {True: ", every resume exact", False: ", a resume was not exact", None: ""}
    unreported = f", {lineage.unreported} unreported (lost node)" if lineage.unreported else ""
    return (
        f"{lineage.missed} samples missed, {lineage.duplicated} duplicated, "
        f"{lineage.redone} redone{unreported}{exact[lineage.exact]}"
    )


def _checkpoints(view: JobView) -> str | None:
    if view.lineage is None or not view.lineage.num_checkpoints:
        return view.checkpoint_dir
    found = f"{view.lineage.num_valid} valid of {view.lineage.num_checkpoints}"
    bad, gone = view.lineage.num_quarantined, view.lineage.num_missing
    where = copies_of(view) or view.checkpoint_dir
    if copies_of(view) is not None:
        found += f", {view.lineage.num_stored} in the object store"
    if view.lineage.num_uploading:
        found += f", {view.lineage.num_uploading} uploading"
    found += f", {bad} quarantined" if bad else ""
    found += f", {gone} missing" if gone else ""
    return f"{found} in {where}"


_COLUMNS: dict[str, Any] = {
    "JOB": lambda job: job.label,
    "NAME": lambda job: job.name,
    "STATE": lambda job: job.state,
    "STEP": lambda job: job.progress.high_water_step,
    "RANKS": lambda job: job.world_size,
    "RESTARTS": lambda job: job.restarts or None,
    "AGE": lambda job: output.ago(job.submitted_at),
    "RAN": lambda job: output.lasted(job.started_at, job.ended_at),
    "REASON": _reason,
}

_SORTED: dict[str, tuple[str, Any]] = {
    "owner": ("OWNER", lambda job: job.owner),
    "project": ("PROJECT", lambda job: job.project),
    "cause": ("CAUSE", lambda job: job.cause),
    "framework": ("FRAMEWORK", lambda job: job.framework),
    "pool": ("POOL", lambda job: job.pool),
    "slot_type": ("TYPE", lambda job: job.slot_type),
    "image": ("IMAGE", lambda job: job.image),
    "entry_point": ("ENTRY POINT", lambda job: job.entry_point),
    "algorithm": ("ALGORITHM", lambda job: job.algorithm),
    "priority": ("PRIORITY", lambda job: job.priority),
    "num_slots": ("SLOTS", lambda job: job.num_slots),
    "num_nodes": ("NODES", lambda job: job.num_nodes),
    "queue_s": ("QUEUED", lambda job: _lasted(job.queue_s)),
    "slot_seconds": ("SLOT-HOURS", lambda job: output.number(job.slot_seconds / 3600)),
    "usd": ("USD", lambda job: None if job.usd is None else f"{job.usd:.2f}"),
    "metric": ("METRIC", lambda job: f"{job.metric} {output.number(job.best_metric)}".strip()),
    "study": ("STUDY", lambda job: None if job.study is None else f"s-{job.study}"),
}
"""Columns that a listing has only where it is sorted by them."""


def _columns(sort: str) -> dict[str, Any]:
    """The columns of a listing: before the reason the one that it is sorted by."""
    shown = dict(_COLUMNS)
    reason = shown.pop("REASON")
    if sort in _SORTED:
        name, value = _SORTED[sort]
        shown[name] = value
    return shown | {"REASON": reason}


def _lasted(seconds: float | None) -> str | None:
    return None if seconds is None else format_duration(seconds)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.rstrip().splitlines())


Grace = Annotated[
    str | None,
    typer.Option(
        "--grace", help="Time for ranks to save and exit, such as 30s; 0 kills them at once."
    ),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return without waiting for the end.")]


def stop(ctx: typer.Context, jobs: JobNames, grace: Grace = None, no_wait: NoWait = False) -> None:
    """Cancel jobs: their ranks save a checkpoint and exit."""
    _stop_all(ctx, jobs, "cancel", grace, no_wait)


def pause(ctx: typer.Context, jobs: JobNames, grace: Grace = None, no_wait: NoWait = False) -> None:
    """Pause jobs: their ranks save a checkpoint and exit; `resume` requeues the jobs."""
    _stop_all(ctx, jobs, "pause", grace, no_wait)


def _stop_all(
    ctx: typer.Context,
    jobs: list[str],
    goal: Literal["cancel", "pause"],
    grace: str | None,
    no_wait: bool,
) -> None:
    grace_s = duration("--grace", grace)
    with connected(ctx) as client:
        nums = job_numbers(client, jobs)
        if any(job.startswith("a-") for job in jobs):
            nums = [num for num in nums if not client.job(num).is_terminal]
        for num in nums:
            client.stop(num, goal=goal, grace_s=grace_s)
        for num in nums:
            stopped = (*_OVER, "paused")
            view = client.job(num) if no_wait else _wait_for(client, num, None, stopped)
            print(f"{view.label} {view.state}")


def resume(
    ctx: typer.Context,
    jobs: JobNames,
    begin_anew: Annotated[
        bool,
        typer.Option(
            "--begin-anew",
            help="Start at step 0, without the checkpoints that the job has. They are kept.",
        ),
    ] = False,
) -> None:
    """Requeue paused jobs; they continue from their newest checkpoint."""
    with connected(ctx) as client:
        for num in job_numbers(client, jobs):
            view = client.resume(num, begin_anew=begin_anew)
            print(f"{view.label} {view.state}")


def wait(
    ctx: typer.Context,
    jobs: JobNames,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", help="Give up after this duration, such as 10m, with exit code 101."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Wait until jobs end. Exit code: 0 all succeeded, 100 failed, 103 cancelled, 101 not ended."""
    limit_s = duration("--timeout", timeout)
    deadline = None if limit_s is None else time.monotonic() + limit_s
    with connected(ctx) as client:
        views = [_wait_for(client, num, deadline) for num in job_numbers(client, jobs)]
    if json:
        output.as_json(views)
    else:
        for view in views:
            print(f"{view.label} {view.state}: {_reason(view)}")
    raise typer.Exit(max(code_of(view) for view in views))


def _wait_for(
    client: PhalanxClient, num: int, deadline: float | None, states: Sequence[str] = _OVER
) -> JobView:
    """The job when it has reached one of these states, or as it is at the deadline."""
    after = 0
    while True:
        view = client.job(num)
        left_s = _WAIT_S if deadline is None else deadline - time.monotonic()
        if view.state in states or left_s <= 0:
            return view
        after = client.events(num, after=after, wait_s=min(left_s, _WAIT_S)).cursor
