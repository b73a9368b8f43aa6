"""Verbs on pools and on projects: list, apply, show, scale, scaling, rm; and on the scheduler's policy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.client.session import Session, connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.cli.terminal.output import holders
from phalanx.errors import UserError

if TYPE_CHECKING:
    from phalanx.schemas.api.pools import (
        ApplyResponse,
        LeftoversView,
        PoolBoundsView,
        PoolScalingView,
        SchedulerPolicyView,
    )
    from phalanx.sdk import PhalanxClient

PoolName = Annotated[str, typer.Argument(metavar="POOL", help="Name of the pool.")]
ProjectName = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project.")]
File = Annotated[
    Path, typer.Option("-f", "--file", metavar="FILE", help="A YAML file with `schema: 1`.")
]
_POOL_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "POOL": lambda one: one.name,
    "TYPE": lambda one: ",".join(one.slot_types),
    "NODES": lambda one: one.num_nodes,
    "CLOSED": lambda one: one.num_closed or None,
    "SLOTS": lambda one: one.num_slots,
    "FREE": lambda one: one.num_free,
    "WAITING": lambda one: one.num_waiting or None,
    "JOBS": lambda one: holders(one.jobs),
}
_SHOWN_DECISIONS = 10
_PROJECT_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "PROJECT": lambda one: one.name,
    "HELD": lambda one: one.held_slots,
    "GUARANTEED": lambda one: one.guaranteed_slots,
    "QUOTA": lambda one: one.max_slots,
    "WEIGHT": lambda one: f"{one.weight:g}",
    "RUNNING": lambda one: one.num_running,
    "WAITING": lambda one: one.num_waiting or None,
    "AVERAGE": lambda one: f"{one.average_slots:.1f}",
}


def group(name: str, help_text: str, list_all: Callable[..., None]) -> typer.Typer:
    """A group of verbs that lists when no verb is given."""
    made = typer.Typer(name=name, invoke_without_command=True, help=help_text)

    @made.callback()
    def without_verb(ctx: typer.Context, json: AsJson = False) -> None:
        if ctx.invoked_subcommand is None:
            list_all(ctx, json=json)

    without_verb.__doc__ = f"{list_all.__doc__} The same as `{name} list`."
    made.command("list")(list_all)
    return made


def list_pools(ctx: typer.Context, json: AsJson = False) -> None:
    """List pools with their free slots."""
    with connected(ctx) as client:
        found = client.pools()
    output.listing(found, json, _POOL_COLUMNS, "no pools")


def list_projects(ctx: typer.Context, json: AsJson = False) -> None:
    """List projects with their limits and usage."""
    with connected(ctx) as client:
        found = client.projects()
    output.listing(
        found, json, _PROJECT_COLUMNS, "no projects yet; every job is in project default"
    )


pools_app = group(
    "pools", "Pools of nodes: list, apply, show, scale, scaling, rm, forget.", list_pools
)
projects_app = group("projects", "Projects, the tenants: list, apply, show, rm.", list_projects)


@pools_app.command("apply")
def apply_pools(ctx: typer.Context, file: File) -> None:
    """Add or replace the pools of a pool file, all or none; running jobs are not affected."""
    _apply(ctx, file, "pool", lambda client, data: client.apply_pools(data))


@projects_app.command("apply")
def apply_projects(ctx: typer.Context, file: File) -> None:
    """Add or replace the projects of a project file, all or none."""
    _apply(ctx, file, "project", lambda client, data: client.apply_projects(data))


def _apply(
    ctx: typer.Context,
    file: Path,
    kind: str,
    send: Callable[[PhalanxClient, dict[str, Any]], ApplyResponse],
) -> None:
    """Send the mapping in a YAML file and print what became of each entry. Raises SpecInvalid."""
    from phalanx.schemas.spec.document import read_text, read_yaml

    session: Session = ctx.obj
    data = read_yaml(read_text(session.invocation.cwd / file), str(file), f"a {kind} file")
    with connected(ctx) as client:
        done = send(client, data)
    for one in done.changes:
        print(f"{kind} {one.name} {one.outcome}")
    for warning in done.warnings:
        output.note(f"warning: {warning}")


@pools_app.command("show")
def show_pool(ctx: typer.Context, pool: PoolName, json: AsJson = False) -> None:
    """Show one pool: its settings, its nodes and the jobs on them."""
    with connected(ctx) as client:
        view = client.pool(pool)
        nodes = client.nodes(pool)
    if json:
        output.as_json({**view.model_dump(mode="json"), "nodes": [n.id for n in nodes]})
        return
    output.facts(
        [
            ("pool", view.name),
            ("executor", view.executor),
            ("slots", f"{view.num_free} of {view.num_slots} free on {view.num_nodes} nodes"),
            ("type", ", ".join(view.slot_types)),
            ("levels", " > ".join([*view.levels, "node"])),
            ("residency", ", ".join(view.residency) or None),
            ("price", f"{view.price:g} USD per slot and hour" if view.price else None),
            ("spot", "yes" if view.spot else None),
            ("closed", view.num_closed or None),
            ("bounds", _bounds(view.scaling) if view.scaling else None),
            ("set", _set(view.scaling) if view.scaling else None),
            ("may grow", f"by {view.num_future} nodes" if view.num_future else None),
            ("waiting", view.num_waiting or None),
            ("jobs", holders(view.jobs)),
            ("from", "a pool file" if view.spec else "the machine itself"),
        ]
    )
    for node in nodes:
        where = " ".join(f"{level}={name}" for level, name in node.topology.items())
        state = "" if node.state == "open" else f"  {node.state}: {node.reason}"
        print(f"  {node.id}  {node.num_free}/{node.num_slots} free  {where}{state}")


@pools_app.command("scaling")
def show_scaling(ctx: typer.Context, pool: PoolName, json: AsJson = False) -> None:
    """Show how a pool grows and shrinks: bounds, open requests for nodes, and the latest decisions."""
    with connected(ctx) as client:
        view = client.pool_scaling(pool)
    if json:
        output.as_json(view)
        return
    most = f", {view.max_slots} slots at most" if view.max_slots is not None else ""
    output.facts(
        [
            ("pool", view.pool),
            ("bounds", f"{_bounds(view.bounds)}{most}"),
            ("set", _set(view.bounds)),
            ("nodes", f"{view.num_nodes} there, {view.num_requested} requested"),
            ("budget", _budget(view)),
            ("spent today", f"{view.spent_today:.2f} USD" if view.spent_today else None),
            ("released", ", ".join(view.released)),
            ("draining", ", ".join(view.draining)),
            *(("limit", one) for one in view.limits),
        ]
    )
    for one in view.requests:
        gang = f"{one.num_new} new nodes of {one.num_nodes}"
        name = "the pool's minimum" if one.job is None else f"j-{one.job}"
        print(f"  asked for {gang} for {name} at {output.moment(one.asked_at)}")
    for failed in view.failed:
        name = "the pool's minimum" if failed.job is None else f"j-{failed.job}"
        said = f": {failed.text}" if failed.text else ""
        print(f"  failed for {name}, asked for again after {output.moment(failed.until)}{said}")
    for decision in view.decisions[:_SHOWN_DECISIONS]:
        print(f"  {output.moment(decision.at)}  {decision.kind}: {decision.text}")


def _bounds(one: PoolBoundsView) -> str:
    off = "; autoscaling is off" if one.autoscaling == "off" else ""
    return f"{one.min_nodes} to {one.max_nodes} nodes{off}"


def _set(one: PoolBoundsView) -> str | None:
    if one.set_at is None:
        return "in the pool file"
    file = f"{one.file_min_nodes} to {one.file_max_nodes}"
    return f"{output.moment(one.set_at)}, by {one.set_by}; the pool file says {file}"


@pools_app.command("scale")
def scale_pool(
    ctx: typer.Context,
    pool: PoolName,
    least: Annotated[
        int | None, typer.Option("--min", min=0, help="Nodes that are kept without any demand.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", min=1, help="Most nodes, present ones included.")
    ] = None,
    on: Annotated[
        bool | None,
        typer.Option("--on/--off", help="Off: the pool keeps the nodes that it has."),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Return to the bounds of the pool file.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Change the bounds of a pool's autoscaling at once; they precede those of the pool file.

    What is not given stays as it is. The bounds stay until --reset, also over a start of the control plane.
    """
    given = (least, most, on) != (None, None, None)
    if reset == given:
        raise UserError("give --min, --max, --on or --off, or --reset alone")
    with connected(ctx) as client:
        if reset:
            client.reset_pool_scaling(pool)
            view = client.pool_scaling(pool)
        else:
            switch: Literal["on", "off"] | None = None if on is None else ("on" if on else "off")
            view = client.scale_pool(pool, min_nodes=least, max_nodes=most, autoscaling=switch)
    if json:
        output.as_json(view)
        return
    bounds = view.bounds
    output.facts([("pool", pool), ("bounds", _bounds(bounds)), ("set", _set(bounds))])


