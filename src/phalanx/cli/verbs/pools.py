"""Verbs on pools: list, apply, show, rm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.session import Session
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson

if TYPE_CHECKING:
    from phalanx.schemas.api.pools import ApplyResponse

pools_app = typer.Typer(
    name="pools", invoke_without_command=True, help="Pools of nodes: list, apply, show, rm."
)
PoolName = Annotated[str, typer.Argument(metavar="POOL", help="Name of the pool.")]
File = Annotated[
    Path, typer.Option("-f", "--file", metavar="FILE", help="A YAML file with `schema: 1`.")
]


def read_file(session: Session, file: Path, noun: str) -> dict[str, Any]:
    """The mapping in a YAML file of the user. Raises SpecInvalid."""
    from phalanx.schemas.spec.document import read_text, read_yaml

    return read_yaml(read_text(session.invocation.cwd / file), str(file), noun)


def print_changes(kind: str, done: ApplyResponse) -> None:
    """Print what `apply` did, one line for each pool or project."""
    for one in done.changes:
        print(f"{kind} {one.name} {one.outcome}")
    for warning in done.warnings:
        output.note(f"warning: {warning}")


def holders(jobs: list[int]) -> str:
    """The labels of jobs, separated by spaces."""
    return " ".join(f"j-{num}" for num in jobs)


@pools_app.callback()
def pools(ctx: typer.Context, json: AsJson = False) -> None:
    """List pools with their free slots; the same as `pools list`."""
    if ctx.invoked_subcommand is None:
        list_pools(ctx, json)


@pools_app.command("list")
def list_pools(ctx: typer.Context, json: AsJson = False) -> None:
    """List pools with their free slots."""
    session: Session = ctx.obj
    with session.client() as client:
        found = client.pools()
    if json:
        output.as_json(found)
        return
    output.table(
        ("POOL", "TYPE", "NODES", "CLOSED", "SLOTS", "FREE", "WAITING", "JOBS"),
        (
            (
                p.name,
                ",".join(p.slot_types),
                p.num_nodes,
                p.num_closed or None,
                p.num_slots,
                p.num_free,
                p.num_waiting or None,
                holders(p.jobs),
            )
            for p in found
        ),
        "no pools",
    )


@pools_app.command()
def apply(ctx: typer.Context, file: File) -> None:
    """Add or replace the pools of a pool file, all or none; running jobs are not affected."""
    session: Session = ctx.obj
    data = read_file(session, file, "a pool file")
    with session.client() as client:
        print_changes("pool", client.apply_pools(data))


@pools_app.command()
def show(ctx: typer.Context, pool: PoolName, json: AsJson = False) -> None:
    """Show one pool: its settings, its nodes and the jobs on them."""
    session: Session = ctx.obj
    with session.client() as client:
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
            ("price", f"{view.price:g} USD per slot and hour" if view.price else None),
            ("spot", "yes" if view.spot else None),
            ("closed", view.num_closed or None),
            ("waiting", view.num_waiting or None),
            ("jobs", holders(view.jobs)),
            ("from", "a pool file" if view.applied_at else "the machine itself"),
        ]
    )
    for node in nodes:
        where = " ".join(f"{level}={name}" for level, name in node.topology.items())
        state = "" if node.state == "open" else f"  {node.state}: {node.reason}"
        print(f"  {node.id}  {node.num_free}/{node.num_slots} free  {where}{state}")


@pools_app.command()
def rm(ctx: typer.Context, pool: PoolName) -> None:
    """Remove a pool in which no job runs."""
    session: Session = ctx.obj
    with session.client() as client:
        client.remove_pool(pool)
    print(f"pool {pool} removed")
