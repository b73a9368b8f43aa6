"""The embedded control plane: home, lock, socket, executor, server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from phalanx import __version__
from phalanx.core.contract.secrecy import redacted
from phalanx.errors import ServerError, UserError
from phalanx.executors import local
from phalanx.executors.routing import RoutedExecutor
from phalanx.kit.clock import Clock, SystemClock
from phalanx.kit.log_lines import LogFormat, log_to
from phalanx.kit.repeats import RepeatFilter
from phalanx.launch.accelerators import discover
from phalanx.launch.files import folder_identity, write_file
from phalanx.launch.identity import ProcessIdentity, boot_id, this_process
from phalanx.schemas.home import HomeLayout, ServerFile
from phalanx.schemas.pools.pool_file import PoolFile, read_pool_file
from phalanx.server.app import serve
from phalanx.server.connections import raise_file_limit
from phalanx.server.settings import (
    DatabaseSettings,
    LogSettings,
    Settings,
    TlsSettings,
    hide_secret_settings,
    read_settings,
)
from phalanx.server.tls import Certificate
from phalanx.services.resources.credentials import login_ticket
from phalanx.standalone.certificates import (
    GeneratedCertificate,
    GivenCertificate,
    fingerprint,
    own_names,
)
from phalanx.standalone.home import (
    HomeLock,
    prepare_home,
    read_key,
    read_token,
    remember_database,
    rotate_log,
)
from phalanx.standalone.pools import HomeClusters, known_clusters
from phalanx.store.leadership.replicas import ReplicaRow

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
    tls: str | None = None  # generate: by an authority of the home; None: as in the settings
    tls_cert: Path | None = None  # certificate in PEM; None: as in the settings
    tls_key: Path | None = None  # its key; None: as in the settings
    tls_ca: Path | None = None  # authority that supervisors accept; None: as in the settings
    grpc_port: int | None = None  # of the gRPC API; None: as in the settings
    log_format: str | None = None  # text or json; None: as in the settings
    plain_http: bool = False  # no TLS although other machines reach the port


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
def _held(home: HomeLayout, clock: Clock, how: int) -> Iterator[None]:
    lock = HomeLock(home)
    lock.take(clock, _LOCK_WAIT_S, how)
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


def _own_socket(home: HomeLayout) -> Path:
    """The place of this replica's socket; those that killed replicas of this machine left are removed."""
    place = home.replica_socket(boot_id(), os.getpid())
    for other in home.root.glob(f"{place.name.rsplit('-', 1)[0]}-*.sock"):
        if not Path(f"/proc/{other.stem.rsplit('-', 1)[1]}").exists():
            other.unlink(missing_ok=True)
    return place


def _log(settings: LogSettings) -> None:
    """Write log lines to stderr, with a limit on lines that repeat."""
    handler = logging.StreamHandler()
    handler.addFilter(RepeatFilter())
    level = logging.getLevelName(settings.level.upper())
    log_to(handler, LogFormat(settings.format), redacted, level, {"service": "control-plane"})


class ServerFileWriter:
    """Writes `server.json`, by which clients and supervisors of the home find a control plane.

    Replicas share the file. It names one of them that lives: each of them serves everything.
    """

    def __init__(
        self, home: HomeLayout, url: str, token: str, local_socket: Path | None, ca: str
    ) -> None:
        self._home, me = home, this_process()
        self._mine = ServerFile(
            pid=me.pid,
            boot_id=me.boot_id,
            started_ticks=me.start_ticks,
            url=url,
            token=token,
            version=__version__,
            home=folder_identity(home.root),
            socket="" if local_socket is None else str(local_socket),
            ca=ca,
        )

    def write(self) -> None:
        """Name this process; with the token of now, which a request may have replaced."""
        mine = self._mine.model_copy(update={"token": read_token(self._home)})
        write_file(self._home.server_file, mine.model_dump_json().encode())

    def keep(self, live: Sequence[ReplicaRow]) -> None:
        """Name this process where the one that is named does not live."""
        named = self._named()
        if named is None or not self._lives(named, live):
            self.write()

    def remove(self) -> None:
        """Remove the file if it names this process; another replica writes it again."""
        named = self._named()
        if named is not None and (named.pid, named.boot_id) == (self._mine.pid, self._mine.boot_id):
            self._home.server_file.unlink(missing_ok=True)

    def _named(self) -> ServerFile | None:
        try:
            return ServerFile.model_validate_json(self._home.server_file.read_bytes())
        except (OSError, ValueError):
            return None

    def _lives(self, named: ServerFile, live: Sequence[ReplicaRow]) -> bool:
        """Whether a process lives: of this machine by its number, of others by the URL of a replica."""
        if named.boot_id == self._mine.boot_id:
            return ProcessIdentity(named.boot_id, named.pid, named.started_ticks).is_alive()
        return named.url in {one.url for one in live}


def _announce(
    home: HomeLayout, url: str, token: str, certificate: Certificate | None, grpc_port: int | None
) -> None:
    """Tell the user of a terminal where the control plane is."""
    print(f"Phalanx {__version__} at {url} (home {home.root})", flush=True)  # noqa: T201
    if grpc_port is not None:
        print(f"  gRPC: {urlsplit(url).hostname}:{grpc_port}", flush=True)  # noqa: T201
    ticket = login_ticket(token, SystemClock().now())
    print(f"  pages: {url}/login?ticket={ticket} (once, within 15 minutes)", flush=True)  # noqa: T201
    if certificate is not None and certificate.authority:
        shown = fingerprint(certificate.authority)
        print(f"  authority for --ca-file of clients: {shown}", flush=True)  # noqa: T201
    print("  Ctrl-C stops it; running jobs continue.", flush=True)  # noqa: T201


