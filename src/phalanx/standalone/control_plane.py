"""The embedded control plane: home, lock, socket, executor, server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from phalanx import __version__
from phalanx.errors import ServerError, UserError
from phalanx.executors import local
from phalanx.executors.routing import RoutedExecutor
from phalanx.kit.clock import Clock, SystemClock
from phalanx.kit.repeats import RepeatFilter
from phalanx.launch.accelerators import discover
from phalanx.launch.files import folder_identity, write_file
from phalanx.launch.identity import this_process
from phalanx.schemas.home import HomeLayout, ServerFile
from phalanx.schemas.pools.pool_file import PoolFile, read_pool_file
from phalanx.server.app import serve
from phalanx.server.connections import raise_file_limit
from phalanx.server.settings import DatabaseSettings, Settings, hide_database_url, read_settings
from phalanx.services.resources.credentials import login_ticket
from phalanx.standalone.home import (
    HomeLock,
    prepare_home,
    read_key,
    read_token,
    remember_database,
    rotate_log,
)
from phalanx.standalone.pools import HomeClusters, known_clusters

HOST = "127.0.0.1"
# How long to wait for the home lock of a control plane that is exiting.
_LOCK_WAIT_S = 10.0
_MIN_SLOTS = 4


@dataclass(frozen=True, slots=True)
class ControlPlaneOptions:
    """Options of the command line for a control plane."""

    root: Path  # home directory
    port: int = 0  # 0: any free port
    num_slots: int | None = None  # local slots; None: accelerators, else max(4, CPUs)
    detached: bool = False  # started by a command: prints no banner
    idle_exit_s: float | None = None  # None: as in the settings
    keep_warm: int = 0  # number of idle warm processes
    host: str = HOST  # interface to bind
    advertise: str | None = None  # URL for other machines; None: host and port
    pools: Sequence[Path] = ()  # pool files to add to the stored pools
    database_url: str | None = None  # PostgreSQL, without a password; None: as in the settings
    keep_logs_s: float | None = None  # retention of logs; None: as in the settings
    keep_metrics_s: float | None = None  # the same, of metrics


def default_slots() -> int:
    """The default size of the local pool: the number of usable CPUs, at least four."""
    return max(_MIN_SLOTS, len(os.sched_getaffinity(0)))


def bind(port: int, host: str = HOST) -> socket.socket:
    """A socket bound to `port` of an interface, the loopback one by default.

    Raises ServerError when the port is taken or not ours to use.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except (OSError, OverflowError) as error:
        sock.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            said = f"port {port} of {host} is in use"
        elif isinstance(error, OSError) and error.errno == errno.EACCES:
            said = f"port {port} may not be used by this user"
        else:
            said = f"port {port} cannot be used"
        raise ServerError(said, "choose another one with --port, or leave it out") from error
    return sock


@contextlib.contextmanager
def _held(home: HomeLayout, clock: Clock) -> Iterator[None]:
    lock = HomeLock(home)
    lock.take(clock, _LOCK_WAIT_S)
    try:
        yield
    finally:
        lock.release()


def bind_local(path: Path) -> socket.socket | None:
    """A Unix socket of mode 0600 at `path`; None where the system allows none there, as for a long path."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        sock.bind(str(path))
        path.chmod(0o600)
    except OSError:
        sock.close()
        return None
    return sock


def _limit_log() -> None:
    """Write warnings to stderr, with a limit on lines that repeat."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    handler.addFilter(RepeatFilter())
    logging.getLogger().addHandler(handler)


def _publisher(
    home: HomeLayout, url: str, token: str, detached: bool, local: bool
) -> Callable[[], None]:
    """Writes `server.json` once requests are answered."""

    def publish() -> None:
        me = this_process()
        found = ServerFile(
            pid=me.pid,
            boot_id=me.boot_id,
            started_ticks=me.start_ticks,
            url=url,
            token=token,
            version=__version__,
            home=folder_identity(home.root),
            socket=str(home.socket_file) if local else "",
        )
        write_file(home.server_file, found.model_dump_json().encode())
        if not detached:
            print(f"Phalanx {__version__} at {url} (home {home.root})", flush=True)  # noqa: T201
            ticket = login_ticket(token, SystemClock().now())
            print(f"  pages: {url}/login?ticket={ticket} (once, within 15 minutes)", flush=True)  # noqa: T201
            print("  Ctrl-C stops it; running jobs continue.", flush=True)  # noqa: T201

    return publish