def _budget(view: PoolScalingView) -> str | None:
    said = []
    if view.per_hour is not None:
        said.append(f"{view.per_hour:.2f} USD an hour")
    if view.per_day is not None:
        said.append(f"{view.per_day:.2f} USD a day")
    return ", ".join(said) or None


@projects_app.command("show")
def show_project(ctx: typer.Context, project: ProjectName, json: AsJson = False) -> None:
    """Show one project: its limits, its usage and its entitlement."""
    with connected(ctx) as client:
        view = client.project(project)
    if json:
        output.as_json(view)
        return
    entitled = view.entitled_slots
    output.facts(
        [
            ("project", view.name),
            ("parent", view.parent),
            ("holds", f"{view.held_slots} slots in {view.num_running} jobs"),
            ("children hold", f"{view.child_slots} slots" if view.child_slots else None),
            ("waits", f"{view.waiting_slots} slots in {view.num_waiting} jobs"),
            ("guaranteed", f"{view.guaranteed_slots} slots"),
            ("quota", "none" if view.max_slots is None else f"{view.max_slots} slots"),
            ("lends", None if view.lend_slots is None else f"at most {view.lend_slots} slots"),
            ("weight", f"{view.weight:g}"),
            ("entitled to", None if entitled is None else f"{entitled:g} slots now"),
            ("average", f"{view.average_slots:.2f} slots, decayed average"),
            ("max priority", view.max_priority),
            ("max running", view.max_running),
            ("residency", ", ".join(view.residency) or None),
            ("retains", ", ".join(f"{kind} {one}" for kind, one in view.retain.items())),
            *(("requires label", f"{name}: {one}") for name, one in view.required_labels.items()),
            ("from", "a project file" if view.applied_at else "its jobs; no limits are set"),
        ]
    )
    for one in view.quotas:
        print(f"  {one.label}: {one.used} of {one.limit}")


