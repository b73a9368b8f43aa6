"""`phalanx doctor --network`: measure all-reduce against the link for each network preset."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from phalanx.cli.client.measuring import figures, run_to_end, shape
from phalanx.cli.client.session import Session
from phalanx.cli.terminal import output
from phalanx.core.gang.networks import PRESETS, rate_text
from phalanx.errors import UserError

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import JobView
    from phalanx.sdk import PhalanxClient

_MODULE = "phalanx.train.programs.netcheck"
_NAMES = ("network_latency_seconds", "network_bus_bytes_per_s", "network_link_bytes_per_s")
_AS_IT_IS = "none"


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Which ranks to measure, and under which presets; None: the environment as it is."""

    ranks: int
    per_node: int | None
    pool: str | None
    presets: str | None


@dataclass(frozen=True, slots=True)
class _Row:
    preset: str
    latency_s: float
    bus_bytes_per_s: float
    link_bytes_per_s: float
    remarks: tuple[str, ...]


def examine_network(session: Session, options: NetworkOptions, json: bool) -> int:
    """Measure and print; returns the exit code. Raises UserError for an unknown preset."""
    names = _presets(options.presets)
    with session.client() as client:
        rows = [_measure(session, client, options, name) for name in names]
    if json:
        output.as_json([asdict(row) for row in rows])
    elif len(rows) == 1:
        print("\n".join(rows[0].remarks))
    else:
        _compare(rows)
    return int(any(line.startswith("FAIL") for row in rows for line in row.remarks))


def _presets(text: str | None) -> list[str]:
    if text is None:
        return [_AS_IT_IS]
    names = list(PRESETS) if text == "all" else text.split(",")
    for name in names:
        if name not in PRESETS:
            raise UserError(f"--presets {name}: must be one of {', '.join(PRESETS)} or all")
    return [_AS_IT_IS, *names]


def _measure(session: Session, client: PhalanxClient, options: NetworkOptions, preset: str) -> _Row:
    output.note(f"measuring between {options.ranks} ranks, preset {preset} …")
    part: dict[str, Any] = {
        "name": "doctor-network",
        "resources": shape(options.ranks, options.per_node),
        "labels": {"doctor": "network"},
    }
    if options.pool is not None:
        part["pool"] = [options.pool]
    if preset != _AS_IT_IS:
        part["training"] = {"network": {"preset": preset}}
    view, _ = run_to_end(session, client, _MODULE, (), part)
    lines = _said(client, view)
    if any(line.startswith("FAIL") for line in lines):
        return _Row(preset, 0.0, 0.0, 0.0, lines)
    latency_s, bus, link = figures(client, view, _NAMES)
    return _Row(preset, latency_s, bus, link, lines)


def _said(client: PhalanxClient, view: JobView) -> tuple[str, ...]:
    page = client.logs(view.num, ranks=(0,), stream="out", tail=200)
    return tuple(one.text.rstrip("\n") for one in page.lines)


def _compare(rows: list[_Row]) -> None:
    base = rows[0]
    table = [
        (
            row.preset,
            f"{row.latency_s * 1e6:.0f} µs",
            rate_text(row.bus_bytes_per_s),
            f"{row.bus_bytes_per_s / base.bus_bytes_per_s:.2f}" if base.bus_bytes_per_s else "-",
            rate_text(row.link_bytes_per_s),
        )
        for row in rows
    ]
    output.table(("PRESET", "LATENCY", "BANDWIDTH", "AGAINST NONE", "LINK"), table, "nothing")
    print("\n".join(base.remarks))
