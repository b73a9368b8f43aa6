"""One node of a `framework: ray` job: `python -m phalanx.train.frameworks.ray --cpus N -- COMMAND`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.core.contract.records import MetricRecord, StepRecord
from phalanx.errors import TrainingError
from phalanx.kit.clock import SystemClock
from phalanx.launch.authentication import derive
from phalanx.launch.files import scratch
from phalanx.launch.ports import free_port
from phalanx.train.frameworks.hooked_script import hooked_words
from phalanx.train.frameworks.ray.hooks import SOCKET_VARIABLE, STORE_VARIABLE
from phalanx.train.gang.gathering import (
    RankConnection,
    RankServer,
    secret_from,
)
from phalanx.train.gang.report import Report, ReportFile

_STORE_BYTES = 200 << 20
_UP_S = 120.0
Take = Callable[[dict[str, Any]], None]
_HOOK = "phalanx.train.frameworks.ray.hooks.install"
# What the script's cluster must not inherit from one around it.
_OUTER = (
    "RAY_ADDRESS",
    "RAY_JOB_ID",
    "RAY_RAYLET_PID",
    "RAY_NODE_ID",
    "RAY_CLIENT_MODE",
    "RAY_AUTH_TOKEN",
)


def main(argv: Sequence[str]) -> int:
    """Run one node; returns the script's exit code, or 1 when the cluster failed."""
    parser = argparse.ArgumentParser(prog="phalanx.train.frameworks.ray")
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--shell", action="store_true", help="COMMAND is one line for the shell")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    env = dict(os.environ)  # noqa: TID251 - a program's entry point
    try:
        # Short: Ray puts sockets below it, and a socket path has at most 107 bytes.
        with scratch(Path(tempfile.gettempdir()), "phr") as folder:
            return _run(options, env, folder)
    except TrainingError as error:
        print(f"phalanx: {error.message}", file=sys.stderr, flush=True)  # noqa: T201
        return 1


