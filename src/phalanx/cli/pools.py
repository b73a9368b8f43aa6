"""Verbs on what jobs run on: pools, nodes."""

from __future__ import annotations

import typer

from phalanx.cli import output
from phalanx.cli.options import AsJson
from phalanx.cli.session import Session
from phalanx.kit.units import format_size


def _holders(jobs: list[int]) -> str:
    return " ".join(f"j-{num}" for num in jobs)


def pools(ctx: typer.Context, json: AsJson = False) -> None:
    """List pools and how full they are."""
    session: Session = ctx.obj
    with session.client() as client:
        found = client.pools()
    if json:
        output.as_json(found)
        return
    output.table(
        ("POOL", "NODES", "SLOTS", "FREE", "JOBS"),
        ((p.name, p.num_nodes, p.num_slots, p.num_free, _holders(p.jobs)) for p in found),
        "no pools",
    )


def nodes(ctx: typer.Context, json: AsJson = False) -> None:
    """List the machines behind the pools."""
    session: Session = ctx.obj
    with session.client() as client:
        found = client.nodes()
    if json:
        output.as_json(found)
        return
    output.table(
        ("NODE", "POOL", "ADDRESS", "SLOTS", "FREE", "CPUS", "MEMORY", "JOBS"),
        (
            (
                node.id,
                node.pool,
                node.address,
                node.num_slots,
                node.num_free,
                node.num_cpus,
                format_size(node.memory_bytes),
                _holders(node.jobs),
            )
            for node in found
        ),
        "no nodes",
    )
