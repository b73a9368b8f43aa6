"""The control plane's client of the driver process of one Ray cluster."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from phalanx.errors import ExecutorUnavailable, LaunchError
from phalanx.kit.clock import backoff_s

CONNECT_S = 60.0
_ANSWER_S = 15.0
_END_S = 2.0
_MAX_WAIT_S = 10.0
_MAX_LOG_BYTES = 4 * 2**20


class DriverClient:
    """Keeps one driver process running and sends it requests. Safe for several threads.

    A driver that dies, because the head of the cluster is away, is started again with a growing wait;
    until one answers, every call raises ExecutorUnavailable at once.
    """

    def __init__(self, told: Mapping[str, Any], log: Path) -> None:
        """`told` is the driver's first line; `log` is where it and Ray write."""
        self._told = dict(told)
        self._log = log
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._calls: dict[int, Future[Any]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = threading.Event()
        self._closed = threading.Event()
        self._trouble = "the Ray driver has not answered yet"
        self._thread = threading.Thread(target=self._keep, name="ray-bridge", daemon=True)
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether the cluster answers within this time."""
        return self._ready.wait(timeout_s)

    def ask(self, op: str, answer_s: float = _ANSWER_S, **fields: Any) -> Any:
        """Send a request and return its answer. Raises LaunchError, ExecutorUnavailable."""
        process = self._process
        if process is None or not self._ready.is_set():
            raise ExecutorUnavailable(f"the Ray cluster cannot be reached: {self._trouble}")
        number, call = next(self._ids), Future[Any]()
        line = json.dumps({"id": number, "op": op, **fields}).encode() + b"\n"
        self._calls[number] = call
        try:
            with self._lock:
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()
            return call.result(answer_s)
        except TimeoutError as error:
            said = f"the Ray cluster does not answer within {answer_s:g} s"
            raise ExecutorUnavailable(said) from error
        except (OSError, ValueError) as error:  # a broken pipe, or a closed one
            raise ExecutorUnavailable("the Ray driver has ended") from error
        finally:
            self._calls.pop(number, None)

    def close(self) -> None:
        """End the driver. Supervisors in the cluster continue."""
        self._closed.set()
        process = self._process
        if process is not None:
            _hang_up(process)
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._thread.join(_END_S)

    # -- inside ------------------------------------------------------------------------------------

    def _keep(self) -> None:
        failures = 0
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                self._live()
            except (OSError, ValueError) as error:
                self._trouble = str(error)
            if self._closed.is_set():
                return
            failures = 1 if time.monotonic() - began > 60 else failures + 1
            self._closed.wait(backoff_s(failures, first_s=0.5, max_s=_MAX_WAIT_S))

    def _live(self) -> None:
        """One driver from its start to its end."""
        process = self._spawn()
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(CONNECT_S, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            process.stdin.write(json.dumps(self._told).encode() + b"\n")
            process.stdin.flush()
            self._process = process
            if self._closed.is_set():
                process.kill()
            for line in process.stdout:
                watchdog.cancel()
                self._take(json.loads(line))
        finally:
            watchdog.cancel()
            self._ready.clear()
            process.kill()
            _hang_up(process)
            process.stdout.close()
            process.wait()
            said = "the Ray driver ended before it answered"
            for call in list(self._calls.values()):
                if not call.done():
                    call.set_exception(ExecutorUnavailable(said))

    def _spawn(self) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,  # noqa: TID251 - a child of this program
            "RAY_USAGE_STATS_ENABLED": "0",
            # A driver that has lost the head is replaced by a fresh one instead of waiting.
            "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
        }
        if self._log.exists() and self._log.stat().st_size > _MAX_LOG_BYTES:
            self._log.rename(self._log.with_name(f"{self._log.name}.1"))
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "phalanx.executors.ray.driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                cwd="/",
                start_new_session=True,
            )

    def _take(self, answer: dict[str, Any]) -> None:
        error = answer.get("error")
        if answer["id"] == 0:
            if error is None:
                self._ready.set()
            else:
                self._trouble = error["message"]
            return
        call = self._calls.get(answer["id"])
        if call is None:
            return
        if error is None:
            call.set_result(answer["ok"])
        elif error["kind"] == "refused":
            call.set_exception(LaunchError(error["message"]))
        else:
            call.set_exception(ExecutorUnavailable(f"the Ray cluster: {error['message']}"))


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    """Close the driver's input, which ends it."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it died before it read everything
        process.stdin.close()