def _reachable(host: str) -> str:
    return HOST if host in ("", "0.0.0.0") else host


def _executor(
    home: HomeLayout, setup: ControlPlaneOptions, clock: Clock, files: list[PoolFile]
) -> RoutedExecutor:
    """The executor of this machine's pool; clusters are added later. Raises ServerError, SpecInvalid."""
    clusters = [*known_clusters(home), *(one for file in files for one in file.clusters)]
    num_slots = default_slots() if setup.num_slots is None else setup.num_slots
    if num_slots < (0 if clusters else 1):
        raise ServerError("--slots must be at least 1")
    if num_slots == 0:
        return RoutedExecutor({})
    env = dict(os.environ)  # noqa: TID251 - the accelerators that this process was left
    here = local.LocalExecutor(
        home,
        num_slots=num_slots,
        clock=clock,
        keep_warm=setup.keep_warm,
        find=lambda: discover(env),
        share_devices=setup.num_slots is not None,
    )
    here.keep_standby()
    return RoutedExecutor({local.POOL: here}, shared=here)


def _pool_files(setup: ControlPlaneOptions) -> list[PoolFile]:
    """Read the pool files of the command line and print their notices. Raises SpecInvalid."""
    found = []
    for path in setup.pools:
        file, notices = read_pool_file(path)
        for notice in notices:
            print(f"warning: {path}: {notice}", file=sys.stderr, flush=True)  # noqa: T201
        found.append(file)
    return found


def _settings(setup: ControlPlaneOptions) -> Settings:
    """The settings of the environment, with those of the command line. Raises SpecInvalid."""
    settings = read_settings()
    ages = {"logs": setup.keep_logs_s, "metrics": setup.keep_metrics_s}
    given = {name: age for name, age in ages.items() if age is not None}
    changes: dict[str, object] = {"retention": settings.retention.model_copy(update=given)}
    if setup.idle_exit_s is not None:
        changes["idle_exit_s"] = setup.idle_exit_s
    if setup.database_url is not None:
        refuse_password(setup.database_url)
        changes["database"] = DatabaseSettings(url=setup.database_url)
    hide_database_url()
    return settings.model_copy(update=changes)


def refuse_password(url: str) -> None:
    """Raise UserError for a URL of the command line with a password, which every process could read."""
    parts = urlsplit(url)
    if parts.password is not None or "password" in parse_qs(parts.query):
        raise UserError(
            "--database-url has a password, which the list of processes shows to every user",
            "write the URL to a file and name it: --database-url file:PATH; or set "
            "PHALANX__DATABASE__URL, or put the password into ~/.pgpass",
        )


def run(setup: ControlPlaneOptions) -> int:
    """Serve until told to stop; returns the exit code.

    Raises SpecInvalid for wrong settings, ServerError, Conflict (the home has a control plane) and what
    `serve` raises.
    """
    clock = SystemClock()
    settings = _settings(setup)
    files = _pool_files(setup)
    home = prepare_home(setup.root)
    with _held(home, clock), bind(setup.port, setup.host) as sock:
        rotate_log(home.server_log)
        home.server_file.unlink(missing_ok=True)
        token = read_token(home)
        url = setup.advertise or f"http://{_reachable(setup.host)}:{sock.getsockname()[1]}"
        remember_database(home, settings.database.resolved())
        executor = _executor(home, setup, clock, files)
        raise_file_limit()
        _limit_log()
        local_sock = bind_local(home.socket_file)
        clusters = HomeClusters(home, executor)
        clusters.connect_all()
        try:
            asyncio.run(
                serve(
                    home=home,
                    executor=executor,
                    sock=sock,
                    local_sock=local_sock,
                    url=url,
                    token=token,
                    settings=settings,
                    clock=clock,
                    on_ready=_publisher(home, url, token, setup.detached, local_sock is not None),
                    clusters=clusters,
                    signing_key=read_key(home),
                    pool_files=[file.model_dump(mode="json", by_alias=True) for file in files],
                )
            )
        finally:
            home.server_file.unlink(missing_ok=True)
            home.socket_file.unlink(missing_ok=True)
    return 0
