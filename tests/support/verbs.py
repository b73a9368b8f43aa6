"""Verbs of the command line in forks of one process that has imported it.

Each verb is a process with its own environment, directory, output and exit code, as one that is started.
What is saved is the import of the command line, which takes longer than most verbs. Tests of a verb's own
process (its signals, its terminal, its pipes) start it.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from phalanx.launch.wire import pair

PROGRAM = str(Path(sys.executable).parent / "phalanx")
# By these words a test's leak check knows the process: it serves the tests behind it as well.
SERVER = (
    "import functools, sys, typer.main; typer.main.get_command = functools.cache(typer.main.get_command); "
    "from phalanx.cli.app import app; typer.main.get_command(app); "
    "from phalanx.train.warm_process import fork_server as verbs_of_tests; "
    "verbs_of_tests.CHANNEL = int(sys.argv.pop()); verbs_of_tests.PRELOADED = (); "
    "verbs_of_tests.main(sys.argv[1:])"
)
MODULES = ("phalanx.cli.__main__", "phalanx.sdk.client", "yaml", "httpx")
READY_S = 120.0


def run_verb(
    words: Sequence[object], env: Mapping[str, str], cwd: Path, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """One verb to its end, as `subprocess.run` with captured output."""
    return _server().run([str(word) for word in words], env, cwd, timeout_s)


@cache
def _server() -> VerbServer:
    return VerbServer()


class VerbServer:
    """The process with the imports; it ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = pair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVER, *MODULES, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._close)
        ready = self._next(time.monotonic() + READY_S)
        assert ready is not None and ready["event"] == "ready" and not ready["failed"], ready

    def run(
        self, words: list[str], env: Mapping[str, str], cwd: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """See `run_verb`. With verbs of several threads at once, all but one are started."""
        if not self._lock.acquire(blocking=False):
            return subprocess.run(
                [PROGRAM, *words], env=env, cwd=cwd, capture_output=True, text=True,
                timeout=timeout_s,
            )  # fmt: skip
        try:
            return self._fork(words, env, cwd, time.monotonic() + timeout_s)
        finally:
            self._lock.release()

    def _fork(
        self, words: list[str], env: Mapping[str, str], cwd: Path, deadline: float
    ) -> subprocess.CompletedProcess[str]:
        body = {
            "op": "fork", "kind": "script", "target": PROGRAM, "cwd": str(cwd), "workdir": str(cwd),
            "argv": [PROGRAM, *words], "orig_argv": [sys.executable, PROGRAM, *words], "env": dict(env),
        }  # fmt: skip
        with (
            open(os.devnull, "rb") as nothing,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            self._channel.send(body, [one.fileno() for one in (nothing, out, err)])
            forked = self._next(deadline)
            assert forked is not None and forked["event"] == "forked", forked
            ended = self._next(deadline)
            if ended is None:
                os.kill(forked["pid"], signal.SIGKILL)
                self._next(time.monotonic() + READY_S)
            told = []
            for file in (out, err):
                file.seek(0)
                told.append(file.read().decode())
        if ended is None:
            raise subprocess.TimeoutExpired([PROGRAM, *words], deadline, *told)
        code = os.waitstatus_to_exitcode(ended["status"])
        return subprocess.CompletedProcess([PROGRAM, *words], code, *told)

    def _next(self, deadline: float) -> dict[str, Any] | None:
        """The next message; None when none has come by `deadline`."""
        left = max(0.0, deadline - time.monotonic())
        if not select.select([self._channel], [], [], left)[0]:
            return None
        message = self._channel.receive()
        assert message is not None, "the process with the command line has died"
        return message.body

    def _close(self) -> None:
        self._channel.close()
        self._process.wait(10)