_STORE_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "URL": lambda one: one.url,
    "RESIDENCY": lambda one: one.residency,
    "APPLIED": lambda one: output.moment(one.applied_at),
    "BY": lambda one: one.applied_by,
}


@projects_app.command("stores")
def list_stores(ctx: typer.Context, json: AsJson = False) -> None:
    """List stores of data outside the nodes with their residency; a project file declares them."""
    with connected(ctx) as client:
        found = client.stores()
    none = "no stores; `stores:` in a project file declares them: `phalanx projects apply -f FILE`"
    output.listing(found, json, _STORE_COLUMNS, none)


_QUOTA_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "PROJECT": lambda one: one.project or "(platform)",
    "USER": lambda one: one.user or "all",
    "TYPE": lambda one: one.slot_type or "any",
    "COUNTS": lambda one: one.unit,
    "USED": lambda one: one.used,
    "LIMIT": lambda one: one.limit,
    "PERCENT": lambda one: f"{one.used_percent} %",
}


def quotas(
    ctx: typer.Context,
    project: Annotated[
        str | None, typer.Option("--project", help="Only quotas of this project.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="Only quotas of this user.")] = None,
    json: AsJson = False,
) -> None:
    """List quotas of projects, slot types and users with what counts against them, and their alerts."""
    with connected(ctx) as client:
        found = client.quotas(project=project, user=user)
    if json:
        output.as_json(found)
        return
    none = "no quotas; `phalanx projects apply -f FILE` sets them"
    output.listing(found.quotas, False, _QUOTA_COLUMNS, none)
    for one in found.alerts:
        over = " (over)" if one.over else ""
        output.note(f"alert of {output.moment(one.at)}{over}: {one.message}")


policy_app = typer.Typer(
    name="policy", no_args_is_help=True, help="The planning policy: show, set, reset."
)
scheduler_app = typer.Typer(
    name="scheduler", no_args_is_help=True, help="The scheduler: its planning policy."
)
scheduler_app.add_typer(policy_app)


@policy_app.command("show")
def show_policy(ctx: typer.Context, json: AsJson = False) -> None:
    """Show the planning policy in effect, and whether it was set or is that of the start."""
    with connected(ctx) as client:
        view = client.scheduler_policy()
    _print_policy(view, json)


@policy_app.command("set")
def set_policy(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="throughput, fair, fifo or deadline.")
    ],
    json: AsJson = False,
) -> None:
    """Set the planning policy: the next planner pass uses it, and so does every later start."""
    with connected(ctx) as client:
        view = client.set_scheduler_policy(name)
    _print_policy(view, json)