def _reachable(host: str) -> str:
    return HOST if host in ("", "0.0.0.0") else host


def _num_slots(setup: ControlPlaneOptions) -> int:
    """The number of slots of this machine's pool; 0: it has none."""
    return default_slots() if setup.num_slots is None else setup.num_slots


def _executor(
    home: HomeLayout, setup: ControlPlaneOptions, clock: Clock, files: list[PoolFile]
) -> RoutedExecutor:
    """The executor of this machine's pool; clusters are added later. Raises ServerError, SpecInvalid."""
    clusters = [*known_clusters(home), *(one for file in files for one in file.clusters)]
    num_slots = _num_slots(setup)
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
    if setup.grpc_port is not None:
        changes["grpc"] = settings.grpc.model_copy(update={"port": setup.grpc_port})
    if setup.log_format is not None:
        changes["log"] = settings.log.model_copy(update={"format": setup.log_format})
    changes["tls"] = _tls_settings(settings.tls, setup)
    hide_secret_settings()
    return settings.model_copy(update=changes)


def _tls_settings(given: TlsSettings, setup: ControlPlaneOptions) -> TlsSettings:
    """The settings of TLS with those of the command line, which replace those of the environment."""
    if setup.tls is not None or setup.tls_cert is not None:
        given = TlsSettings(generate=setup.tls is not None, ca=given.ca)
    files = {"cert": setup.tls_cert, "key": setup.tls_key, "ca": setup.tls_ca}
    changes: dict[str, object] = {name: one for name, one in files.items() if one is not None}
    return given.model_copy(update=changes | ({"plain_http": True} if setup.plain_http else {}))


def _certificate(
    home: HomeLayout, setup: ControlPlaneOptions, settings: Settings, now: int
) -> Certificate | None:
    """The certificate that is served; None: plain HTTP. Raises ServerError, UserError, NotSupported."""
    tls = settings.tls
    if tls.generate and tls.cert is not None:
        raise UserError("a certificate is given, and one is to be made", "choose one of the two")
    if (tls.cert is None) != (tls.key is None):
        raise UserError(
            "a certificate and its key belong together", "give both, --tls-cert and --tls-key"
        )
    if not tls.generate and tls.cert is None:
        _refuse_plain(setup, tls)
        return None
    if setup.advertise is not None and urlsplit(setup.advertise).scheme != "https":
        raise UserError(f"--advertise {setup.advertise} is not an https URL, and TLS is on")
    made = _make_certificate(home, setup, settings)
    made.renew(now)
    return made


def _make_certificate(
    home: HomeLayout, setup: ControlPlaneOptions, settings: Settings
) -> Certificate:
    tls = settings.tls
    if tls.cert is not None and tls.key is not None:
        return GivenCertificate(tls.cert.absolute(), tls.key.absolute(), tls.ca)
    advertised = urlsplit(setup.advertise or "").hostname or ""
    public = urlsplit(settings.api.public_url or "").hostname
    others = (*settings.api.allowed_hosts, *([public] if public else ()))
    return GeneratedCertificate(home, own_names(setup.host, advertised, others))


def _with_public_url(settings: Settings, advertised: str | None) -> Settings:
    """The settings with the URL for other machines as that of users, unless another one is set."""
    if settings.api.public_url is not None or advertised is None:
        return settings
    return settings.model_copy(
        update={"api": settings.api.model_copy(update={"public_url": advertised})}
    )


def _refuse_plain(setup: ControlPlaneOptions, tls: TlsSettings) -> None:
    """Raise UserError for plain HTTP on an address that other machines reach, unless it is wanted."""
    if tls.plain_http or _is_loopback(setup.host):
        return
    raise UserError(
        f"tokens and code would cross the network in clear: --host {setup.host} is reached by others",
        "add --tls generate, or --tls-cert and --tls-key; behind a proxy with TLS, or in a network that "
        "no one else reads, --plain-http",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
    settings = _with_public_url(_settings(setup), setup.advertise)
    files = _pool_files(setup)
    home = prepare_home(setup.root)
    # Replicas on PostgreSQL share the home; on SQLite a control plane has it alone.
    shared = settings.database.resolved() is not None
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with _held(home, clock, how), bind(setup.port, setup.host) as sock:
        rotate_log(home.server_log)
        token = read_token(home)
        certificate = _certificate(home, setup, settings, clock.now())
        scheme = "http" if certificate is None else "https"
        url = setup.advertise or f"{scheme}://{_reachable(setup.host)}:{sock.getsockname()[1]}"
        remember_database(home, settings.database.resolved())
        executor = _executor(home, setup, clock, files)
        raise_file_limit()
        _log(settings.log)
        place = _own_socket(home) if shared else home.socket_file
        local_sock = bind_local(place)
        ca = "" if certificate is None else certificate.authority
        found_by = ServerFileWriter(home, url, token, place if local_sock is not None else None, ca)
        if not shared:
            home.server_file.unlink(missing_ok=True)
        clusters = HomeClusters(home, executor)
        clusters.connect_all()

        def ready() -> None:
            found_by.keep([])
            if not setup.detached:
                _announce(home, url, token, certificate, settings.grpc.port)

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
                    on_ready=ready,
                    clusters=clusters,
                    signing_key=read_key(home),
                    pool_files=[file.model_dump(mode="json", by_alias=True) for file in files],
                    num_local_slots=_num_slots(setup),
                    on_live=found_by.keep,
                    certificate=certificate,
                )
            )
        finally:
            found_by.remove()
            place.unlink(missing_ok=True)
    return 0
