"""The connection to the control plane: one thread waits for orders, another one sends reports.

`Outbox` holds numbered reports until they are acknowledged; `SyncConnection` makes one call;
`ControlPlaneLink` runs both threads.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from phalanx.core.tracing.identity import JobTrace
from phalanx.errors import StoreUnavailable
from phalanx.kit.clock import Clock, backoff_s
from phalanx.launch.files import distrusted
from phalanx.launch.tls import trust
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.report_bytes import REPORTS_TYPE, encode_request
from phalanx.schemas.wire.supervision import (
    MAX_RESULTS,
    CheckpointReport,
    GenerationReport,
    Heartbeat,
    Orders,
    Report,
    SyncRequest,
    SyncResponse,
    TrialReport,
    TrialResult,
)

_LOG = logging.getLogger(__name__)

PATH = "/api/v1/supervisors/sync"
POLL_S = 20.0
_ANSWER_S = 15.0
_FIRST_WAIT_S = 0.05
_MAX_WAIT_S = 2.0
MAX_WAITING = 20_000
_BATCH_BYTES = 1 << 20
_BULK = ("log", "metrics", "ledger")
_NOT_UNDERSTOOD = (400, 415, 422)


class Outbox:
    """Reports in order, each with a number, until they are acknowledged. Safe for several threads.

    Bulk data (logs, metrics, ledgers) does not pile up here while the control plane is away: it stays in
    files of its own. Other reports that wait are written to `spool`, so that a reader of the node's
    folder finds what the control plane did not receive.
    """

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._lock = threading.RLock()  # `make` may ask for `results`
        self._waiting: deque[Report] = deque()
        self._next = 1
        self._acked = 0
        self._bulk_until = 0
        self._spooled = 0
        self._away = False

    def put(self, make: Callable[[int], Report]) -> Report:
        """Number a report and queue it; `make` is given its number."""
        with self._lock:
            report = make(self._next)
            self._next += 1
            self._waiting.append(report)
            while len(self._waiting) > MAX_WAITING:
                self._waiting.popleft()
            if self._away:
                self._write(report)
            return report

    def put_bulk(self, make: Callable[[int], Report]) -> None:
        """Queue a part of a bulk batch: `bulk_in_flight` until it is acknowledged."""
        self._bulk_until = self.put(make).seq

    @property
    def bulk_in_flight(self) -> bool:
        """Whether a bulk batch still waits to be acknowledged."""
        with self._lock:
            return bool(self._waiting) and self._waiting[0].seq <= self._bulk_until

    @property
    def acked(self) -> int:
        """The number of the last report that is known to be stored. Takes no lock."""
        return self._acked

    def pending(self) -> list[Report]:
        """The reports to send now, in order, about a megabyte at most."""
        with self._lock:
            batch: list[Report] = []
            size = 0
            for report in self._waiting:
                batch.append(report)
                size += len(report.data) if report.kind == "log" else 400
                if size > _BATCH_BYTES:
                    break
            return batch

    def acknowledge(self, seq: int) -> bool:
        """Drop the reports up to `seq`, which are stored; returns whether there were any."""
        with self._lock:
            self._acked = max(self._acked, seq)
            news = bool(self._waiting) and self._waiting[0].seq <= seq
            while self._waiting and self._waiting[0].seq <= seq:
                self._waiting.popleft()
            self._away = False
            if self._spooled and not self._waiting:
                self._spooled = 0
                with contextlib.suppress(OSError):
                    (self._spool / "reports.jsonl").unlink()
            return news

    def control_plane_away(self) -> None:
        """Begin to write what waits to disk."""
        with self._lock:
            if self._away:
                return
            self._away = True
            for report in self._waiting:
                self._write(report)

    def results(self) -> list[TrialResult]:
        """The newest results of a trial, and checkpoints, that are not acknowledged."""
        kinds = (CheckpointReport, TrialReport)
        with self._lock:
            found: list[TrialResult] = [one for one in self._waiting if isinstance(one, kinds)]
        return found[-MAX_RESULTS:]

    @property
    def empty(self) -> bool:
        """Whether everything was acknowledged."""
        with self._lock:
            return not self._waiting

    def _write(self, report: Report) -> None:
        if report.kind in _BULK or report.seq <= self._spooled:
            return
        # A full disk must not stop a job that trains: the report still waits in memory.
        with contextlib.suppress(OSError):
            self._spool.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(self._spool / "reports.jsonl", flags, 0o600)
            with open(descriptor, "ab") as file:
                file.write(report.model_dump_json().encode() + b"\n")
        self._spooled = report.seq


@dataclass(slots=True)
class ControlPlaneAddress:
    """The URL of the control plane and its Unix socket; `server_file` holds the current ones.

    A flood of TCP connections leaves the socket free: only this user can open it.
    """

    url: str
    server_file: str | None
    socket: str = ""
    ca: str = ""  # the only authority that is accepted, in PEM; empty: the system's

    def __post_init__(self) -> None:
        """Read what the file has."""
        self.refresh()

    def refresh(self) -> None:
        """Read them again, where there is a file that can be read."""
        if self.server_file is None or distrusted(Path(self.server_file)):
            return  # the supervisor's token is sent there
        try:
            data = json.loads(Path(self.server_file).read_bytes())
            url, path, ca = data["url"], data.get("socket", ""), data.get("ca", "")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return
        if isinstance(url, str) and isinstance(path, str) and isinstance(ca, str):
            self.url, self.socket, self.ca = url, path, ca


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket; the URL gives the Host header."""

    def __init__(self, host: str, port: int | None, path: str) -> None:
        super().__init__(host, port)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class StoreUnwritable(OSError):
    """The control plane cannot store for now, so it cannot give this node's slots to others either."""


