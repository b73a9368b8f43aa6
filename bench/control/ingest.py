"""Metric values a second through HTTP, from requests to durable rows, beside `log_batch` of MLflow.

Supervisors of jobs that run report 200 steps of five metrics in one request, several of them at a time, to
a control plane in a process of its own; the requests are written before the clock starts. With `--peers
PYTHON`, a Python with MLflow, its server takes batches of 1,000 values, its limit, between the rounds.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from bench.control.metrics import report_points
from bench.control.plane import TOKENS
from bench.control.throughput import SPEC, database, processor_s, served

from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.wire.report_bytes import REPORTS_TYPE, encode_request
from phalanx.schemas.wire.supervision import MetricsReport, SyncRequest

HTTP_PER_S = 5e5
_JOBS, _CLIENTS, _ROUNDS, _MLFLOW_S = 32, 8, 3, 10.0
_FIRST_SEQ = 3  # two reports say that the job runs
_NAMES = tuple(f"metric_{number}" for number in range(5))
_COLUMNS = "columns"
# The second size is the most that a supervisor puts into a report: that of one with many ranks.
_FORMS = {"JSON": ("application/json", 200), _COLUMNS: (REPORTS_TYPE, 200)}
_FORMS["columns of 2,000 steps"] = (REPORTS_TYPE, 2000)
"""Forms of a report: their types, and the steps in one. JSON is that of earlier supervisors."""


def report(databases: tuple[str, ...], reports: int, peers: str) -> bool:
    """Measure and print; whether the best round reaches the bar on every database."""
    kept = True
    for name in databases:
        with (
            tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder,
            database(name, Path(folder)) as (url, _),
            served(HomeLayout(Path(folder) / "home"), _JOBS, "stays", url) as (client, plane),
        ):
            last = client.submit_batch([SubmitRequest(spec=SPEC)] * _JOBS).jobs[-1].num
            while client.job(last).state != "running":
                time.sleep(0.1)
            tokens = json.loads((Path(folder) / "home" / TOKENS).read_text())
            taken = {form: list[tuple[float, float]]() for form in _FORMS}
            sent = steps = 0
            for number in range(_ROUNDS * len(_FORMS)):
                form = list(_FORMS)[number % len(_FORMS)]
                many = max(4, reports * 200 // _FORMS[form][1])
                before = processor_s(plane.pid)
                rate = _round(client.url, tokens, (sent, steps), many, form)
                sent, steps = sent + many, steps + many * _FORMS[form][1]
                values = _JOBS * many * _FORMS[form][1] * len(_NAMES)
                taken[form].append((rate, (processor_s(plane.pid) - before) / values))
                if peers:
                    _mlflow(peers)
            found = client.metrics(last, names=_NAMES[:1], max_points=4)
            assert found.series[0].count == steps, "values are missing"
        for form, rounds in taken.items():
            rates = [rate for rate, _ in rounds]
            each = statistics.median(used for _, used in rounds)
            print(
                f"{name}, {form}: {max(rates) / 1e3:.0f} k values/s through HTTP in the best round, "
                f"{statistics.median(rates) / 1e3:.0f} in the median one; "
                f"{1 / each / 1e3:.0f} for each second of the control plane's processor"
            )
        kept &= max(rate for rate, _ in taken[_COLUMNS]) >= HTTP_PER_S
    return kept


def _round(
    url: str, tokens: dict[str, str], before: tuple[int, int], reports: int, form: str
) -> float:
    """Values a second of one round: `reports` requests of each job, in order.

    `before` are the reports of each job that were sent before, and the steps in them.
    """
    made, (kind, steps) = [], _FORMS[form]
    for place in range(reports):
        seq = _FIRST_SEQ + before[0] + place
        points = report_points(before[1] + place * steps, _NAMES, steps)
        made.append(MetricsReport(seq=seq, generation=0, points=points))
    bodies = {
        job: [
            _body(
                SyncRequest(
                    job=int(job),
                    attempt=1,
                    node_rank=0,
                    sent_at=time.time_ns() // 1000,
                    reports=[one],
                ),
                kind,
            )
            for one in made
        ]
        for job in tokens
    }
    jobs = list(tokens)

    def send(first: int) -> None:
        place = urlsplit(url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        for at in range(reports):
            for job in jobs[first::_CLIENTS]:
                head = {
                    "Authorization": f"Bearer {tokens[job]}",
                    "Content-Type": kind,
                }
                connection.request("POST", "/api/v1/supervisors/sync", bodies[job][at], head)
                answer = connection.getresponse()
                said = answer.read()
                if answer.status != 200:
                    raise SystemExit(f"{answer.status}: {said[:500]!r}")
        connection.close()

    began = time.perf_counter()
    with ThreadPoolExecutor(_CLIENTS) as threads:
        list(threads.map(send, range(_CLIENTS)))
    return reports * len(jobs) * steps * len(_NAMES) / (time.perf_counter() - began)


def _body(request: SyncRequest, kind: str) -> bytes:
    body = encode_request(request) if kind == REPORTS_TYPE else request.model_dump_json().encode()
    assert body is not None
    return body


def _mlflow(python: str) -> None:
    script = Path(__file__).with_name("mlflow_batches.py")
    words: Sequence[str] = [python, str(script), str(_MLFLOW_S), str(_CLIENTS)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    print(f"  MLflow: {done.stdout.strip()}")
