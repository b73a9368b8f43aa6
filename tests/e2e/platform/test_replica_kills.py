"""Control planes under load, while they and PostgreSQL are killed, stopped and restarted: `-m proof`.

KILLS sets the number of disturbances (24), SEED the seed, KINDS the kinds, and RECORD a file that gets one
line with the counts. A client asks all the time, any replica that answers, with idempotency keys.
Each job appends a line to a file when it starts, so that one which is started twice is seen. On SQLite the
only control plane is killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.databases import PostgresServer
from support.load import Load
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


@pytest.fixture(params=["postgresql", "sqlite"])
def replicas(postgres: PostgresServer, tmp_path: Path, request: Any) -> Iterator[Replicas]:
    name, url = "replica_kills", None
    if request.param == "postgresql":
        url = postgres.create(name, empty=False)
        # The servers of tests do not wait for their log: a crash would take commits that were confirmed.
        postgres.execute(f"ALTER DATABASE {name} SET synchronous_commit = on")
    one = Replicas(tmp_path, url, slots=6)
    yield one
    one.close()


def disturb(kind: str, replicas: Replicas, postgres: PostgresServer, dice: random.Random) -> int:
    """Do one thing to the platform, and wait until there is a leader; returns forbidden writes."""
    leader = replicas.leader()
    if replicas.database is None:
        kind = "leader"
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
    with_postgres = replicas.database is not None
    for _ in range(3 if with_postgres else 1):
        replicas.start()
    replicas.wait()
    if with_postgres:
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
            asked = load.done.total()
            wait_until(lambda asked=asked: load.done.total() > asked + 2, "answers", every_s=0.1)
            kind = kind if with_postgres else "only"
            done[kind] += 1
            waits.setdefault(kind, []).append(round(load.waited_s(), 1))
            with capsys.disabled():
                count, waited_s = len(load.accepted), waits[kind][-1]
                print(f"{number + 1}/{KILLS} {kind}: {count} jobs, waited {waited_s} s", flush=True)
    wait_until(replicas.is_idle, "the jobs", guard_s=1200, every_s=1.0)
    rows = dict(replicas.ask("SELECT num, state FROM jobs"))
    attempts = dict(replicas.ask("SELECT attempts, count(*) FROM jobs GROUP BY attempts"))
    starts = {load.accepted[int(name)]: count for name, count in replicas.starts().items()}
    ended = {num: state for num, state in rows.items() if num not in load.cancelled}
    found = {
        "database": "postgresql" if with_postgres else "sqlite",
        "commit": GIT,
        "seed": SEED,
        "seconds": round(time.monotonic() - began_s),
        "disturbances": dict(done),
        "requests": dict(load.done),
        "jobs": len(load.accepted),
        "cancelled": len(load.cancelled),
        "lost": len(set(load.accepted.values()) - rows.keys()),
        "not_succeeded": sum(state != "succeeded" for state in ended.values()),
        "never_started": sum(starts[num] == 0 for num in ended),
        "started_twice": sum(count > 1 for count in starts.values()),
        "attempts": {str(num): count for num, count in attempts.items()},
        "writes_of_woken_leaders": forbidden,
        "wrong_answers": len(load.wrong),
        "ledgers_that_differ": len(replicas.unbalanced()),
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
    assert not found["ledgers_that_differ"], replicas.unbalanced()[:5]
    assert len(rows) == len(load.accepted), "a submission that was repeated made two jobs"
