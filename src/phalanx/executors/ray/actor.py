"""The actor that holds one supervisor on a Ray node, in the bundle of its node rank.

It owns no rank: they are children of the supervisor, so restarts inside an attempt never touch Ray. When
the actor goes, for whatever reason, its shim ends the supervisor with everything below it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from phalanx import __version__
from phalanx.executors.node_files import CodeUnavailable, NodeFiles, place, source_of
from phalanx.launch import linux
from phalanx.launch.capture import output_files
from phalanx.launch.files import last_line, write_file
from phalanx.launch.identity import ASSIGNMENT_NAME, EXIT_NAME, LOG_NAME, SupervisorRecord

_STARTED_WITHIN_S = 30.0
_GIVE_BACK_S = 3600.0
# Output streams with sizes in the answer about a supervisor that is gone.
_MOST_OUTPUTS = 20_000
_SOURCE = str(Path(__file__).resolve().parents[3])
_SHIM = f"import sys; sys.path.insert(0, {_SOURCE!r}); from phalanx.executors.ray.shim import main; sys.exit(main())"  # noqa: E501
# What Ray puts into the environment of its own workers and a job must not inherit.
_NOT_OURS = ("RAY_", "OMP_NUM_THREADS", "PYTHONBREAKPOINT")


class SupervisorActor:
    """One supervisor. Methods are coroutines, so that any number of callers may wait for its end."""

    def __init__(self) -> None:
        self._begun: dict[str, Any] | None = None
        self._lock = asyncio.Lock()
        self._shim: subprocess.Popen[bytes] | None = None
        self._node_dir: Path | None = None
        self._over = asyncio.Event()
        self._waiting: asyncio.Task[None] | None = None

    async def begin(self, text: str) -> dict[str, Any]:
        """Start the supervisor, unless it was started before; returns the address of its shim.

        `text` is JSON: the assignment, the folder on this node, and the version it was made by. The
        answer has `error` when nothing could be started and nothing is left.
        """
        async with self._lock:
            if self._begun is None:
                self._begun = await asyncio.to_thread(self._begin, json.loads(text))
                self._waiting = asyncio.create_task(self._wait())
            return self._begun

    async def watch(self) -> dict[str, Any]:
        """Returns when nothing of the supervisor is left: its exit record, and how much its ranks wrote."""
        shim, node_dir = self._shim, self._node_dir
        if shim is None or node_dir is None:
            return {"exit": None, "output": [], "message": "the supervisor was never started"}
        await self._over.wait()
        text = None
        with contextlib.suppress(OSError):
            text = (node_dir / EXIT_NAME).read_text()
        output = await asyncio.to_thread(_output_sizes, node_dir)
        return {"exit": text, "output": output, "message": last_line(node_dir / LOG_NAME)}

    async def _wait(self) -> None:
        if self._shim is not None and self._node_dir is not None:
            await asyncio.to_thread(self._shim.wait)
            await asyncio.to_thread(self._sweep, self._node_dir)
        self._over.set()
        # A control plane takes the exit record and ends this actor within moments. One that never comes
        # back must not leave the cluster's resources held for ever.
        await asyncio.sleep(_GIVE_BACK_S)
        _give_back()

    # -- inside ------------------------------------------------------------------------------------

    def _begin(self, told: dict[str, Any]) -> dict[str, Any]:
        if told["version"] != __version__:
            said = f"this node has Phalanx {__version__}, the control plane {told['version']}"
            return {"error": f"{said}: use the same image on both"}
        assignment: dict[str, Any] = told["assignment"]
        files = NodeFiles(Path(told["root"]))
        job, attempt = assignment["gang"]["job"]["num"], assignment["gang"]["attempt"]
        key = job, attempt, assignment["node_rank"], assignment["incarnation"]
        self._node_dir = files.node_dir(*key)
        try:
            self._node_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            cached = files.bring(source_of(assignment), files.code_dir(*key))
            files.prune(time.time())  # noqa: TID251 - ages of files
            place(assignment, self._node_dir, files.code_dir(*key))
            if assignment.get("python"):
                assignment["python"]["root"] = str(files.python_dir)
            if assignment.get("data"):
                assignment["data_root"] = str(files.data_dir)
            path = self._node_dir / ASSIGNMENT_NAME
            write_file(path, json.dumps(assignment).encode())
            return {**self._start(path, self._node_dir), "cached": cached}
        except (CodeUnavailable, OSError, ValueError) as error:
            return {"error": str(error)}

    def _start(self, assignment: Path, node_dir: Path) -> dict[str, Any]:
        raylet = linux.entry(os.getppid())
        if raylet is None:
            return {"error": "the raylet of this node has ended"}
        import ray

        word, address = secrets.token_hex(16), str(ray.util.get_node_ip_address())
        told = {
            "word": word,
            "address": _bindable(address),
            "raylet_pid": raylet.pid,
            "raylet_ticks": raylet.start_ticks,
            "log": str(node_dir / LOG_NAME),
            "argv": [sys.executable, "-m", "phalanx.supervise", "--assignment", str(assignment)],
            "env": own_environment(),
            "cwd": str(node_dir),
        }
        shim = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SHIM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
        assert shim.stdin is not None
        assert shim.stdout is not None
        self._shim = shim
        # The pipe stays open for as long as this process lives: its end is the shim's signal.
        shim.stdin.write(json.dumps(told).encode() + b"\n")
        shim.stdin.flush()
        answer = json.loads(
            shim.stdout.readline() or b'{"error": "the shim ended at once, without a message"}'
        )
        if "error" in answer:
            shim.kill()
            return dict(answer)
        return self._await_record(node_dir, shim, {**answer, "word": word, "address": address})

    def _await_record(
        self, node_dir: Path, shim: subprocess.Popen[bytes], begun: dict[str, Any]
    ) -> dict[str, Any]:
        deadline = time.monotonic() + _STARTED_WITHIN_S
        while SupervisorRecord.read(node_dir) is None:
            if shim.poll() is not None:
                return {"error": f"the supervisor ended at once: {last_line(node_dir / LOG_NAME)}"}
            if time.monotonic() > deadline:
                shim.kill()
                self._sweep(node_dir)
                return {"error": f"the supervisor wrote no record within {_STARTED_WITHIN_S:g} s"}
            time.sleep(0.005)
        return {**begun, "node_dir": str(node_dir)}

    def _sweep(self, node_dir: Path) -> None:
        """Kill what is left when the shim and the reaper were killed, too."""
        record = SupervisorRecord.read(node_dir)
        while record is not None and (left := linux.tagged(record.marker)):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


def _output_sizes(node_dir: Path) -> list[tuple[int, int, str, int]]:
    """Generation, rank, stream and bytes of the newest files with output."""
    files = [(one.generation, one.rank, one.stream, one.size) for one in output_files(node_dir)]
    return files[-_MOST_OUTPUTS:]


def _give_back() -> None:
    import ray

    group = ray.util.get_current_placement_group()
    if group is not None:
        ray.util.remove_placement_group(group)


def own_environment() -> dict[str, str]:
    """This worker's environment without what Ray put into it."""
    own = os.environ  # noqa: TID251 - what this node gives its processes
    return {name: value for name, value in own.items() if not name.startswith(_NOT_OURS)}


def _bindable(address: str) -> str:
    """The node's address, or every address in a container that has another one."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return "0.0.0.0"
    return address
