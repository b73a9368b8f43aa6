"""Metrics of the operator, in the text format of Prometheus."""

from __future__ import annotations

from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from phalanx.errors import UserError

_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class OperatorMetrics:
    """Counters of one operator. Safe for several threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._server: WSGIServer | None = None
        self.reconciles = Counter(
            "phalanx_operator_reconciles",
            "Looks at objects, by kind and result: ok or error.",
            ["kind", "result"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "phalanx_operator_reconcile_seconds",
            "Duration of a look at an object.",
            ["kind"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.objects = Gauge(
            "phalanx_operator_objects",
            "Objects that are served.",
            ["kind"],
            registry=self.registry,
        )
        self.due = Gauge(
            "phalanx_operator_queue_length",
            "Objects that are due for a look.",
            registry=self.registry,
        )
        self.contact = Gauge(
            "phalanx_operator_contact",
            "1 while the mirror of the cluster is whole, else 0.",
            registry=self.registry,
        )

    def serve(self, port: int, host: str) -> int:
        """Answer requests for the metrics from now on; returns the port, a free one for 0.

        Raises UserError for a port that is taken.
        """
        try:
            self._server, _ = start_http_server(port, host, self.registry)
        except OSError as error:
            raise UserError(f"--metrics-port: {host}:{port}: {error.strerror}") from error
        return int(self._server.server_port)

    def close(self) -> None:
        """Answer no more requests."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
