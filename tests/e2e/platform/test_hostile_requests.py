"""Requests that once stopped the service, at full scale, beside a job that runs and a client."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import resource
import socket
import statistics
import tarfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from e2e.platform.harness import Platform
from phalanx.schemas.spec.job import JobSpec
from support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.proof]
NUM_SILENT = 20_000
# Sockets that this side has at a time: as many as it may open.
NUM_KEPT = 8_000
NUM_FOLLOWERS = 100
NUM_LINES = 20_000
HARD = ("NaN", "Infinity", "-Infinity", "1" + "0" * 400, '"\\ud800"')
WAITING = "import time; print('up', flush=True); time.sleep(3600)"
TALKING = f"import time\nfor n in range({NUM_LINES}): print(n, 'x' * 1000, flush=n % 1000 == 0)\n"


class Beside:
    """A client that asks all the time while something happens; and what the server uses meanwhile."""

    def __init__(self, platform: Platform) -> None:
        self.server = json.loads((platform.home / "server.json").read_text())
        self.headers = {"Authorization": f"Bearer {self.server['token']}"}
        self.process = psutil.Process(platform.server_pid())
        self.log = platform.root / "up.log"
        where = urlsplit(self.server["url"])
        self.address = where.hostname or "", where.port or 0

    @contextlib.contextmanager
    def asked(self, title: str) -> Iterator[Counter[Any]]:
        """Print a row of figures about the block; the counter is for its own."""
        own: Counter[Any] = Counter()
        times: list[float] = []
        most = {"rss": 0, "files": 0}
        over = threading.Event()
        before, began = self.process.memory_info().rss, time.monotonic()
        log, cpu = self.log.stat().st_size, sum(self.process.cpu_times()[:2])

        def ask() -> None:
            while not over.wait(0.05):
                at = time.monotonic()
                url = f"{self.server['url']}/api/v1/jobs"
                try:
                    answer = httpx.get(url, headers=self.headers, timeout=60)
                except httpx.HTTPError:
                    own["beside", "closed"] += 1  # by a flood; a client tries again
                    answer = httpx.get(url, headers=self.headers, timeout=60)
                own["beside", answer.status_code] += 1
                times.append(time.monotonic() - at)
                most["rss"] = max(most["rss"], self.process.memory_info().rss)
                most["files"] = max(most["files"], self.process.num_fds())

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield own
        finally:
            over.set()
            thread.join()
            times.sort()
            print(
                f"| {title} | {dict(own)} | {time.monotonic() - began:.0f} s "
                f"| {sum(self.process.cpu_times()[:2]) - cpu:.1f} s | {most['files']} "
                f"| {(most['rss'] - before) >> 20} MB | {(self.log.stat().st_size - log) >> 10} KiB "
                f"| {statistics.median(times) * 1e3:.0f} ms | {times[int(len(times) * 0.99)]:.2f} s |"
            )
            assert own["beside", 200] == len(times), own

    def post(self, path: str, body: str) -> httpx.Response:
        kind = {"Content-Type": "application/json"}
        url = self.server["url"] + path
        return httpx.post(url, content=body, headers=self.headers | kind, timeout=120)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Platform, str]]:
    """A platform with a job that runs through everything that follows, and ends well."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    platform = Platform(tmp_path_factory.mktemp("hostile"))
    platform.up()
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    job = platform.submit({"run": ["python", "-c", WAITING], "recovery": {"node_lost": 0}})
    platform.wait_state(job, "running")
    yield platform, job
    view = platform.show(job)
    assert (view.state, view.attempts, view.restarts) == ("running", 1, 0)
    platform.down()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def beside(served: tuple[Platform, str]) -> Beside:
    return Beside(served[0])


def test_silent_connections(beside: Beside) -> None:
    with (
        contextlib.ExitStack() as stack,
        beside.asked(f"{NUM_SILENT:,} silent connections") as own,
    ):
        kept: deque[socket.socket] = deque()
        stack.callback(lambda: [line.close() for line in kept])
        for _ in range(NUM_SILENT):
            if len(kept) >= NUM_KEPT:
                kept.popleft().close()
            kept.append(socket.socket())
            kept[-1].settimeout(10)
            try:
                kept[-1].connect(beside.address)
                own["connected"] += 1
            except OSError:
                own["refused"] += 1
    assert own["connected"] > 0.9 * NUM_SILENT


def test_followers_that_never_read(served: tuple[Platform, str], beside: Beside) -> None:
    platform, _ = served
    job = platform.submit({"run": ["python", "-c", TALKING]})
    platform.wait_state(job, "succeeded")
    ask = (
        f"GET /api/v1/jobs/{job.removeprefix('j-')}/logs HTTP/1.1\r\n"
        f"Host: 127.0.0.1\r\nAuthorization: Bearer {beside.server['token']}\r\n\r\n"
    ).encode()
    lines: list[socket.socket] = []
    with (
        contextlib.ExitStack() as stack,
        beside.asked(f"{NUM_FOLLOWERS} followers that never read") as own,
    ):
        for _ in range(NUM_FOLLOWERS):
            line = stack.enter_context(socket.socket())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.connect(beside.address)
            line.sendall(ask)
            lines.append(line)
        until = time.monotonic() + 60
        while time.monotonic() < until and own["closed"] < NUM_FOLLOWERS:
            own["closed"] = sum(map(_is_over, lines))
            time.sleep(0.2)


