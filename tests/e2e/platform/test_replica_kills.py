"""Replicas under load while they, the leader and PostgreSQL are killed, stopped and restarted: `-m proof`.

KILLS sets the number of disturbances (24), SEED the seed, KINDS the kinds, and RECORD a file that gets one
line with the counts. A client submits all the time, to any replica that answers, with idempotency keys.
Each job appends a line to a file when it starts, so that one which is started twice is seen.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from phalanx.errors import PlatformError
from support.databases import PostgresServer
from support.replicas import Replicas, RunningReplica
from support.waiting import wait_until

pytestmark = pytest.mark.proof
KILLS, SEED = int(os.environ.get("KILLS", "24")), int(os.environ.get("SEED", "0"))
KINDS = tuple(
    os.environ.get("KINDS", "leader,leader,standby,stop,stop,postgres,postgres-crash").split(",")
)
RECORD = os.environ.get("RECORD")
GIT = subprocess.run(
    ["git", "rev-parse", "--short", "HEAD"],
    cwd=Path(__file__).parent,
    capture_output=True,
    text=True,
).stdout.strip()


@pytest.fixture
def replicas(postgres: PostgresServer, tmp_path: Path) -> Iterator[Replicas]:
    name = "replica_kills"
    one = Replicas(tmp_path, postgres.create(name, empty=False), slots=6)
    # The servers of tests do not wait for their log: a crash would take commits that were confirmed.
    postgres.execute(f"ALTER DATABASE {name} SET synchronous_commit = on")
    yield one
    one.close()


class Load:
    """A client that submits jobs one after the other, each until a replica has accepted it."""

    def __init__(self, replicas: Replicas, dice: random.Random) -> None:
        self._replicas, self._dice = replicas, dice
        self._over = threading.Event()
        self.accepted: list[int] = []
        self.wrong: list[str] = []
        self._longest_s, self._began_s = 0.0, time.monotonic()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            self._began_s = time.monotonic()
            number = self._replicas.new_job()
            while not self._accepted(number):
                time.sleep(0.1)
            self._longest_s = max(self._longest_s, time.monotonic() - self._began_s)
            self._over.wait(0.5)
            self._began_s = time.monotonic()

    def waited_s(self) -> float:
        """The longest time that a submission has taken since the last call, also one under way."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return max(longest_s, time.monotonic() - self._began_s)

    def _accepted(self, number: int) -> bool:
        living = [one for one in list(self._replicas.running) if one.url and not one.stopped]
        try:
            with self._replicas.client(self._dice.choice(living)) as client:
                self.accepted.append(self._replicas.submit(client, 0.3, number))
        except (PlatformError, httpx.HTTPError, OSError) as error:
            if getattr(error, "http_status", 503) not in (500, 502, 503, 504):
                self.wrong.append(str(error))
            return False
        return True


def disturb(kind: str, replicas: Replicas, postgres: PostgresServer, dice: random.Random) -> int:
    """Do one thing to the platform, and wait until there is a leader; returns forbidden writes."""
    leader = replicas.leader()
    if kind == "stop":
        return stopped(replicas, leader)
    if kind.startswith("postgres"):
        postgres.restart("immediate" if kind == "postgres-crash" else "fast")
    else:
        others = [one for one in replicas.running if one is not leader]
        replicas.kill(leader if kind == "leader" else dice.choice(others))
        replicas.start()
    replicas.wait()
    return 0


def stopped(replicas: Replicas, leader: RunningReplica) -> int:
    """Stop the leader past its lease; returns how often it wrote as a leader after it woke."""
    leader.stopped = True
    leader.process.send_signal(signal.SIGSTOP)
    replicas.leader(leader)
    before = replicas.loop_writes(leader)
    leader.process.send_signal(signal.SIGCONT)
    wait_until(lambda: leader.role() == "standby", "it stands by", every_s=0.1)
    leader.stopped = False
    return replicas.loop_writes(leader) - before


@pytest.mark.timeout(7200)
def test_kills_lose_no_job_and_start_none_twice(
    replicas: Replicas, postgres: PostgresServer, capsys: Any
) -> None:
    dice = random.Random(SEED)
    for _ in range(3):
        replicas.start()
    replicas.wait()
    replicas.audit()
    done: Counter[str] = Counter()
    waits: dict[str, list[float]] = {}
    forbidden = 0
    began_s = time.monotonic()
    with Load(replicas, random.Random(SEED + 1)) as load:
        for number in range(KILLS):
            kind = KINDS[number % len(KINDS)] if number < len(KINDS) else dice.choice(KINDS)
            load.waited_s()
            forbidden += disturb(kind, replicas, postgres, dice)
            done[kind] += 1
            waits.setdefault(kind, []).append(round(load.waited_s(), 1))
            with capsys.disabled():
                count, waited_s = len(load.accepted), waits[kind][-1]
                print(f"{number + 1}/{KILLS} {kind}: {count} jobs, waited {waited_s} s", flush=True)
    wait_until(replicas.is_idle, "the jobs", guard_s=1200, every_s=1.0)
    rows = dict(replicas.ask("SELECT num, state FROM jobs"))
    attempts = dict(replicas.ask("SELECT attempts, count(*) FROM jobs GROUP BY attempts"))
    starts = replicas.starts()
    found = {
        "commit": GIT,
        "seed": SEED,
        "seconds": round(time.monotonic() - began_s),
        "disturbances": dict(done),
        "jobs": len(load.accepted),
        "lost": len(set(load.accepted) - rows.keys()),
        "not_succeeded": sum(state != "succeeded" for state in rows.values()),
        "never_started": sum(count == 0 for count in starts.values()),
        "started_twice": sum(count > 1 for count in starts.values()),
        "attempts": {str(num): count for num, count in attempts.items()},
        "writes_of_woken_leaders": forbidden,
        "wrong_answers": len(load.wrong),
        "longest_wait_s": {kind: max(some) for kind, some in waits.items()},
    }
    line = json.dumps(found)
    with capsys.disabled():
        print(line, load.wrong[:3])
    if RECORD:
        with open(RECORD, "a") as file:
            file.write(line + "\n")
    starts_wrong = found["never_started"] or found["started_twice"]
    assert not (found["lost"] or found["not_succeeded"] or starts_wrong), line
    assert not (found["writes_of_woken_leaders"] or found["wrong_answers"]), line
    assert len(rows) == len(load.accepted), "a submission that was repeated made two jobs"
