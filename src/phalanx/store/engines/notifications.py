"""Tell the other processes on a PostgreSQL database what a commit has changed: LISTEN and NOTIFY.

A notification is part of its transaction. None is sent again: after a lost connection the listener is told
that it may have missed some.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from phalanx.kit.clock import backoff_s
from phalanx.kit.text import random_hex

_LOG = logging.getLogger(__name__)
CHANNEL = "phalanx"
NOTIFY = text("SELECT pg_notify(:channel, :said)")
# PostgreSQL refuses payloads of 8000 bytes.
_MAX_BYTES = 7900
# Interval between checks of a connection on which nothing arrives.
_CHECK_S = 5.0


def payload(origin: str, jobs: set[int], topics: set[str]) -> str:
    """The text of a notification. One with too many jobs names none: everything may have changed."""
    said = json.dumps({"from": origin, "jobs": sorted(jobs), "topics": sorted(topics)})
    return said if len(said) < _MAX_BYTES else json.dumps({"from": origin})


class ChangeListener:
    """Receives the notifications of other processes in a thread of its own.

    `on_change` gets the jobs and topics of one commit; `on_gap` is called where any may have been missed.
    """

    def __init__(
        self,
        engine: Engine,
        on_change: Callable[[set[int], set[str]], None],
        on_gap: Callable[[], None],
    ) -> None:
        self.origin = random_hex(16)
        self.hears = False
        """Whether changes of others arrive at present."""
        self._engine, self._on_change, self._on_gap = engine, on_change, on_gap
        self._closed = threading.Event()
        self._ends, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run, name="phalanx-changes", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        os.close(self._end)
        self._thread.join()
        os.close(self._ends)

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                with self._connected() as driver:
                    failures = 0
                    self._listen(driver)
            except (SQLAlchemyError, OSError) as error:
                failures += 1
                if failures == 1:
                    _LOG.warning("changes of other control planes are not received: %s", error)
            except Exception:
                failures += 1
                _LOG.exception("changes of other control planes are not received")
            finally:
                self.hears = False
            self._closed.wait(backoff_s(failures, first_s=0.1, max_s=2.0) if failures else 0)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        """A connection of the driver, outside the pool and without a transaction."""
        import psycopg

        try:
            raw = self._engine.raw_connection()
            driver: Any = raw.driver_connection
            raw.detach()
            with contextlib.closing(driver):
                driver.rollback()
                driver.autocommit = True
                # Also what arrives in the middle of a statement.
                driver.add_notify_handler(lambda one: self._received(one.payload))
                yield driver
        except psycopg.Error as error:
            raise OSError(str(error).strip()) from error

    def _listen(self, driver: Any) -> None:
        driver.execute(f"LISTEN {CHANNEL}")
        self.hears = True
        self._on_gap()
        while not self._closed.is_set():
            ready, _, _ = select.select([driver.fileno(), self._ends], [], [], _CHECK_S)
            if not ready:
                driver.execute("SELECT 1")
                continue
            driver.pgconn.consume_input()
            while (one := driver.pgconn.notifies()) is not None:
                self._received(one.extra.decode())

    def _received(self, said: str) -> None:
        found = json.loads(said)
        if found["from"] == self.origin:
            return
        if "jobs" in found:
            self._on_change(set(found["jobs"]), set(found["topics"]))
        else:
            self._on_gap()
