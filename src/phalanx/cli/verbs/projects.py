"""Verbs on projects: list, apply, show, rm."""

from __future__ import annotations

from typing import Annotated

import typer

from phalanx.cli.client.session import Session
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.cli.verbs.pools import File, print_changes, read_file

projects_app = typer.Typer(
    name="projects",
    invoke_without_command=True,
    help="Projects, the tenants: list, apply, show, rm.",
)
ProjectName = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project.")]


@projects_app.callback()
def projects(ctx: typer.Context, json: AsJson = False) -> None:
    """List projects with their limits and usage; the same as `projects list`."""
    if ctx.invoked_subcommand is None:
        list_projects(ctx, json)


@projects_app.command("list")
def list_projects(ctx: typer.Context, json: AsJson = False) -> None:
    """List projects with their limits and usage."""
    session: Session = ctx.obj
    with session.client() as client:
        found = client.projects()
    if json:
        output.as_json(found)
        return
    output.table(
        ("PROJECT", "HELD", "GUARANTEED", "QUOTA", "WEIGHT", "RUNNING", "WAITING", "AVERAGE"),
        (
            (
                one.name,
                one.held_slots,
                one.guaranteed_slots,
                one.max_slots,
                f"{one.weight:g}",
                one.num_running,
                one.num_waiting or None,
                f"{one.average_slots:.1f}",
            )
            for one in found
        ),
        "no projects yet; every job is in project default",
    )


@projects_app.command()
def apply(ctx: typer.Context, file: File) -> None:
    """Add or replace the projects of a project file, all or none."""
    session: Session = ctx.obj
    data = read_file(session, file, "a project file")
    with session.client() as client:
        print_changes("project", client.apply_projects(data))


@projects_app.command()
def show(ctx: typer.Context, project: ProjectName, json: AsJson = False) -> None:
    """Show one project: its limits, its usage and its entitlement."""
    session: Session = ctx.obj
    with session.client() as client:
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
            ("from", "a project file" if view.applied_at else "its jobs; no limits are set"),
        ]
    )


@projects_app.command()
def rm(ctx: typer.Context, project: ProjectName) -> None:
    """Remove a project's limits; its jobs continue."""
    session: Session = ctx.obj
    with session.client() as client:
        client.remove_project(project)
    print(f"project {project} removed")
