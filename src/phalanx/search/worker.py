"""The process that runs models, and its client: JSON lines over pipes, one request at a time.

The child (`python -m phalanx.search`) knows nothing but what it is asked. It ends when its standard
input closes, so it does not outlive its parent. When it dies, another is asked. When five die, or one takes
too long, the answer is a random suggestion with the reason.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Set
from typing import Any, Final

from phalanx.core.codec import decode, encode
from phalanx.core.search.draw import Cell
from phalanx.core.search.sampling import Exhausted, SampleRequest, Suggestion
from phalanx.search.methods import suggest, unseen

#: Longest line that is sent or read; 1,000 trials with 200 parameters are about 5 MB.
MAX_BYTES: Final = 32 * 1024 * 1024
DEFAULT_TIMEOUT_S: Final = 30.0
#: Processes that may die during one request: one that its input kills must not be started for ever.
_MOST_DEATHS: Final = 5
# One thread, so that sums are added in one order.
_ENVIRONMENT: Final = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
}


class _WorkerFailed(Exception):
    """The sampler process died, took too long, or answered with an error."""


class _Died(_WorkerFailed):
    """The sampler process is gone."""


class SamplerWorker:
    """Asks a child process for suggestions; usable from several threads, which wait for one another."""

    def __init__(self, command: tuple[str, ...] | None = None) -> None:
        """Start nothing yet. The child gets no variables of this process: there are secrets in them."""
        self._command = command or (sys.executable, "-m", "phalanx.search")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def suggest(
        self,
        request: SampleRequest,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        seen: Set[Cell] | None = None,
    ) -> Suggestion | Exhausted:
        """The suggestion for a trial; random, with a reason, if the child cannot give one in time.

        `seen` as in `methods.suggest`. Raises NotSupported if the method is unknown or not installed.
        """
        deadline = time.monotonic() + timeout_s

        def ask(one: SampleRequest) -> Suggestion | None:
            return self._ask(one, deadline)

        try:
            return suggest(request, ask, seen)
        except _WorkerFailed as error:
            return unseen(request, request.known_cells() if seen is None else seen, str(error))

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._kill()

    def _ask(self, request: SampleRequest, deadline: float) -> Suggestion | None:
        line = json.dumps(encode(request)).encode() + b"\n"
        if len(line) > MAX_BYTES:
            raise _WorkerFailed(f"the request has {len(line)} bytes, at most {MAX_BYTES} are sent")
        with self._lock:
            for left in reversed(range(_MOST_DEATHS)):
                try:
                    answer = self._exchange(line, deadline)
                    break
                except _Died:
                    # A process killed from outside must change no suggestion: another gives the same.
                    if left == 0:
                        raise
        if "error" in answer:
            raise _WorkerFailed(str(answer["error"])[:500])
        found = answer.get("suggestion")
        return None if found is None else decode(Suggestion, found)

    def _exchange(self, line: bytes, deadline: float) -> dict[str, Any]:
        try:
            return self._answer(self._started(), line, deadline)
        except BaseException:
            self._kill()
            raise

    def _answer(
        self, process: subprocess.Popen[bytes], line: bytes, deadline: float
    ) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        into, out = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(into, False)
        answer = bytearray()
        rest = memoryview(line)
        while not answer.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                raise _WorkerFailed("the sampler process took too long")
            ready, writable, _ = select.select([out], [into] if rest else [], [], left)
            try:
                if writable:
                    rest = rest[os.write(into, rest[:65536]) :]
                if ready:
                    read = os.read(out, 65536)
                    if not read:
                        raise _Died("the sampler process died")
                    answer += read
            except (BrokenPipeError, ConnectionResetError):
                raise _Died("the sampler process died") from None
            if len(answer) > MAX_BYTES:
                raise _WorkerFailed("the sampler process answered with too many bytes")
        try:
            made = json.loads(answer)
        except ValueError:
            raise _WorkerFailed("the sampler process answered with what is no JSON") from None
        if not isinstance(made, dict):
            raise _WorkerFailed("the sampler process answered with what is no object")
        return made

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._kill()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                bufsize=0,
            )
        return self._process

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
