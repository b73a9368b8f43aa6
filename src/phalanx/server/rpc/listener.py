"""The port of the gRPC API: its limits, its certificate, and its optional services.

It listens where the HTTP API does: on the loopback interface unless `--host` says otherwise.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from fastapi import FastAPI
from grpc import aio

from phalanx.errors import ServerError
from phalanx.schemas.rpc import jobs_pb2
from phalanx.schemas.rpc.methods import SERVICE
from phalanx.server.context import Context, in_thread
from phalanx.server.observe.readiness import Readiness
from phalanx.server.rpc.service import JobsService
from phalanx.server.settings import GrpcSettings
from phalanx.server.tls import Certificate

_MS = 1000
_MAX_CONNECTIONS = 256
_MAX_STREAMS = 128  # of one connection
_MAX_METADATA = 16 << 10  # bytes, as of the head of an HTTP request
_HANDSHAKE_S, _IDLE_S, _KEEPALIVE_S, _PING_S = 10, 300, 60, 10
_HEALTH_S = 5.0


class RpcListener:
    """The server of gRPC of one control plane."""

    def __init__(
        self,
        app: FastAPI,
        context: Context,
        certificate: Certificate | None,
        settings: GrpcSettings,
    ) -> None:
        self._context = context
        self._certificate = certificate
        self._server = aio.server(
            options=_options(context.settings.api.max_body_bytes),
            maximum_concurrent_rpcs=settings.max_calls,
        )
        self._server.add_generic_rpc_handlers((JobsService(app, context).handlers(),))
        self._health: Any = None
        self._watching: asyncio.Task[None] | None = None
        self._readiness: Readiness = app.state.readiness
        if settings.health:
            self._add_health()
        if settings.reflection:
            self._add_reflection()

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; 0 asks for any free one. Raises ServerError."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._certificate is None:
                bound: int = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, _credentials(self._certificate))
        except RuntimeError as error:
            await self._server.stop(None)
            raise ServerError(
                f"port {port} of {host} cannot be used for gRPC", "choose another --grpc-port"
            ) from error
        if self._health is not None:
            await self._say_health()
        await self._server.start()
        if self._health is not None:
            self._watching = asyncio.create_task(self._watch(), name="grpc health")
        return bound

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, and end those that are open after `grace_s` seconds."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)

    def _add_health(self) -> None:
        from grpc_health.v1 import health, health_pb2_grpc

        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def _watch(self) -> None:
        """Tell the health service again and again."""
        while not self._context.notifier.closed:
            await self._context.notifier.pause(_HEALTH_S)
            await self._say_health()

    async def _say_health(self) -> None:
        """Tell the health service what `/readyz` says."""
        from grpc_health.v1 import health_pb2

        states = health_pb2.HealthCheckResponse
        found = await in_thread(self._readiness.now)
        state = states.SERVING if found.status == "ready" else states.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, state)

    def _add_reflection(self) -> None:
        from grpc_reflection.v1alpha import reflection

        names = [one.full_name for one in jobs_pb2.DESCRIPTOR.services_by_name.values()]
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self._server)


def _options(max_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # a port that another process has is refused
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_metadata_size", _MAX_METADATA),
        ("grpc.absolute_max_metadata_size", _MAX_METADATA),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        ("grpc.max_allowed_incoming_connections", _MAX_CONNECTIONS),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_S * _MS),
        ("grpc.max_connection_idle_ms", _IDLE_S * _MS),
        ("grpc.keepalive_time_ms", _KEEPALIVE_S * _MS),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_S * _MS),
    ]


def _credentials(certificate: Certificate) -> Any:
    """The certificate of the HTTP API; a renewed one counts from the next connection on."""

    def configuration() -> Any:
        return grpc.ssl_server_certificate_configuration([certificate.pem])

    return grpc.dynamic_ssl_server_credentials(configuration(), configuration)
