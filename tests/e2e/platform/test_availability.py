"""The share of requests that are answered while replicas are killed and upgraded behind nginx: `-m proof`.

MINUTES sets the duration (15), EVERY_S the time between kills (30), SEED the seed, and RECORD a file that
gets one line with the counts. The configuration of nginx is that of `docs/how-to/replicas.md`. A client
sends each request once: what it gets is counted, and a request without an answer within 5 s has failed.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from phalanx.launch.ports import free_port
from support.databases import PostgresServer
from support.replicas import NEXT_RELEASE, Replicas
from support.waiting import wait_until

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx: install it"),
]
MINUTES = float(os.environ.get("MINUTES", "15"))
EVERY_S = float(os.environ.get("EVERY_S", "30"))
SEED = int(os.environ.get("SEED", "0"))
RECORD = os.environ.get("RECORD")
ROOT = Path(__file__).parents[3]
TIMEOUT_S = 5.0
GOAL = 0.999
_WEIGHTS = {"submit": 4, "again": 4, "show": 40, "list": 20, "events": 20, "info": 12}


@pytest.fixture
def balanced(postgres: PostgresServer, tmp_path: Path) -> Iterator[tuple[Replicas, str]]:
    """Three replicas behind nginx, and its URL."""
    name = "availability"
    url = postgres.create(name, empty=False)
    postgres.execute(f"ALTER DATABASE {name} SET synchronous_commit = on")
    front, *ports = (free_port() for _ in range(4))
    replicas = Replicas(tmp_path, url, slots=6, advertise=f"http://127.0.0.1:{front}")
    for port in ports:
        replicas.start(port=port)
    replicas.wait()
    config = tmp_path / "nginx.conf"
    config.write_text(configuration(tmp_path, front, ports))
    with (tmp_path / "nginx.log").open("wb") as out:
        nginx = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(config)], stderr=out)
    yield replicas, f"http://127.0.0.1:{front}"
    nginx.terminate()
    nginx.wait()
    replicas.close()


def configuration(root: Path, front: int, ports: list[int]) -> str:
    """The example of the documentation with these ports, in a folder of its own."""
    page = (ROOT / "docs/how-to/replicas.md").read_text()
    found = re.search(r"```nginx\n(.*?)```", page, re.DOTALL)
    assert found is not None
    example = found[1].replace("listen 7000;", f"listen 127.0.0.1:{front};")
    assert str(front) in example
    lines = example.splitlines()
    (first,) = (one for one in lines if "127.0.0.1:7001" in one)
    (second,) = (one for one in lines if "127.0.0.1:7002" in one)
    lines.remove(second)
    at = lines.index(first)
    lines[at : at + 1] = [first.replace("7001", str(port)) for port in ports]
    example = "\n".join(lines)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "\n".join(f"{kind}_temp_path {root}/{kind};" for kind in kinds)
    return (
        f"daemon off;\nuser root;\npid {root}/nginx.pid;\nerror_log {root}/nginx-errors.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{folders}\n{example}\n}}\n"
    )


class Clients:
    """Clients of the load balancer, each with four requests a second, and what they were answered."""

    def __init__(self, replicas: Replicas, url: str, num_clients: int = 4) -> None:
        self._replicas, self._url = replicas, url
        self._token = (replicas.home / "token").read_text().strip()
        self._over, self._lock = threading.Event(), threading.Lock()
        self.asked: Counter[str] = Counter()
        self.failed: list[str] = []
        self.wrong: list[str] = []
        self.seconds: list[float] = []
        self.jobs: dict[int, int] = {}
        """The number in the database of each job, by the number of its submission."""
        self._began_s = time.monotonic()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(SEED * 100 + num),))
            for num in range(num_clients)
        ]

    def __enter__(self) -> Clients:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for one in self._threads:
            one.join()

    def _run(self, dice: random.Random) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        with httpx.Client(base_url=self._url, headers=headers, timeout=TIMEOUT_S) as client:
            while not self._over.wait(0.25):
                kind = dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
                with self._lock:
                    known = list(self.jobs.items())[-50:]
                kind = kind if known else "submit"
                began_s = time.monotonic()
                try:
                    said = self._ask(client, kind, *(dice.choice(known) if known else (0, 0)))
                except httpx.HTTPError as error:
                    said = f"failed: {type(error).__name__}"
                with self._lock:
                    self._note(kind, said, began_s)

    def _note(self, kind: str, said: str, began_s: float) -> None:
        self.asked[kind] += 1
        self.seconds.append(time.monotonic() - began_s)
        if said.startswith("failed"):
            self.failed.append(f"{began_s - self._began_s:.1f} s, {kind}: {said}")
        elif said:
            self.wrong.append(f"{began_s - self._began_s:.1f} s, {kind}: {said}")

    def _ask(self, client: httpx.Client, kind: str, number: int, num: int) -> str:
        """Ask once; returns what was wrong, or nothing."""
        if kind in ("submit", "again"):
            if kind == "submit":
                with self._lock:
                    number = self._replicas.new_job()
            body = self._replicas.request(number, 0.3).model_dump(mode="json", exclude_unset=True)
            headers = {"Idempotency-Key": f"noted-{number}"}
            answer = client.post("/api/v1/jobs", json=body, headers=headers)
            if trouble := self._trouble(answer, 201):
                return trouble
            made = int(answer.json()["job"]["num"])
            with self._lock:
                return "" if self.jobs.setdefault(number, made) == made else f"j-{made} as well"
        newest = max(self.jobs.values())
        path = {
            "show": f"/api/v1/jobs/{num}",
            "list": "/api/v1/jobs?limit=20&sort=-num",
            "events": f"/api/v1/jobs/{num}/events",
            "info": "/api/v1/info",
        }[kind]
        answer = client.get(path)
        if trouble := self._trouble(answer, 200):
            return trouble
        if kind == "show" and answer.json()["num"] != num:
            return f"not j-{num}"
        if kind == "list" and answer.json()["jobs"][0]["num"] < newest:
            return f"j-{newest} is missing"
        if kind == "events" and answer.json()["events"][0]["kind"] != "submitted":
            return "the first event is missing"
        return ""

    @staticmethod
    def _trouble(answer: httpx.Response, wanted: int) -> str:
        if answer.status_code == wanted:
            return ""
        if answer.status_code in (502, 503, 504):
            return f"failed: {answer.status_code}"
        return f"{answer.status_code} {answer.text[:200]}"


def upgrade(replicas: Replicas) -> None:
    """Exchange the replicas for the next release, one after the other, as the documentation says."""
    for old in list(replicas.running):
        replicas.leave(old)
        new = replicas.start(NEXT_RELEASE, port=old.port)
        wait_until(new.has_answered, "the next release", every_s=0.1)
        wait_until(lambda new=new: ready(new.url), "it is ready", every_s=0.1)
        time.sleep(1.0)  # `fail_timeout` of the load balancer


def ready(url: str) -> bool:
    """Whether a replica is ready."""
    return httpx.get(f"{url}/readyz").status_code == 200


@pytest.mark.timeout(7200)
def test_requests_are_answered_while_replicas_are_killed_and_upgraded(
    balanced: tuple[Replicas, str], capsys: Any
) -> None:
    replicas, url = balanced
    wait_until(lambda: httpx.get(f"{url}/healthz").status_code == 200, "nginx", every_s=0.1)
    dice, kills, upgraded = random.Random(SEED), 0, False
    began_s = time.monotonic()
    with Clients(replicas, url) as clients:
        while (at_s := time.monotonic() - began_s) < MINUTES * 60:
            time.sleep(max(0.0, (kills + 1) * EVERY_S - at_s))
            if not upgraded and time.monotonic() - began_s >= MINUTES * 30:
                upgrade(replicas)
                upgraded = True
            one = dice.choice(replicas.running)
            replicas.kill(one)
            replicas.start(NEXT_RELEASE if upgraded else None, port=one.port)
            kills += 1
            wait_until(lambda: all(one.has_answered() for one in replicas.running), every_s=0.1)
            wait_until(lambda: all(ready(one.url) for one in replicas.running), every_s=0.1)
            with capsys.disabled():
                failed, asked = len(clients.failed), sum(clients.asked.values())
                print(f"kill {kills}: {asked} requests, {failed} failed", flush=True)
    wait_until(replicas.is_idle, "the jobs", guard_s=600, every_s=1.0)
    starts = replicas.starts()
    total = sum(clients.asked.values())
    times = sorted(clients.seconds)
    found = {
        "minutes": MINUTES,
        "seed": SEED,
        "kills": kills,
        "upgraded": upgraded,
        "requests": total,
        "asked": dict(clients.asked),
        "failed": len(clients.failed),
        "answered": round(1 - len(clients.failed) / total, 5),
        "wrong_answers": len(clients.wrong),
        "jobs": len(clients.jobs),
        "lost": sum(starts[str(one)] == 0 for one in clients.jobs),
        "started_twice": sum(count > 1 for count in starts.values()),
        "p50_s": round(times[total // 2], 3),
        "p99_s": round(times[total * 99 // 100], 3),
        "longest_s": round(times[-1], 3),
    }
    line = json.dumps(found)
    with capsys.disabled():
        print(line, clients.failed, clients.wrong[:5], sep="\n")
    if RECORD:
        with open(RECORD, "a") as file:
            file.write(line + "\n")
    assert upgraded and not (clients.wrong or found["lost"] or found["started_twice"]), line
    assert float(found["answered"]) >= GOAL, line
