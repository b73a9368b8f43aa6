"""Metric values a second that a server of MLflow takes: `PYTHON mlflow_batches.py SECONDS CLIENTS`.

It runs in a Python with MLflow, and needs nothing of Phalanx. The server has a SQLite file and one worker;
each client sends batches of 1,000 values, the most of one request, for a run of its own.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

_NAMES = [f"metric_{number}" for number in range(5)]
_START_S = 120.0


def _send(url: str, experiment: str, seconds: float) -> int:
    client = MlflowClient(url)
    run = client.create_run(experiment).info.run_id
    count, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        step = count // len(_NAMES)
        batch = [
            Metric(name, 0.5 + one, 1_795_000_000_000 + one, one)
            for one in range(step, step + 200)
            for name in _NAMES
        ]
        client.log_batch(run, batch)
        count += len(batch)
    return count


def main() -> None:
    seconds, clients = float(sys.argv[1]), int(sys.argv[2])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="mlflow-bench-") as folder:
        words = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        words += ["--backend-store-uri", f"sqlite:///{folder}/x.db"]
        words += ["--default-artifact-root", f"{folder}/artifacts"]
        with (Path(folder) / "log").open("wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *words], stdout=log, stderr=log
            )
        try:
            until = time.monotonic() + _START_S
            while True:
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=5).read()
                    break
                except OSError:
                    if time.monotonic() > until:
                        raise SystemExit((Path(folder) / "log").read_text()) from None
                    time.sleep(0.5)
            experiment = MlflowClient(url).create_experiment("bench")
            began = time.monotonic()
            with ThreadPoolExecutor(clients) as threads:
                parts = list(threads.map(lambda _: _send(url, experiment, seconds), range(clients)))
            print(f"{sum(parts) / (time.monotonic() - began) / 1e3:.1f} k values/s")
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    main()
