"""The first process of a pod: it starts the supervisor and leaves its exit record for the kubelet.

It is the parent of everything in the container. It brings the code, passes SIGTERM on, ends what the
supervisor left, and writes the exit record into the termination message, which stays in the pod's status
when the container is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.errors import UserError
from phalanx.executors.node_files import (
    MACHINE_VARIABLES,
    CodeUnavailable,
    NodeFiles,
    place,
    source_of,
)
from phalanx.kit.interpreter import own_python
from phalanx.launch import linux
from phalanx.launch.files import last_line, write_file
from phalanx.launch.identity import ASSIGNMENT_NAME, EXIT_NAME, LOG_NAME, SupervisorRecord

# The kubelet keeps so much of a termination message.
MAX_MESSAGE_BYTES = 4096
_FETCH_TRIES = 20
_REAPER_S = 5.0
_SHORT = 300
_OWN_VARIABLES = (
    *("PHALANX_BOOTSTRAP", "PHALANX_POD_NODE_RANK", "PHALANX_NODE_ROOT"),
    *("PHALANX_TERMINATION_LOG", "PHALANX_POD_IP"),
)


def main(env: Mapping[str, str]) -> int:
    """Run one supervisor to its end; returns the exit status of the container."""
    linux.load()
    linux.become_subreaper()
    message = Path(env.get("PHALANX_TERMINATION_LOG", "/dev/termination-log"))
    leaving: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: leaving.append(number))
    try:
        assignment = bootstrap(
            Path(env["PHALANX_BOOTSTRAP"]),
            env["PHALANX_POD_NODE_RANK"],
            env.get("PHALANX_POD_IP", ""),
        )
        node_dir = _prepare(assignment, env)
    except (CodeUnavailable, UserError, OSError, ValueError, KeyError) as error:
        _tell(message, f"the supervisor cannot start: {error}".encode())
        print(f"the supervisor cannot start: {error}", file=sys.stderr)  # noqa: T201
        return 1
    if leaving:
        return 0
    status = _supervise(node_dir, env, leaving)
    record = b""
    with contextlib.suppress(OSError):
        record = (node_dir / EXIT_NAME).read_bytes()
    _tell(message, trimmed(record) if record else last_line(node_dir / LOG_NAME).encode())
    return status


def bootstrap(folder: Path, node_rank: str, address: str) -> dict[str, Any]:
    """The assignment of this pod, from the mounted Secret. Raises OSError, ValueError, KeyError."""
    common: dict[str, Any] = json.loads((folder / "assignment.json").read_bytes())
    nodes = json.loads((folder / "nodes.json").read_bytes())
    # IPv6 addresses stand without brackets here, as in the supervisor's report.
    return {**common, **nodes[node_rank], "address": address}


def environment(assignment: Mapping[str, Any], image: Mapping[str, str]) -> dict[str, str]:
    """The variables of the ranks: those of the image, then those of the job.

    Of the variables that describe a machine, those of the control plane's machine do not count here.
    """
    of_job = frozenset(assignment.get("own_env") or ())
    given = {
        name: value
        for name, value in assignment["env"].items()
        if name in of_job or name not in MACHINE_VARIABLES
    }
    own = {name: value for name, value in image.items() if name not in _OWN_VARIABLES}
    return {"LANG": "C.UTF-8", "PATH": os.defpath, **own, **given}


def _prepare(assignment: dict[str, Any], env: Mapping[str, str]) -> Path:
    root = Path(env["PHALANX_NODE_ROOT"])
    assignment["env"] = environment(assignment, env)
    files = NodeFiles(root)
    facts = assignment["gang"]
    key = facts["job"]["num"], facts["attempt"], assignment["node_rank"]
    node_dir, code = files.node_dir(*key), files.code_dir(*key)
    node_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    _bring(files, assignment, code)
    place(assignment, node_dir, code)
    if assignment.get("python"):
        assignment["python"]["root"] = str(files.python_dir)
    if assignment.get("data"):
        assignment["data_root"] = str(files.data_dir)
    write_file(node_dir / ASSIGNMENT_NAME, json.dumps(assignment).encode())
    return node_dir


def _bring(files: NodeFiles, assignment: dict[str, Any], code: Path) -> None:
    """Fetch the code; a control plane that restarts is asked again."""
    for number in range(_FETCH_TRIES):
        try:
            files.bring(source_of(assignment), code)
            return
        except CodeUnavailable:
            if number == _FETCH_TRIES - 1:
                raise
            time.sleep(1.0)


def _supervise(node_dir: Path, env: Mapping[str, str], leaving: list[int]) -> int:
    argv = own_python("-m", "phalanx.supervise", "--assignment", str(node_dir / ASSIGNMENT_NAME))
    own = {name: value for name, value in env.items() if name not in _OWN_VARIABLES}
    with open(node_dir / LOG_NAME, "ab") as log:
        supervisor = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own, cwd=node_dir
        )
    signal.signal(signal.SIGTERM, lambda *_: _terminate(supervisor))
    if leaving:
        _terminate(supervisor)
    status = wait_for(supervisor)
    _end_rest(node_dir)
    return status if status >= 0 else 128 - status


def _terminate(supervisor: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM. `Popen.send_signal` would take the status that `wait_for` waits for."""
    if supervisor.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor.pid, signal.SIGTERM)


def wait_for(supervisor: subprocess.Popen[bytes]) -> int:
    """Wait for the end of the supervisor; returns its status as `Popen.wait` does.

    The first process of a container becomes the parent of orphans, and nothing else takes their statuses.
    """
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == supervisor.pid:
            supervisor.returncode = os.waitstatus_to_exitcode(status)
            return supervisor.returncode


def _end_rest(node_dir: Path) -> None:
    """End what a killed supervisor left: its reaper gets a moment to write the ranks' last output."""
    reaper = None
    # The file is on a disk that ranks can write to.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = SupervisorRecord.read(node_dir)
        reaper = None if record is None else record.reaper
    until = time.monotonic() + _REAPER_S
    while reaper is not None and reaper.is_alive() and time.monotonic() < until:
        time.sleep(0.01)
        _reap()
    linux.kill_below(os.getpid(), frozenset(), _reap)


def _reap() -> None:
    for _ in linux.reaped():
        pass


def trimmed(record: bytes) -> bytes:
    """An exit record that fits into a termination message: long texts and results are left out."""
    if len(record) <= MAX_MESSAGE_BYTES:
        return record
    body = json.loads(record)
    for shorten in (_without_traceback, _without_results, _without_texts):
        shorten(body)
        record = json.dumps(body).encode()
        if len(record) <= MAX_MESSAGE_BYTES:
            break
    return record


def _without_traceback(body: dict[str, Any]) -> None:
    failure = (body.get("ended") or {}).get("failure") or {}
    for name, value in failure.items():
        if isinstance(value, str):
            failure[name] = value[:_SHORT]


def _without_results(body: dict[str, Any]) -> None:
    body["results"] = []


def _without_texts(body: dict[str, Any]) -> None:
    ended = body.get("ended") or {}
    if ended.get("failure"):
        ended["failure"] = {
            name: value for name, value in ended["failure"].items() if not isinstance(value, list)
        }


def _tell(path: Path, message: bytes) -> None:
    with contextlib.suppress(OSError):
        path.write_bytes(message[:MAX_MESSAGE_BYTES])


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))  # noqa: TID251 - a program's entry point
