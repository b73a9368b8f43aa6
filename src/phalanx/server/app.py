"""The control plane: wires store, services, loops and routes, and serves HTTP.

Jobs are left running at exit: their supervisors wait for the next control plane of the home.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

import phalanx
from phalanx.errors import (
    NotFound,
    NotSupported,
    PlatformError,
    Problem,
    ServerError,
    SpecInvalid,
    StorageFull,
    TooLarge,
    UserError,
)
from phalanx.executors.protocol import Executor
from phalanx.kit import garbage
from phalanx.kit.clock import Clock, SystemClock
from phalanx.kit.text import shorten
from phalanx.launch.files import is_out_of_space
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.spec.document import MAX_PROBLEMS
from phalanx.search import SamplerWorker
from phalanx.server.connections import ConnectionLimits, Connections, quiet_loop
from phalanx.server.context import AdminToken, Context, Presence
from phalanx.server.gate import Gate, error_response
from phalanx.server.leadership import Leadership, this_replica
from phalanx.server.loops.leading import follow_clusters, lead, live
from phalanx.server.loops.runner import until_idle
from phalanx.server.notifier import Notifier
from phalanx.server.observe.exposition import Exposition
from phalanx.server.observe.readiness import Readiness
from phalanx.server.openapi import add_routes
from phalanx.server.settings import (
    SchedulerSettings,
    Settings,
    base_environment,
    read_settings,
    store_environment,
)
from phalanx.server.sync_batches import SyncBatches
from phalanx.server.tls import Certificate, keep_valid, over
from phalanx.server.tunnels.registry import TunnelRegistry
from phalanx.services.caches.row_cache import PlanningPolicy
from phalanx.services.lifecycle.numbers import continue_numbers
from phalanx.services.login.provider import IdentityProvider
from phalanx.services.platform import Clusters, NoClusters, Platform, RetentionRules
from phalanx.services.resources.pools import apply_pools
from phalanx.services.secret_managers.references import SecretSource, SecretSources
from phalanx.services.secret_managers.vault import VaultSource
from phalanx.services.secrets.values import adopt_files
from phalanx.services.timekeeping import open_clock
from phalanx.store import Store, open_store, outbox
from phalanx.store.leadership.replicas import ReplicaRow
from phalanx.store.tenancy import audit

if TYPE_CHECKING:
    from phalanx.server.rpc.listener import RpcListener

_LOG = logging.getLogger(__name__)
_GRACE_S = 3
# Connections that are accepted in one turn of the event loop: less than the descriptors that are kept free.
_BACKLOG = 128


class StopCause(StrEnum):
    """Why a control plane ended."""

    IDLE = "idle"
    SIGNAL = "signal"
    ASKED = "asked"


def policy_of(settings: SchedulerSettings) -> PlanningPolicy:
    """The planner's policy at the start; that of the defaults is `PlannerConfig()`.

    A setting that was given replaces the constant of the named policy.
    """
    given = settings.model_fields_set - {"policy", "usage_half_life_s", "peer_hysteresis"}
    constants = {field: getattr(settings, field) for field in sorted(given)}
    if "peer_hysteresis" in settings.model_fields_set:
        constants["hysteresis"] = settings.peer_hysteresis
    start = PlanningPolicy(half_life_s=settings.usage_half_life_s, constants=constants)
    return start.under(settings.policy)


def provider_of(settings: Settings, clock: Clock) -> IdentityProvider | None:
    """The identity provider of `phalanx login`; None: none is configured. Raises SpecInvalid."""
    config = settings.login.resolved()
    return None if config is None else IdentityProvider(config, clock.monotonic)


def managers_of(settings: Settings, clock: Clock) -> SecretSources:
    """The secret managers that references can name. Raises SpecInvalid."""
    server, folder = settings.vault.resolved(), settings.secret_files.resolved()
    managers: list[SecretSource] = []
    if server is not None:
        managers.append(VaultSource(server, clock.monotonic))
    if folder is not None:
        managers.append(folder)
    return SecretSources(managers, clock.monotonic)


def derived_key(token: str) -> bytes:
    """The key of supervisor tokens in homes that have no file for it."""
    return hashlib.sha256(b"supervisors:" + token.encode()).digest()


def build_context(  # noqa: PLR0913
    *,
    store: Store,
    home: HomeLayout,
    executor: Executor,
    url: str,
    token: str,
    settings: Settings,
    clock: Clock,
    clusters: Clusters | None = None,
    signing_key: bytes | None = None,
    sampler: SamplerWorker | None = None,
    replica: ReplicaRow | None = None,
    server_ca: str = "",
) -> Context:
    """A wired control plane that does not run yet; tests drive its steps one by one."""
    context = Context(
        platform=Platform(
            store=store,
            executor=executor,
            home=home,
            server_url=url,
            public_url=(settings.api.public_url or "").rstrip("/"),
            server_ca=server_ca,
            signing_key=signing_key or derived_key(token),
            given_keys=settings.secrets.resolved(),
            managers=managers_of(settings, clock),
            base_env=base_environment(),
            code_archives=settings.storage.code_archives(),
            log_store=settings.storage.log_files(home),
            contact_lost_after_s=settings.contact_lost_after_s,
            log_format=settings.log.format,
            log_limit=settings.retention.log_bytes_per_job,
            retention=RetentionRules(
                settings.retention.periods,
                log_bytes=settings.retention.log_bytes,
                stores=settings.retention.stores,
                store_env=store_environment(),
            ),
            classes=settings.slo.resolved(),
            policy=policy_of(settings.scheduler),
            sampler=sampler or SamplerWorker(),
            clusters=clusters or NoClusters(),
        ),
        clock=clock,
        settings=settings,
        notifier=Notifier(),
        admin=AdminToken(token),
        presence=Presence(clock.monotonic()),
        started_at=clock.now(),
        leadership=Leadership(store, clock, replica),
        notify=settings.notify.resolved(settings.api.public_url or url),
        log_senders=settings.log_senders.resolved(),
        login=provider_of(settings, clock),
    )
    store.on_commit(context.notifier.touched)
    store.audit_with(audit.before_commit)
    return context


def create_app(context: Context) -> FastAPI:
    """The HTTP application: routes, error handlers and access checks. `serve` runs the loops."""
    app = FastAPI(
        title="Phalanx",
        version=phalanx.__version__,
        docs_url=None,  # the framework's documentation pages load scripts from other hosts
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    app.state.context = context
    app.state.exposition = Exposition(context)
    app.state.readiness = Readiness(context)
    app.state.sync_batches = SyncBatches(context)
    app.state.tunnels = TunnelRegistry(context.clock.monotonic)
    table = add_routes(app)
    app.add_exception_handler(PlatformError, _platform_error)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(OSError, _file_error)
    app.add_exception_handler(Exception, _bug)
    app.add_middleware(Gate, context=context, table=table)
    return app


def _platform_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PlatformError)
    if error.http_status >= 500:
        _LOG.error("%s %s: %s", request.method, request.url.path, error)
    return error_response(error)


def _not_valid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [
        Problem(
            ".".join(shorten(str(part)) for part in one["loc"][1:8]) or str(one["loc"][0]),
            shorten(one["msg"], 500),
        )
        for one in error.errors()[:MAX_PROBLEMS]
    ]
    return error_response(SpecInvalid(problems))


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(NotFound(f"there is nothing at {shorten(request.url.path)}"))
    kind = UserError if error.status_code < 500 else PlatformError
    if error.status_code == TooLarge.http_status:
        kind = TooLarge
    answer = error_response(kind(str(error.detail)))
    answer.status_code = error.status_code
    answer.headers.update(error.headers or {})  # such as the methods that are allowed
    return answer


def _gone(request: Request, error: Exception) -> Response:
    """Answer a client that has gone before the end of its request: no error of the server."""
    return error_response(UserError("the request ended before its body was complete"))


def _file_error(request: Request, error: Exception) -> Response:
    """Answer a full disk of the control plane as such; every other error of a file is a bug."""
    if not is_out_of_space(error):
        raise error
    place = shorten(str(getattr(error, "filename", None) or "its home"))
    return _platform_error(
        request,
        StorageFull(
            f"the control plane cannot write {place}: its disk is full",
            "free some space there, then send the request again",
        ),
    )


def _bug(request: Request, error: Exception) -> Response:
    """Answer an unexpected error with the usual body; the traceback goes to the server's log."""
    said = f"{request.method} {request.url.path} failed because of a bug: {type(error).__name__}"
    return error_response(ServerError(said, "the log of the control plane has the traceback"))


