"""Verbs on the control plane and this machine: up, doctor, admin."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from phalanx.cli.client import embedded
from phalanx.cli.client.session import Session, connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson, duration
from phalanx.cli.verbs.programs import run_module
from phalanx.errors import Conflict, UserError
from phalanx.kit.units import format_duration

_LEAVE_S = 30.0
_MIN_AGE_S = 3600.0


PortOption = Annotated[
    int, typer.Option("--port", min=0, max=65535, help="TCP port; 0: any free port.")
]
GrpcPortOption = Annotated[
    int | None,
    typer.Option(
        "--grpc-port",
        min=1,
        max=65535,
        help="TCP port of the gRPC API, at the same address; default: there is none.",
    ),
]
LogFormatOption = Annotated[
    Literal["text", "json"] | None,
    typer.Option(
        "--log-format",
        help="Log lines of the control plane and its supervisors: text, or one JSON object each.",
    ),
]
SlotsOption = Annotated[
    int | None,
    typer.Option(
        "--slots",
        min=0,
        help="Slots of the local pool; default: max(4, cores). 0 with other pools: no local pool.",
    ),
]
PoolOption = Annotated[
    list[Path] | None,
    typer.Option("--pool", help="A pool file, such as one with a Ray cluster; may be repeated."),
]
HostOption = Annotated[
    str, typer.Option("--host", help="Address to listen on; 0.0.0.0 accepts other machines.")
]
AdvertiseOption = Annotated[
    str | None,
    typer.Option("--advertise", help="URL at which other machines reach this server."),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="PostgreSQL in place of the home's SQLite file: a URL without password, or file:PATH of a "
        "file with the URL. Default: PHALANX__DATABASE__URL.",
    ),
]
TlsOption = Annotated[
    str | None,
    typer.Option(
        "--tls",
        metavar="generate",
        help="Encrypt the port: make an authority in the home, and certificates that are renewed.",
    ),
]
TlsCertOption = Annotated[
    Path | None,
    typer.Option("--tls-cert", help="Encrypt the port: PEM file of a certificate with its chain."),
]
TlsKeyOption = Annotated[Path | None, typer.Option("--tls-key", help="PEM file of its key.")]
TlsCaOption = Annotated[
    Path | None, typer.Option("--tls-ca", help="PEM file of the authority that supervisors accept.")
]
PlainOption = Annotated[
    bool,
    typer.Option(
        "--plain-http", help="Allow --host without TLS: tokens and code cross the network in clear."
    ),
]
KeepWarmOption = Annotated[
    int, typer.Option("--keep-warm", min=0, max=1, help="Number of standby supervisors.")
]
KeepLogsOption = Annotated[
    str | None,
    typer.Option(
        "--keep-logs", metavar="DURATION", help="Delete output older than this, such as 30d."
    ),
]
KeepMetricsOption = Annotated[
    str | None,
    typer.Option(
        "--keep-metrics",
        metavar="DURATION",
        help="Delete metrics this long after the end of their job.",
    ),
]


def up(  # noqa: PLR0913 (one parameter for each flag)
    ctx: typer.Context,
    port: PortOption = 0,
    slots: SlotsOption = None,
    pool: PoolOption = None,
    host: HostOption = "127.0.0.1",
    advertise: AdvertiseOption = None,
    database_url: DatabaseOption = None,
    keep_warm: KeepWarmOption = 1,
    keep_logs: KeepLogsOption = None,
    keep_metrics: KeepMetricsOption = None,
    tls: TlsOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_ca: TlsCaOption = None,
    plain_http: PlainOption = False,
    grpc_port: GrpcPortOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Start the control plane in the foreground: API, scheduler, pages. Ctrl-C ends it; jobs continue.

    A pool file is stored: later starts of this home use it again.
    """
    session: Session = ctx.obj
    if session.url is not None:
        raise UserError("`up` starts a control plane on this machine; remove --url")
    ages = [
        (f"{option}-s", _age(option, text))
        for option, text in (("--keep-logs", keep_logs), ("--keep-metrics", keep_metrics))
        if text is not None
    ]
    _replace_detached(session)
    words = [sys.executable, "-m", "phalanx.standalone", "--home", str(session.home)]
    words += ["--port", str(port), "--keep-warm", str(keep_warm)]
    if grpc_port is not None:
        words += ["--grpc-port", str(grpc_port)]
    if log_format is not None:
        words += ["--log-format", log_format]
    if slots is not None:
        words += ["--slots", str(slots)]
    for file in pool or ():
        words += ["--pool", str(file.absolute())]
    for option, age_s in ages:
        words += [option, str(age_s)]
    words += ["--host", host]
    words += _tls_words(tls, {"--tls-cert": tls_cert, "--tls-key": tls_key, "--tls-ca": tls_ca})
    words += ["--plain-http"] if plain_http else []
    if database_url is not None:
        words += ["--database-url", database_url]
    if advertise is not None:
        words += ["--advertise", advertise]
    sys.stdout.flush()
    os.execv(sys.executable, words)


