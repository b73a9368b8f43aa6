"""One node of a `framework: mpi` job: `python -m phalanx.train.frameworks.mpi -- COMMAND`."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from phalanx.errors import TrainingError
from phalanx.launch.authentication import AuthenticatedPeer
from phalanx.launch.files import scratch
from phalanx.launch.ports import free_port
from phalanx.train.frameworks.mpi.rank import FOLDER_VARIABLE, PID_STEM, TMPDIR_VARIABLE
from phalanx.train.gang.gathering import RankConnection, accept_ranks, secret_from

_NODE = "phalanx-node-"
_CALL = "--call-node"
_MISSING = "there is no mpirun on this node: install Open MPI (on Debian and Ubuntu, openmpi-bin)"


def main(argv: Sequence[str]) -> int:
    """Run one node; returns the exit code of `mpirun` on node rank 0, and 0 on other nodes."""
    if argv[:1] == [_CALL]:
        return call_node(argv[1:])
    parser = argparse.ArgumentParser(prog="phalanx.train.frameworks.mpi")
    parser.add_argument("--slots", type=int, default=1, help="MPI processes on each node")
    parser.add_argument("--shell", action="store_true", help="COMMAND is one line for the shell")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    env = dict(os.environ)  # noqa: TID251 - a program's entry point
    words = ["--shell", options.command[0]] if options.shell else options.command
    try:
        if shutil.which("mpirun", path=env.get("PATH")) is None:
            raise TrainingError(_MISSING)
        with scratch(_memory(), "phm") as folder:
            # All that Open MPI leaves behind when it is killed goes with the folder.
            ours = {**settings(env, folder), **env, "TMPDIR": str(folder)}
            if int(env["RANK"]) == 0:
                return MpirunNode(ours, folder, options.slots).run(words)
            return _serve(ours, folder)
    except (TrainingError, OSError) as error:
        print(f"phalanx: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return 1


def _memory() -> Path:
    """Return the folder of shared memory: processes of one node exchange messages through files there."""
    usual = Path("/dev/shm")
    return usual if os.access(usual, os.W_OK) else Path(tempfile.gettempdir())


def settings(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return settings of Open MPI; the job's `env` overrides them. `folder` is this node's own."""
    return {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        # Cores are the platform's to give: other jobs run on this node.
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        # mpirun carries settings of its own node to all others; these it leaves alone. `rank` turns
        # the first into one, and gives the job's command back what the second hides.
        FOLDER_VARIABLE: str(folder),
        TMPDIR_VARIABLE: env.get("TMPDIR", ""),
    }


