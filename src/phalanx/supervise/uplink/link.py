"""The connection to the control plane: one thread waits for orders, another one sends reports."""

from __future__ import annotations

import http.client
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from phalanx.errors import StoreUnavailable
from phalanx.kit.clock import Clock, backoff_s
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import Heartbeat, Orders, Report, SyncRequest, SyncResponse
from phalanx.supervise.uplink.outbox import Outbox

_LOG = logging.getLogger(__name__)

PATH = "/api/v1/supervisors/sync"
POLL_S = 20.0
_ANSWER_S = 15.0
_FIRST_WAIT_S = 0.05
_MAX_WAIT_S = 2.0


@dataclass(slots=True)
class ControlPlaneAddress:
    """The URL of the control plane; `server_file` holds the current one."""

    url: str
    server_file: str | None

    def refresh(self) -> None:
        """Read the URL again, where there is a file that can be read."""
        if self.server_file is None:
            return
        try:
            url = json.loads(Path(self.server_file).read_bytes())["url"]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if isinstance(url, str):
            self.url = url


class StoreUnwritable(OSError):
    """The control plane cannot store for now, so it cannot give this node's slots to others either."""


class SyncConnection:
    """One kept-alive HTTP connection. Not safe for several threads."""

    def __init__(self, address: ControlPlaneAddress, token: str) -> None:
        self._address = address
        self._token = token
        self._connection: http.client.HTTPConnection | None = None
        self._url = ""

    def sync(self, request: SyncRequest) -> SyncResponse:
        """Make one call. Raises OSError, and StoreUnwritable when the control plane cannot store."""
        if self._connection is None or self._url != self._address.url:
            self.close()
            self._connection = self._connect()
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
        }
        try:
            connection = self._connection
            if connection.sock is not None:
                connection.sock.settimeout(request.wait_s + _ANSWER_S)
            connection.timeout = request.wait_s + _ANSWER_S
            connection.request("POST", PATH, request.model_dump_json().encode(), headers)
            answer = connection.getresponse()
            data = answer.read()
            if _cannot_store(answer.status, data):
                raise StoreUnwritable(f"the control plane cannot store: {data[:200]!r}")
            if answer.status != 200:
                raise OSError(f"the control plane answered {answer.status}: {data[:200]!r}")
            return SyncResponse.model_validate_json(data)
        except StoreUnwritable:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise OSError(str(error)) from error

    def _connect(self) -> http.client.HTTPConnection:
        self._url = self._address.url
        parts = urlsplit(self._url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        return kind(parts.hostname or "127.0.0.1", parts.port)

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


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
            job=gang.job.num, attempt=gang.attempt, node_rank=assignment.node_rank, sent_at=0
        )
        self._address = ControlPlaneAddress(assignment.server_url, assignment.server_file)
        self._token = assignment.token
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

    def push(self) -> None:
        """Send the waiting reports now."""
        self._due.set()

    def beat(self) -> None:
        """Send the heartbeat with the waiting reports."""
        self._beat = True
        self._due.set()

    def close(self) -> None:
        """Begin no further call."""
        self._over.set()
        self._due.set()

    @property
    def silent_s(self) -> float:
        """Seconds since the control plane last answered."""
        return self._clock.monotonic() - self._contact

    def _wait_for_orders(self) -> None:
        line = SyncConnection(self._address, self._token)
        failures = 0
        while not self._over.is_set():
            wait_s = self._poll_s if self._seen else 0.0
            failures = self._exchange(line, failures, wait_s=wait_s, reports=list)

    def _send_reports(self) -> None:
        line = SyncConnection(self._address, self._token)
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
