"""The Ray driver of one pool: `python -m phalanx.executors.ray.driver`, a child of the control plane.

A process of its own, because Ray ends drivers that cannot reach the head for long, and because Ray allows
one cluster per process. It remembers nothing that it could not find again by name, so that it may be
killed and started at any moment. Requests and answers are JSON lines on standard input and output::

    {"id": 7, "op": "poll", …}   →   {"id": 7, "ok": …}
                                 →   {"id": 7, "error": {"kind": "unavailable", "message": …}}
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

from phalanx.executors.ray.cluster import OperationRefused, RayCluster, first_line

_THREADS = 16
_OPERATIONS = ("hello", "nodes", "reserve", "start", "host", "stop", "poll", "demand")


def serve(cluster: RayCluster, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until end-of-file, each request on a thread of its own."""
    lock = threading.Lock()
    operations: dict[str, Callable[..., Any]] = {
        name: getattr(cluster, name) for name in _OPERATIONS
    }

    def answer(request: dict[str, Any]) -> None:
        body: dict[str, Any] = {"id": request.pop("id")}
        try:
            body["ok"] = operations[request.pop("op")](**request)
        except OperationRefused as error:
            body["error"] = {"kind": "refused", "message": str(error)}
        except Exception as error:
            logging.exception("a request failed")
            body["error"] = {"kind": "unavailable", "message": first_line(error)}
        with lock:
            _send(answers, body)

    with ThreadPoolExecutor(_THREADS) as pool:
        for line in requests:
            pool.submit(answer, json.loads(line))


def _send(answers: BinaryIO, body: dict[str, Any]) -> None:
    answers.write(json.dumps(body).encode() + b"\n")
    answers.flush()


def main() -> int:
    """Returns 0 at end-of-file, 1 when the cluster cannot be reached."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    told = json.loads(sys.stdin.buffer.readline())
    # Ray prints what it likes; answers go out on a descriptor of their own.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        cluster = RayCluster.connect(told["address"], told["owner"], told["actor_env"])
    except Exception as error:
        _send(answers, {"id": 0, "error": {"kind": "unavailable", "message": first_line(error)}})
        return 1
    _send(answers, {"id": 0, "ok": cluster.hello()})
    serve(cluster, sys.stdin.buffer, answers)
    # Detached actors stay; a clean goodbye would take Ray seconds.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
