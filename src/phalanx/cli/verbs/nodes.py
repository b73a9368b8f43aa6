"""Verbs on nodes: list, show, drain, undrain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.client.session import connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.cli.terminal.output import holders
from phalanx.cli.verbs.pools import group
from phalanx.kit.units import format_size

if TYPE_CHECKING:
    from phalanx.schemas.api.pools import DeviceView

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.")]
NodeNames = Annotated[list[str], typer.Argument(metavar="NODE...", help="Names of the nodes.")]
OfPool = Annotated[str | None, typer.Option("--pool", help="Only nodes of this pool.")]


def list_nodes(ctx: typer.Context, pool: OfPool = None, json: AsJson = False) -> None:
    """List the nodes of the pools."""
    with connected(ctx) as client:
        found = client.nodes(pool)
    columns = {
        "NODE": lambda node: node.id,
        "POOL": lambda node: node.pool,
        "STATE": lambda node: node.state,
        "SLOTS": lambda node: node.num_slots,
        "FREE": lambda node: node.num_free,
        "UNHEALTHY": lambda node: node.num_unhealthy or None,
        "CPUS": lambda node: node.num_cpus,
        "MEMORY": lambda node: format_size(node.memory_bytes),
        "TOPOLOGY": lambda node: "/".join(node.topology.values()),
        "JOBS": lambda node: holders(node.jobs),
    }
    output.listing(found, json, columns, "no nodes")


nodes_app = group("nodes", "Nodes of the pools: list, show, drain, undrain.", list_nodes)


@nodes_app.command()
def show(ctx: typer.Context, node: NodeName, json: AsJson = False) -> None:
    """Show one node: its resources, its topology and the jobs on it."""
    with connected(ctx) as client:
        view = client.node(node)
    if json:
        output.as_json(view)
        return
    device = f" with {format_size(view.device_memory_bytes)}" if view.device_memory_bytes else ""
    link = f"{view.bandwidth_gbps:g} Gbit/s" if view.bandwidth_gbps else None
    output.facts(
        [
            ("node", view.id),
            ("pool", view.pool),
            ("state", view.state + (f": {view.reason}" if view.reason else "")),
            ("address", view.address),
            ("slots", f"{view.num_free} of {view.num_slots} free"),
            ("unhealthy", f"{view.num_unhealthy} devices" if view.num_unhealthy else None),
            ("type", f"{view.slot_type}{device}" if view.slot_type or device else None),
            ("cpus", view.num_cpus),
            ("memory", format_size(view.memory_bytes)),
            ("topology", ", ".join(f"{key} {name}" for key, name in view.topology.items())),
            ("interconnect", view.interconnect),
            ("link", link),
            ("price", f"{view.price:g} USD per slot and hour" if view.price else None),
            (
                "spot",
                f"{view.reclaims_per_hour:g} reclaims per hour" if view.reclaims_per_hour else None,
            ),
            ("labels", ", ".join(f"{key}={value}" for key, value in view.labels.items())),
            ("taints", ", ".join(view.taints)),
            ("jobs", holders(view.jobs)),
            ("reserved for", holders(view.reserved_for)),
            *((f"slot {device.slot}", _device(device)) for device in view.devices),
        ]
    )


def _device(device: DeviceView) -> str:
    """One accelerator in a line: what it is, what is free of it, and what holds it."""
    memory = ""
    if device.memory_bytes:
        memory = f", {format_size(device.free_bytes)} of {format_size(device.memory_bytes)} free"
    held = f"{device.state} by {holders(device.jobs)}" if device.jobs else device.state
    why = f": {device.reason}" if device.reason else ""
    users = ""
    if device.state != "held" and device.users:
        users = f" (processes {', '.join(str(one.pid) for one in device.users)})"
    return f"{device.model or 'accelerator'} {device.id}{memory}, {held}{why}{users}"


@nodes_app.command()
def drain(
    ctx: typer.Context,
    nodes: NodeNames,
    reason: Annotated[str, typer.Option("--reason", help="A note, shown with the node.")] = "",
    move: Annotated[
        bool, typer.Option("--move", help="Let jobs of the nodes save and start elsewhere.")
    ] = False,
    quarantine: Annotated[
        bool,
        typer.Option("--quarantine", help="Mark the nodes as faulty instead of in maintenance."),
    ] = False,
) -> None:
    """Keep new jobs from starting on these nodes; running jobs stay, unless --move."""
    with connected(ctx) as client:
        for node in nodes:
            done = client.drain(
                node,
                reason=reason,
                state="quarantined" if quarantine else "drained",
                jobs="move" if move else "leave",
            )
            moving = f"; {holders(done.moving)} save and move" if done.moving else ""
            staying = f"; {holders(done.staying)} stay until they end" if done.staying else ""
            print(f"node {node} {done.state}{moving}{staying}")


@nodes_app.command()
def undrain(ctx: typer.Context, nodes: NodeNames) -> None:
    """Allow jobs to start on these nodes again."""
    with connected(ctx) as client:
        for node in nodes:
            print(f"node {node} {client.undrain(node).state}")