@policy_app.command("reset")
def reset_policy(ctx: typer.Context, json: AsJson = False) -> None:
    """Return to the policy that the control plane was started with."""
    with connected(ctx) as client:
        client.reset_scheduler_policy()
        view = client.scheduler_policy()
    _print_policy(view, json)


def _print_policy(view: SchedulerPolicyView, json: bool) -> None:
    if json:
        output.as_json(view)
        return
    if view.set_at is not None:
        stored = f"{view.stored}, {output.moment(view.set_at)}, by {view.set_by}"
        if view.source == "start":
            stored += "; this release does not know it"
    else:
        stored = "no: the policy of the start is in effect"
    output.facts(
        [
            ("policy", f"{view.policy}: {view.purpose}"),
            ("set", stored),
            ("at the start", view.start),
            ("constants", " ".join(f"{key}={value}" for key, value in view.constants.items())),
            ("known", ", ".join(view.policies)),
        ]
    )


@pools_app.command("rm")
def remove_pool(ctx: typer.Context, pool: PoolName) -> None:
    """Remove a pool in which no job runs."""
    with connected(ctx) as client:
        client.remove_pool(pool)
    print(f"pool {pool} removed")


@pools_app.command("forget")
def forget_pool(
    ctx: typer.Context,
    pool: PoolName,
    owner: Annotated[
        str | None,
        typer.Option("--owner", help="Name of a control plane that is gone; default: this one."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove everything that a control plane has left in the cluster of a pool, finalizers included.

    Without --owner these are the objects of this control plane, and the pool is removed as well.
    """
    with connected(ctx) as client:
        found = client.leftovers(pool)
        if not yes:
            output.listing(found, False, _LEFT_COLUMNS, f"nothing is left in pool {pool}")
            _ask_to_forget(pool, owner, found)
        done = client.forget_pool(pool, owner)
    print(f"{done.num_pods} pods of {done.owner or 'this control plane'} removed")
    if done.pool_removed:
        print(f"pool {pool} removed")


_LEFT_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "OWNER": lambda one: f"{one.owner} (this one)" if one.is_own else one.owner,
    "PODS": lambda one: one.num_pods,
    "RUNNING": lambda one: one.num_running or None,
    "JOBS": lambda one: ", ".join(one.jobs),
    "NAMESPACES": lambda one: ", ".join(one.namespaces),
}


def _ask_to_forget(pool: str, owner: str | None, found: Sequence[LeftoversView]) -> None:
    """Ask before anything is removed. Raises UserError without a terminal, and Exit for a no."""
    if not sys.stdin.isatty():
        raise UserError("nothing was removed: there is no terminal to ask", "add --yes")
    chosen = [one for one in found if (one.is_own if owner is None else one.owner == owner)]
    running = sum(one.num_running for one in chosen)
    pods = f"{sum(one.num_pods for one in chosen)} pods" + (f", {running} run" if running else "")
    also = "" if owner is not None else f", and pool {pool}"
    if not typer.confirm(f"Remove the objects of {owner or 'this control plane'} ({pods}){also}?"):
        raise typer.Exit(1)


@projects_app.command("rm")
def remove_project(ctx: typer.Context, project: ProjectName) -> None:
    """Remove a project's limits; its jobs continue."""
    with connected(ctx) as client:
        client.remove_project(project)
    print(f"project {project} removed")