class MpirunNode:
    """Node rank 0: runs `mpirun` and holds the connections to the other nodes."""

    def __init__(self, env: dict[str, str], folder: Path, slots: int) -> None:
        self._env, self._folder, self._slots = env, folder, slots
        self._num_nodes, self._secret = int(env["WORLD_SIZE"]), secret_from(env)
        self._lost = threading.Event()
        self._answers: dict[int, list[RankConnection]] = {}
        self._lines: dict[int, RankConnection] = {}
        self._stopped = False

    def run(self, words: Sequence[str]) -> int:
        """Run the command to its end. Raises TrainingError, OSError."""
        meeting = self._env["MASTER_ADDR"], int(self._env["MASTER_PORT"])
        self._lines = {
            rank: connection
            for rank, (_, connection) in accept_ranks(
                meeting, self._num_nodes - 1, self._secret
            ).items()
        }
        for rank, connection in self._lines.items():
            threading.Thread(target=self._listen, args=(rank, connection), daemon=True).start()
        agent = self._take_agents()
        self._env["MASTER_PORT"] = str(free_port())
        process = subprocess.Popen(self._command(agent, words), env=self._env)
        signal.signal(signal.SIGTERM, self._stop)
        code = self._wait(process)
        for connection in self._lines.values():
            connection.send({"over": code})
        return code

    def _command(self, agent: str, words: Sequence[str]) -> list[str]:
        hosts = ",".join(f"{_NODE}{rank}:{self._slots}" for rank in range(self._num_nodes))
        rank = [sys.executable, "-P", "-m", "phalanx.train.frameworks.mpi.rank", *words]
        words = [
            "mpirun",
            "-n",
            str(self._num_nodes * self._slots),
            "-H",
            hosts,
            "-x",
            "MASTER_PORT",
        ]
        settings = {"plm": "rsh", "plm_rsh_agent": agent, "plm_rsh_no_tree_spawn": "1"}
        for name, value in settings.items():
            words += ["--mca", name, value]
        return words + rank

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                code = process.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                if self._lost.is_set():
                    process.kill()
                    raise TrainingError("another node of the gang was lost") from None
        if self._stopped:
            return 128 + signal.SIGTERM
        return 128 - code if code < 0 else code

    def _stop(self, number: int, frame: FrameType | None) -> None:
        # Not mpirun: asked to stop, it leaves processes one second, or always waits for longer.
        self._stopped = True
        stop_processes(self._folder)

    def _take_agents(self) -> str:
        """Listen for agents; returns the command that `mpirun` calls as its remote shell."""
        path = self._folder / "agents"
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(str(path))
        server.listen(1024)

        def accept() -> None:
            while True:
                line, _ = server.accept()
                agent = _on_this_node(line, self._secret, "server")
                threading.Thread(target=self._pass_on, args=(agent,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        script = self._folder / "agent"
        script.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -P -m phalanx.train.frameworks.mpi {_CALL} "{path}" "$@"\n'
        )
        script.chmod(0o700)
        return str(script)

    def _pass_on(self, connection: RankConnection) -> None:
        message = connection.receive()
        if message is None:
            return
        rank = int(str(message["node"]).removeprefix(_NODE))
        if rank == 0:
            connection.send({"code": _daemon(message["command"], self._env)})
            return
        self._answers.setdefault(rank, []).append(connection)
        self._lines[rank].send({"command": message["command"]})

    def _listen(self, rank: int, line: RankConnection) -> None:
        """Pass on the answers of one node, in the order of requests; its end ends the job."""
        while (message := line.receive()) is not None:
            self._answers[rank].pop(0).send(message)
        self._lost.set()


def call_node(argv: Sequence[str]) -> int:
    """Be the remote shell that `mpirun` calls: run a command on the named node.

    `argv` is the socket of node rank 0's process, the node and the command. Returns the command's exit
    code, or 255 when the node is gone.
    """
    path, node, *command = argv
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(path)
    secret = secret_from(os.environ)  # noqa: TID251 - a program's entry point
    connection = _on_this_node(line, secret, "client")
    connection.send({"node": node, "command": " ".join(command)})
    message = connection.receive()
    return 255 if message is None else int(message["code"])


def _on_this_node(line: socket.socket, secret: bytes, side: str) -> RankConnection:
    """Return a connection over a Unix socket in a folder that no other user can enter."""
    return RankConnection(AuthenticatedPeer(line, secret, "", ""), side)


def stop_processes(folder: Path) -> None:
    """Send SIGTERM to this node's MPI processes, from the PID files in its folder."""
    for file in folder.glob(f"{PID_STEM}*"):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(file.read_text()), signal.SIGTERM)


def _serve(env: dict[str, str], folder: Path) -> int:
    """Serve another node: start the requested daemons until the job is over."""
    signal.signal(signal.SIGTERM, lambda *_: stop_processes(folder))
    meeting = env["MASTER_ADDR"], int(env["MASTER_PORT"])
    connection = RankConnection.connect(meeting, secret_from(env))
    connection.send({"rank": int(env["RANK"])})
    while True:
        message: dict[str, Any] | None = connection.receive()
        if message is None:
            raise TrainingError("node rank 0 was lost")
        if "over" in message:
            return 0
        run = partial(_daemon, message["command"], env)
        threading.Thread(
            target=lambda run=run: connection.send({"code": run()}), daemon=True
        ).start()


def _daemon(command: str, env: Mapping[str, str]) -> int:
    """Run a daemon of Open MPI to its end, with this node's environment."""
    words = ["/bin/sh", "-c", f"exec {command}"]
    done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, check=False)
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