def _tls_words(tls: str | None, files: Mapping[str, Path | None]) -> list[str]:
    """The arguments about TLS. Raises UserError."""
    if tls not in (None, "generate"):
        raise UserError(f"--tls {tls}: write --tls generate, or --tls-cert and --tls-key")
    given = {option: file for option, file in files.items() if file is not None}
    for option, file in given.items():
        if not file.is_file():
            raise UserError(f"{option} {file}: there is no such file")
    words = [] if tls is None else ["--tls", tls]
    return words + [one for option, file in given.items() for one in (option, str(file.absolute()))]


def _age(option: str, text: str) -> float:
    age_s = duration(option, text) or 0.0
    if age_s < _MIN_AGE_S:
        raise UserError(f"{option} {text}: is too short", "write at least 1h")
    return age_s


def _replace_detached(session: Session) -> None:
    """End a control plane that a verb started; its jobs continue.

    On PostgreSQL several serve one home.
    """
    found = embedded.find(session.home)
    if found is None or found.process is None:
        return
    if (session.home / embedded.DATABASE_PLACE).exists():
        return
    if not embedded.is_detached(found.process):
        raise Conflict(
            f"{session.home} already has a control plane: {found.url} (pid {found.process.pid})",
            "use it, or choose another --home",
        )
    output.note(f"replacing the background control plane (pid {found.process.pid})")
    try:
        os.kill(found.process.pid, 15)
    except ProcessLookupError:
        return
    if not embedded.wait_gone(found.process, _LEAVE_S):
        raise Conflict(f"the background control plane (pid {found.process.pid}) does not exit")