class SyncConnection:
    """One kept-alive HTTP connection. Not safe for several threads."""

    def __init__(
        self, address: ControlPlaneAddress, token: str, trace: JobTrace | None = None
    ) -> None:
        """With the identifiers of a job's traces, calls name the span of the generation."""
        self._address = address
        self._token = token
        self._trace = trace
        self._connection: http.client.HTTPConnection | None = None
        self._url = ""
        self._by_url = False
        self._takes_bytes = False  # said by the last answer on this connection

    def sync(self, request: SyncRequest) -> SyncResponse:
        """Make one call. Raises OSError, and StoreUnwritable when the control plane cannot store."""
        if self._connection is None or self._url != self._address.url:
            self.close()
            self._connection = self._connect()
        over_socket = isinstance(self._connection, _SocketConnection)
        try:
            connection = self._connection
            if connection.sock is not None:
                connection.sock.settimeout(request.wait_s + _ANSWER_S)
            connection.timeout = request.wait_s + _ANSWER_S
            body = encode_request(request) if self._takes_bytes else None
            answer, data = self._post(connection, request, body)
            if body is not None and answer.status in _NOT_UNDERSTOOD:
                # Behind the same address another control plane answers, which has the release before.
                answer, data = self._post(connection, request, None)
            self._takes_bytes = REPORTS_TYPE in (answer.getheader("Accept-Post") or "")
            if _cannot_store(answer.status, data):
                raise StoreUnwritable(f"the control plane cannot store: {data[:200]!r}")
            if answer.status != 200:
                raise OSError(f"the control plane answered {answer.status}: {data[:200]!r}")
            return SyncResponse.model_validate_json(data)
        except StoreUnwritable:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            # The next call takes the other way, in case only one of them is closed.
            self._by_url = over_socket
            raise OSError(trust.told(error, self._url)) from error

    def _post(
        self, connection: http.client.HTTPConnection, request: SyncRequest, body: bytes | None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a call as bytes, or as JSON where there are none; returns the answer with its body."""
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json" if body is None else REPORTS_TYPE,
        }
        if self._trace is not None:
            headers["traceparent"] = _traceparent(self._trace, request)
        sent = request.model_dump_json().encode() if body is None else body
        connection.request("POST", PATH, sent, headers)
        answer = connection.getresponse()
        return answer, answer.read()

    def _connect(self) -> http.client.HTTPConnection:
        self._takes_bytes = False
        self._url = self._address.url
        parts = urlsplit(self._url)
        if self._address.socket and not self._by_url and not distrusted(Path(self._address.socket)):
            host = parts.hostname or "127.0.0.1"
            return _SocketConnection(host, parts.port, self._address.socket)
        return trust.connection(self._url, self._address.ca)

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _traceparent(trace: JobTrace, request: SyncRequest) -> str:
    """The generation that a call is about; calls with nothing new, or only bulk data, are not sampled."""
    told = [one.generation for one in request.reports if isinstance(one, GenerationReport)]
    span = trace.generation(request.attempt, max([request.heartbeat.generation, *told]))
    return span.traceparent(sampled=any(one.kind not in _BULK for one in request.reports))


def _cannot_store(status: int, data: bytes) -> bool:
    """Whether an error is the control plane's own, and not that of a proxy before it."""
    if status != StoreUnavailable.http_status:
        return False
    try:
        return bool(json.loads(data)["code"] == StoreUnavailable.code)
    except (ValueError, KeyError, TypeError):
        return False


class ControlPlaneLink:
    """Runs both threads. Orders are passed to `deliver`, on either of them."""

    def __init__(
        self,
        assignment: Assignment,
        outbox: Outbox,
        clock: Clock,
        deliver: Callable[[Orders], None],
    ) -> None:
        gang = assignment.gang
        self._outbox = outbox
        self._clock = clock
        self._deliver = deliver
        self._request = SyncRequest(
            job=gang.job.num,
            attempt=gang.attempt,
            node_rank=assignment.node_rank,
            incarnation=assignment.incarnation,
            sent_at=0,
        )
        self._address = ControlPlaneAddress(
            assignment.server_url, assignment.server_file, ca=assignment.server_ca
        )
        self._token = assignment.token
        self._trace = gang.trace
        self._poll_s = min(POLL_S, assignment.contact_lost_after_s / 4)
        self._seen = ""
        self._due = threading.Event()
        self._over = threading.Event()
        self._contact = clock.monotonic()
        self._beat = False
        self.heartbeat = Heartbeat()

    def start(self) -> None:
        """Start both threads; they end with the process."""
        threading.Thread(target=self._wait_for_orders, name="orders", daemon=True).start()
        threading.Thread(target=self._send_reports, name="reports", daemon=True).start()

    def put(self, make: Callable[[int], Report]) -> Report:
        """Number a report, queue it, and send what waits; `make` is given its number."""
        report = self._outbox.put(make)
        self._due.set()
        return report

    def push(self) -> None:
        """Send the waiting reports now."""
        self._due.set()

    def results(self) -> list[TrialResult]:
        """See `Outbox.results`."""
        return self._outbox.results()

    def beat(self) -> None:
        """Send the heartbeat with the waiting reports."""
        self._beat = True
        self._due.set()

    def close(self) -> None:
        """Begin no further call."""
        self._over.set()
        self._due.set()

    def server(self) -> tuple[str, str]:
        """The URL of the control plane, as far as it is known, and the authority that it is trusted by."""
        return self._address.url, self._address.ca

    @property
    def silent_s(self) -> float:
        """Seconds since the control plane last answered."""
        return self._clock.monotonic() - self._contact

    def _wait_for_orders(self) -> None:
        line = SyncConnection(self._address, self._token, self._trace)
        failures = 0
        while not self._over.is_set():
            wait_s = self._poll_s if self._seen else 0.0
            failures = self._exchange(line, failures, wait_s=wait_s, reports=list)

    def _send_reports(self) -> None:
        line = SyncConnection(self._address, self._token, self._trace)
        failures = 0
        while not self._over.is_set():
            if failures == 0 and self._outbox.empty and not self._beat:
                self._due.wait()
            self._due.clear()
            self._beat = False
            if not self._over.is_set():
                failures = self._exchange(line, failures, wait_s=0.0, reports=self._outbox.pending)

    def _exchange(
        self,
        line: SyncConnection,
        failures: int,
        *,
        wait_s: float,
        reports: Callable[[], list[Report]],
    ) -> int:
        """Make one call and apply its answer; returns the number of failures in a row."""
        request = self._request.model_copy(
            update={
                "sent_at": self._clock.now(),
                "reports": reports(),
                "heartbeat": self.heartbeat,
                "seen": self._seen if wait_s else "",
                "wait_s": wait_s,
            }
        )
        try:
            response = line.sync(request)
        except OSError as error:
            if isinstance(error, StoreUnwritable):
                # The ranks continue however long that lasts; their reports wait here.
                self._contact = self._clock.monotonic()
            if failures == 0:
                _LOG.warning("no contact with the control plane: %s", error)
            self._outbox.control_plane_away()
            self._address.refresh()
            return self._pause(failures)
        self._contact = self._clock.monotonic()
        news = self._outbox.acknowledge(response.acked)
        self._seen = response.orders.version
        self._deliver(response.orders)
        if request.reports and not news and response.acked < request.reports[0].seq:
            # It answers without storing: an immediate retry would only add load.
            return self._pause(failures)
        return 0

    def _pause(self, failures: int) -> int:
        self._over.wait(backoff_s(failures + 1, first_s=_FIRST_WAIT_S, max_s=_MAX_WAIT_S))
        return failures + 1
