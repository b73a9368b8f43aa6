"""One worker of `framework: tensorflow`: `python -m phalanx.train.frameworks.tensorflow -- COMMAND`.

TF_CONFIG names the address of every worker before the first of them runs. So the ranks meet at rank 0,
each with a port that it has found free, and then become the job's command.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.errors import TrainingError
from phalanx.launch import accept_guard
from phalanx.launch.accept_guard import PORTS_VARIABLE
from phalanx.launch.command import ready
from phalanx.launch.ports import HeldPort
from phalanx.train.gang.gathering import RankConnection, accept_ranks, secret_from


def main(argv: Sequence[str]) -> int:
    """Meet the other workers and become the command. Returns only on failure."""
    parser = argparse.ArgumentParser(prog="phalanx.train.frameworks.tensorflow")
    parser.add_argument("--shell", action="store_true", help="COMMAND is one line for the shell")
    parser.add_argument("--slots-per-rank", type=int, default=1)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    env = dict(os.environ)  # noqa: TID251 - a program's entry point
    try:
        command = options.command[0] if options.shell else options.command
        words, env = ready(command, workdir=env["PHALANX_CODE_DIR"], env=env)
        workers = _workers(env)
    except FileNotFoundError as error:
        print(f"phalanx: {error.filename}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127
    except (TrainingError, OSError) as error:
        print(f"phalanx: the rendezvous of the workers failed: {error}", file=sys.stderr)  # noqa: T201
        return 1
    os.execve(words[0], words, env | variables(env, workers, options.slots_per_rank))


def variables(
    env: Mapping[str, str], workers: Sequence[str], slots_per_rank: int
) -> dict[str, str]:
    """Return TensorFlow's variables; `workers` are `host:port` in rank order."""
    task: dict[str, Any] = {"type": "worker", "index": int(env["RANK"])}
    found = {"TF_CONFIG": json.dumps({"cluster": {"worker": list(workers)}, "task": task})}
    if ports := env.get(PORTS_VARIABLE):
        # TensorFlow's server accepts every connection: the accept guard has to know its port.
        found[PORTS_VARIABLE] = f"{ports},{workers[task['index']].rpartition(':')[2]}"
    if int(env["LOCAL_WORLD_SIZE"]) > 1:
        # TensorFlow takes every device it sees; those of the node's other workers are not its own.
        seen = env.get("CUDA_VISIBLE_DEVICES")
        first, last = (slots_per_rank * (int(env["LOCAL_RANK"]) + more) for more in (0, 1))
        devices = seen.split(",") if seen else [str(number) for number in range(last)]
        found["CUDA_VISIBLE_DEVICES"] = ",".join(devices[first:last])
    return found


def _workers(env: Mapping[str, str]) -> list[str]:
    """Exchange the addresses of all workers. Raises TrainingError, OSError."""
    rank, world = int(env["RANK"]), int(env["WORLD_SIZE"])
    address, secret = env["MASTER_ADDR"], secret_from(env)
    meeting = address, int(env["MASTER_PORT"])
    held = HeldPort()
    own = held.number
    if not accept_guard.is_loaded(env):
        held.release()  # without the guard, TensorFlow's server does not share its port
    held.keep_for_program()
    if rank == 0:
        others = accept_ranks(meeting, world - 1, secret)
        rows = {0: f"{address}:{own}"}
        rows |= {
            each: f"{message['from']}:{message['port']}" for each, (message, _) in others.items()
        }
        workers = [rows[each] for each in range(world)]
        for _, connection in others.values():
            connection.send({"workers": workers})
        return workers
    connection = RankConnection.connect(meeting, secret)
    connection.send({"rank": rank, "port": own})
    message = connection.receive()
    if message is None:
        raise TrainingError("rank 0 was lost")
    return [str(one) for one in message["workers"]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