def doctor(  # noqa: PLR0913
    ctx: typer.Context,
    network: Annotated[
        bool, typer.Option("--network", help="Measure all-reduce between ranks instead.")
    ] = False,
    server: Annotated[
        bool, typer.Option("--server", help="Check the running control plane instead.")
    ] = False,
    ranks: Annotated[
        int, typer.Option("-n", "--ranks", min=2, help="Number of ranks for --network.")
    ] = 2,
    per_node: Annotated[
        int | None, typer.Option("--per-node", min=1, help="Maximum number of ranks on a node.")
    ] = None,
    pool: Annotated[str | None, typer.Option("--pool", help="The pool to measure.")] = None,
    presets: Annotated[
        str | None,
        typer.Option(
            "--presets", help="Network presets to compare, as in `training.network`; or all."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Check this machine: versions, home, disk, port, cores, clock. Exits with 1 when a check fails.

    With --network, run a short job that compares latency and bandwidth between ranks with the link. With
    --server, check the control plane: its answer, database, loops, leader, certificate, version, clock and
    pools, and your token.
    """
    if network and server:
        raise UserError("--network and --server are two checks", "give one of them")
    if network:
        from phalanx.cli.client.network import NetworkOptions, examine_network

        raise typer.Exit(
            examine_network(ctx.obj, NetworkOptions(ranks, per_node, pool, presets), json)
        )
    session: Session = ctx.obj
    if server:
        from phalanx.cli.client.server_checkup import examine_server

        with connected(ctx) as client:
            findings = examine_server(client)
    else:
        from phalanx.cli.client.checkup import examine

        findings = examine(session.home)
    if json:
        output.as_json([finding.as_dict() for finding in findings])
    else:
        for finding in findings:
            remedy = f"; {finding.remedy}" if finding.remedy else ""
            print(f"{finding.verdict:<4}  {finding.subject:<14}  {finding.said}{remedy}")
    raise typer.Exit(1 if any(finding.verdict == "FAIL" for finding in findings) else 0)


# -- backups -------------------------------------------------------------------------------------

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the backup.")]
_BACKUP = "phalanx.standalone.backup"
_REPLICA_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "NAME": lambda one: one.name,
    "ROLE": lambda one: one.role,
    "URL": lambda one: one.url,
    "VERSION": lambda one: one.version,
    "STARTED": lambda one: output.moment(one.started_at),
}

_SENDER_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "NAME": lambda one: one.name,
    "KIND": lambda one: one.kind,
    "BEHIND": lambda one: format_duration(one.lag_s),
    "LINES": lambda one: one.sent_lines,
    "REFUSED": lambda one: one.refused_lines,
    "LAST SENT": lambda one: "-" if one.sent_at is None else output.moment(one.sent_at),
    "ERROR": lambda one: one.error,
}

admin_app = typer.Typer(
    name="admin",
    no_args_is_help=True,
    help="Back up, restore or move a home: backup, restore, import-home. Control planes of a database: "
    "replicas. Output to other log stores: log-senders.",
)


@admin_app.command()
def backup(ctx: typer.Context, folder: Folder) -> None:
    """Copy the database, keys, pools and secrets of the home into a new folder, also while jobs run.

    Checkpoints, code archives and log files are not copied.
    """
    run_module(_BACKUP, ["--home", str(_home(ctx)), "backup", str(folder)])


@admin_app.command()
def restore(
    ctx: typer.Context,
    folder: Folder,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a database; it is kept beside the new one.")
    ] = False,
) -> None:
    """Put a backup into the home. No control plane may run there."""
    words = ["--home", str(_home(ctx)), "restore", str(folder)]
    run_module(_BACKUP, [*words, "--force"] if force else words)


@admin_app.command("replicas")
def list_replicas(ctx: typer.Context, json: AsJson = False) -> None:
    """List the control planes that serve the same PostgreSQL database, and which of them leads."""
    with connected(ctx) as client:
        found = client.info().replicas
    output.listing(found, json, _REPLICA_COLUMNS, "no replicas: this control plane uses SQLite")


@admin_app.command("log-senders")
def list_log_senders(ctx: typer.Context, json: AsJson = False) -> None:
    """List the senders of output to other log stores, and how far each is behind."""
    with connected(ctx) as client:
        found = client.log_senders()
    said = "no senders: PHALANX__LOG_SENDERS__SENDERS sets them up"
    output.listing(found, json, _SENDER_COLUMNS, said)


@admin_app.command("import-home")
def import_home(
    ctx: typer.Context,
    database_url: DatabaseOption = None,
    objects: Annotated[
        str | None,
        typer.Option(
            "--objects",
            metavar="URL",
            help="Also copy checkpoints, code and traces of profiles into this object store, such as "
            "s3://bucket/prefix; may be repeated after an interruption.",
        ),
    ] = None,
) -> None:
    """Move the jobs of the home from SQLite to an empty PostgreSQL database, while no control plane runs.

    Every table is compared, and every file that is copied is read back. The SQLite file and the files are
    kept.
    """
    words = ["--home", str(_home(ctx))]
    words += [] if objects is None else ["--objects", objects]
    words += [] if database_url is None else ["--database-url", database_url]
    run_module("phalanx.standalone.import_home", words)


def _home(ctx: typer.Context) -> Path:
    session: Session = ctx.obj
    if session.url is not None:
        raise UserError(
            "`admin` works on the control plane's own machine",
            "run this verb on that machine, without --url",
        )
    return session.home