class _Server(uvicorn.Server):
    """A uvicorn server that calls `on_ready` once it answers, and leaves signals to `serve`."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if not self.should_exit:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(  # noqa: PLR0913
    *,
    home: HomeLayout,
    executor: Executor,
    sock: socket.socket,
    url: str,
    token: str,
    local_sock: socket.socket | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    on_ready: Callable[[], None] = lambda: None,
    stop: asyncio.Event | None = None,
    clusters: Clusters | None = None,
    pool_files: Sequence[Mapping[str, Any]] = (),
    signing_key: bytes | None = None,
    num_local_slots: int = 0,
    on_live: Callable[[Sequence[ReplicaRow]], None] = lambda replicas: None,
    certificate: Certificate | None = None,
) -> StopCause:
    """Run a control plane on a bound socket until it is stopped or idle.

    The folders of `home` exist, with mode 0700; clients and supervisors reach `sock` at `url`, and clients
    send `token`. `local_sock` is a Unix socket for those of this user, which the limits on connections of
    strangers do not concern. `on_ready` is called once requests are answered. `stop`, SIGTERM and SIGINT
    end it, and so does the setting `idle_exit_s`. `pool_files` are applied before anything else.

    On PostgreSQL it joins the replicas of the database, with `num_local_slots` slots of this machine, and
    `on_live` gets those that live, again and again. With a certificate, `sock` speaks TLS.

    Raises StoreCorrupt, StoreUnavailable, NotSupported (SQLite on a network file system) or Conflict
    (replicas that it could not replace) before `on_ready`, and what `apply_pools` raises.
    """
    settings = settings or read_settings()
    store = open_store(settings.database.resolved() or home.database_file)
    sampler = SamplerWorker()
    try:
        key, clock = signing_key or derived_key(token), open_clock(store, clock or SystemClock())
        replica = None
        if store.dialect == "postgresql":
            replica = this_replica(url, key, num_local_slots, clock.now())
        context = build_context(
            store=store,
            home=home,
            executor=executor,
            url=url,
            token=token,
            settings=settings,
            clock=clock,
            clusters=clusters,
            signing_key=key,
            sampler=sampler,
            replica=replica,
            server_ca="" if certificate is None else certificate.authority,
        )
        _join(context, pool_files)
        sockets = [sock] if local_sock is None else [sock, local_sock]
        return await _run(context, sockets, on_ready, stop or asyncio.Event(), on_live, certificate)
    finally:
        store.close()
        sampler.close()  # last, so that no answer of a killed process is stored


def _join(context: Context, pool_files: Sequence[Mapping[str, Any]]) -> None:
    """Take over what earlier processes left in the home and the database, and apply pools."""
    context.leadership.join()
    if context.leadership.me is None:
        # There is no other control plane: leases of an earlier process are free.
        context.platform.store.transact(outbox.free_all)
    continue_numbers(context.platform.store, context.platform.home)
    context.platform.store.follow_others(partial(_missed, context))
    adopt_files(context.platform, context.clock.now())
    for file in pool_files:
        apply_pools(context.platform, file, context.clock.now(), "up")


def _missed(context: Context) -> None:
    """Look at everything again: changes of other replicas may have been missed."""
    context.platform.studies.look_again()
    context.notifier.publish_all()


async def _run(
    context: Context,
    sockets: list[socket.socket],
    on_ready: Callable[[], None],
    stop: asyncio.Event,
    on_live: Callable[[Sequence[ReplicaRow]], None],
    certificate: Certificate | None,
) -> StopCause:
    # Accepted connections inherit this; without it small answers wait 40 ms for an acknowledgement.
    sockets[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connections = Connections(ConnectionLimits.of_process())
    plain = connections.protocol
    app = create_app(context)
    config = uvicorn.Config(
        app,
        http=plain if certificate is None else over(connections, certificate.context),  # type: ignore[arg-type]
        backlog=_BACKLOG,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
    )
    server = _Server(config, on_ready)
    calls = await _grpc(app, context, sockets[0], certificate)
    garbage.tune_for_long_lived_process()
    signalled = asyncio.Event()
    serving = asyncio.create_task(server.serve(sockets=sockets), name="http")
    leading = asyncio.create_task(lead(context), name="leading")
    loops = [
        asyncio.create_task(connections.watch(), name="connections"),
        asyncio.create_task(keep_valid(certificate, context.clock), name="certificate"),
        asyncio.create_task(live(context, on_live), name="replica"),
        asyncio.create_task(follow_clusters(context), name="clusters"),
    ]
    with _signals(signalled), quiet_loop():
        cause = await _first_of(context, serving, signalled, stop)
    context.notifier.close()
    server.should_exit = True
    for task in loops:
        task.cancel()
    await asyncio.gather(*loops, leading, return_exceptions=True)
    if calls is not None:
        await calls.stop(_GRACE_S)
    await asyncio.to_thread(context.leadership.leave)
    await serving
    return cause


async def _grpc(
    app: FastAPI, context: Context, sock: socket.socket, certificate: Certificate | None
) -> RpcListener | None:
    """The gRPC API on the interface of `sock`; None where it is off. Raises NotSupported, ServerError."""
    port = context.settings.grpc.port
    if port is None:
        return None
    try:
        from phalanx.server.rpc.listener import RpcListener
    except ImportError as error:
        raise NotSupported(
            f"the gRPC API needs the package {error.name}", "pip install 'phalanx[server,grpc]'"
        ) from error
    listener = RpcListener(app, context, certificate, context.settings.grpc)
    await listener.start(sock.getsockname()[0], port)
    return listener


@contextlib.contextmanager
def _signals(signalled: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    caught: list[signal.Signals] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError, RuntimeError):  # only the main thread may
            loop.add_signal_handler(number, signalled.set)
            caught.append(number)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


async def _first_of(
    context: Context, serving: asyncio.Task[None], signalled: asyncio.Event, stop: asyncio.Event
) -> StopCause:
    """Wait for the first cause that ends this control plane."""
    ends: dict[asyncio.Task[object], StopCause] = {
        asyncio.create_task(signalled.wait()): StopCause.SIGNAL,
        asyncio.create_task(stop.wait()): StopCause.ASKED,
        asyncio.create_task(context.stopping.wait()): StopCause.ASKED,
    }
    idle_exit_s = context.settings.idle_exit_s
    if idle_exit_s is not None:
        ends[asyncio.create_task(until_idle(context, idle_exit_s))] = StopCause.IDLE
    done, _ = await asyncio.wait({*ends, serving}, return_when=asyncio.FIRST_COMPLETED)
    for task in ends:
        task.cancel()
    await asyncio.gather(*ends, return_exceptions=True)
    if serving in done:
        await serving  # raises what ended it
    return next((cause for task, cause in ends.items() if task in done), StopCause.ASKED)