def _is_over(line: socket.socket) -> bool:
    """Whether a connection has ended, without reading from it."""
    established = b"\x01"
    return line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != established


def test_a_spec_with_quadratic_patterns(beside: Beside) -> None:
    patterns = [r"(.*)(.*)(.*) {loss} " + ".*" * 100 + r"x"] * 16
    fields: list[dict[str, Any]] = [
        {"metrics": patterns},
        {"metrics": ["a" * 900 + "{loss}"] * 16},
        {"resources": {"nodes": "1." * 8000}},
        {"checkpoint": {"every": " " * 16_000 + "x"}},
        {"max_duration": "1h" * 8000},
        {"run": "'" * 16_000},
        {"schedule": {"cron": "*/1" * 5000}},
    ]
    with beside.asked("specs of 16 kB with quadratic patterns") as own:
        for more in fields:
            spec = {"schema": 1, "run": ["true"], **more}
            answer = beside.post("/api/v1/jobs", json.dumps({"spec": spec}))
            own[answer.status_code] += 1
    assert not any(isinstance(status, int) and status >= 500 for status in own)


def test_endless_numbers_of_nodes(beside: Beside) -> None:
    with beside.asked("`nodes: 1..999999999999` and others") as own:
        for nodes in ("1..999999999999", 999999999999, "999999999999..", [1, 999999999999]):
            spec = {"schema": 1, "run": ["true"], "resources": {"nodes": nodes}}
            own[beside.post("/api/v1/jobs", json.dumps({"spec": spec})).status_code] += 1
    assert own[422] == 4


def test_an_archive_that_unpacks_to_gigabytes(
    served: tuple[Platform, str], beside: Beside, tmp_path: Path
) -> None:
    platform, _ = served
    text = io.BytesIO()
    with gzip.open(text, "wb", 9) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        head = tarfile.TarInfo("zeros")
        head.size = 1_600_000_000
        tar.addfile(head, _Zeros(head.size))
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        head = tarfile.TarInfo("sparse")
        head.type, head.size = tarfile.GNUTYPE_SPARSE, 512
        tar.addfile(head, io.BytesIO(b"0" * 512))
    used = psutil.disk_usage(str(platform.home)).used
    title = f"an archive of {len(text.getvalue()) >> 10} KiB that unpacks to 1.6 GB"
    with beside.asked(title) as own:
        for body in (text.getvalue(), plain.getvalue()):
            digest = hashlib.sha256(body).hexdigest()
            for encoding in ({}, {"Content-Encoding": "gzip"}):
                answer = httpx.put(
                    f"{beside.server['url']}/api/v1/code/{digest}",
                    content=body,
                    headers=beside.headers | encoding,
                    timeout=300,
                )
                own[answer.status_code] += 1
    own["disk MB"] = (psutil.disk_usage(str(platform.home)).used - used) >> 20
    assert not any(isinstance(status, int) and 200 <= status < 300 for status in own), own


class _Zeros(io.RawIOBase):
    def __init__(self, size: int) -> None:
        super().__init__()
        self._left = size

    def read(self, size: int = -1) -> bytes:
        part = min(self._left, size if size >= 0 else self._left)
        self._left -= part
        return bytes(part)


def leaves(
    schema: dict[str, Any], root: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[Any]:
    """Paths of all fields of a JSON schema that take a number or a text."""
    if "$ref" in schema:
        if path.count(schema["$ref"]) > 1:
            return
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if schema.get("type") in ("number", "integer", "string", "boolean") or not schema:
        yield path
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from leaves(one, root, path)
    for name, below in schema.get("properties", {}).items():
        if len(path) < 6:
            yield from leaves(below, root, (*path, name))
    if isinstance(more := schema.get("additionalProperties"), dict) and len(path) < 6:
        yield from leaves(more, root, (*path, "a"))
    if isinstance(items := schema.get("items"), dict) and len(path) < 6:
        yield from leaves(items, root, (*path, "[]"))


def written(path: tuple[str, ...], value: str) -> str:
    """JSON of a spec with one value, which is given as JSON, at a path."""
    text = value
    for name in reversed(path):
        text = f"[{text}]" if name == "[]" else f"{{{json.dumps(name)}: {text}}}"
    return text[1:-1]


def test_values_that_are_no_values_in_every_field(
    served: tuple[Platform, str], beside: Beside
) -> None:
    platform, _ = served
    schema = JobSpec.model_json_schema()
    paths = sorted(set(leaves(schema, schema)))
    assert len(paths) > 100
    known = {job.label for job in platform.jobs()}
    with beside.asked(f"{len(HARD)} hard values in each of {len(paths)} fields") as own:
        for path in paths:
            for value in HARD:
                rest = "" if path[0] == "run" else ', "run": ["true"]'
                body = f'{{"spec": {{"schema": 1, {written(path, value)}{rest}}}}}'
                answer = beside.post("/api/v1/jobs", body)
                own[answer.status_code] += 1
                assert answer.status_code < 500, (path, value, answer.text)
    made = [job for job in platform.jobs() if job.label not in known]
    own["jobs"] = len(made)
    for job in made:
        platform.run("stop", job.label, "--grace", "0s", check=False)
        wait_until(lambda job=job: platform.show(job.label).is_terminal, "its end")