def _run(options: argparse.Namespace, env: dict[str, str], folder: Path) -> int:
    report = ReportFile(Path(env["PHALANX_REPORT_FILE"]), now=SystemClock().now)
    env = {name: value for name, value in env.items() if name not in _OUTER}
    env |= {
        SOCKET_VARIABLE: str(folder / "reports"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_V2_ENABLED": env.get("RAY_TRAIN_V2_ENABLED", "1"),
        **authentication(env, folder),
    }
    # A machine's share of CPUs is Ray's business here, per task; not the launcher's, per rank.
    env.pop("OMP_NUM_THREADS", None)
    num_nodes = int(env["WORLD_SIZE"])
    meeting = env["MASTER_ADDR"], int(env["MASTER_PORT"])
    if int(env["RANK"]) == 0:
        take = written_to(report)
        listen(folder / "reports", take)
        table = RankServer(meeting, num_nodes - 1, secret_from(env))
        return _lead(options, env, folder, table, take)
    return _follow(options, env, folder, meeting)


def authentication(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables that make every process of the cluster ask for, and send, a token.

    All nodes derive the same token from the secret of their generation. Raises TrainingError.
    """
    path = folder / "token"
    token = derive(secret_from(env), "ray")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        file.write(token)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


def _lead(
    options: argparse.Namespace, env: dict[str, str], folder: Path, table: RankServer, take: Take
) -> int:
    own, num_nodes, port = env["MASTER_ADDR"], int(env["WORLD_SIZE"]), free_port()
    words = ["--head", f"--port={port}", f"--temp-dir={folder}", f"--node-ip-address={own}"]
    head = _ray(options, env, [*words, "--include-dashboard=false"])
    address = f"{own}:{port}"
    _await_up(head, "the head of the cluster is", lambda: _answers(own, port))
    table.gather({"head": address})
    # This process is a client of the cluster, too; Ray reads the token from its environment.
    process = os.environ  # noqa: TID251 - a program's entry point
    process.pop("RAY_AUTH_TOKEN", None)
    process.update({name: env[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")})
    client = importlib.import_module("ray._raylet").GcsClient(address=address)
    _await_up(head, f"{num_nodes} raylets are", lambda: _num_alive(client) >= num_nodes)
    lost = threading.Event()
    table.watch(take, lost)
    code = _script(options, {**env, "RAY_ADDRESS": address}, head, lost)
    table.close(code)
    # The supervisor ends whatever is left; where there is none, Ray ends its own.
    head.terminate()
    return code


def _follow(
    options: argparse.Namespace, env: dict[str, str], folder: Path, meeting: tuple[str, int]
) -> int:
    connection = RankConnection.connect(meeting, secret_from(env))
    # Progress is read from rank 0's report file, wherever Ray puts the worker that reports.
    listen(folder / "reports", connection.send)
    message = connection.receive()
    if message is None:
        raise TrainingError("the node of the Ray head was lost")
    node = _ray(options, env, [f"--address={message['head']}"])
    last: list[dict[str, Any] | None] = []
    over = threading.Event()

    def receive() -> None:
        last.append(connection.receive())
        over.set()

    threading.Thread(target=receive, daemon=True).start()
    while not over.wait(0.2):
        if node.poll() is not None:
            raise TrainingError(f"the raylet of this node has ended with {node.returncode}")
    if last[0] is None:
        raise TrainingError("the node of the Ray head was lost")
    node.terminate()
    # How the script ended is said once, by the node it ran on.
    return 0


def _ray(
    options: argparse.Namespace, env: Mapping[str, str], words: list[str]
) -> subprocess.Popen[bytes]:
    """Start `ray start --block`; it and its daemons end with this rank."""
    command = [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", "start", "--block"]
    command += [f"--num-cpus={options.cpus}", f"--object-store-memory={_STORE_BYTES}"]
    command += ["--disable-usage-stats", *words]
    env = {**env, "RAY_worker_niceness": "0"}
    return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _await_up(head: subprocess.Popen[bytes], what: str, is_up: Callable[[], bool]) -> None:
    """Wait until `is_up()`, which may raise while it is not. Raises TrainingError."""
    deadline = time.monotonic() + _UP_S
    while True:
        if head.poll() is not None:
            raise TrainingError(f"the head of the cluster ended with {head.returncode}")
        with contextlib.suppress(Exception):
            if is_up():
                return
        if time.monotonic() > deadline:
            raise TrainingError(f"{what} not up within {_UP_S:g} s")
        time.sleep(0.05)


def _answers(address: str, port: int) -> bool:
    socket.create_connection((address, port), timeout=1.0).close()
    return True


def _num_alive(client: Any) -> int:
    """Return the number of nodes that are in the cluster."""
    return sum(1 for node in client.get_all_node_info(timeout=5.0).values() if node.state == 0)


def _script(
    options: argparse.Namespace,
    env: dict[str, str],
    head: subprocess.Popen[bytes],
    lost: threading.Event,
) -> int:
    """Run the user's command to its end; SIGTERM is forwarded to it."""
    env["RAY_JOB_CONFIG_JSON_ENV_VAR"] = json.dumps(
        {"runtime_env": {"worker_process_setup_hook": _HOOK}}
    )
    # A job that its owner had begin anew has other results.
    beginning = env.get("PHALANX_BEGINNING", "0")
    name = "ray" if beginning == "0" else f"ray-{beginning}"
    env.setdefault(STORE_VARIABLE, f"{env['PHALANX_CHECKPOINT_DIR']}/{name}")
    script = subprocess.Popen(_words(options), env=env, shell=False)
    signal.signal(signal.SIGTERM, lambda *_: script.terminate())
    while True:
        try:
            code = script.wait(0.2)
            break
        except subprocess.TimeoutExpired:
            if head.poll() is not None or lost.is_set():
                script.kill()
                raise TrainingError("a node of the cluster was lost") from None
    return 128 - code if code < 0 else code


def _words(options: argparse.Namespace) -> list[str]:
    """Return the command; a Python script is run with the hooks."""
    hooks = "phalanx.train.frameworks.ray.hooks"
    words = hooked_words(options.command, shell=options.shell, hooks=hooks)
    if words is None:
        words = ["/bin/sh", "-c", *options.command] if options.shell else list(options.command)
    return words


def listen(path: Path, take: Take) -> None:
    """Receive the reports of the script's processes on this node."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(path))

    def receive() -> None:
        while True:
            with contextlib.suppress(ValueError):
                take(json.loads(receiver.recv(65536)))

    threading.Thread(target=receive, daemon=True).start()


def written_to(report: Report) -> Take:
    """Return a function that writes reports as progress and metrics."""

    def take(body: dict[str, Any]) -> None:
        with contextlib.suppress(KeyError):
            report.write(StepRecord(step=body["step"], epoch=0, consumed=0))
            report.write(MetricRecord(step=body["step"], values=body["v"]))

    return take


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
