"""SIGKILL in the middle of commits: what was answered is there, what is there is whole."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.core.jobs.machine import rebuild
from phalanx.store import events, jobs, open_store

pytestmark = [pytest.mark.integration, pytest.mark.sqlite]
WRITER = Path(__file__).with_name("store_writer.py")


def test_a_killed_writer_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "db" / "phalanx.sqlite"
    answered: dict[int, int] = {}
    rng = random.Random(5)
    for _ in range(2):
        child = subprocess.Popen([sys.executable, str(WRITER), str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        with child:
            for _ in range(rng.randrange(5, 30)):
                num, seq = map(int, child.stdout.readline().split())
                answered[num] = max(seq, answered.get(num, 0))
            child.send_signal(signal.SIGKILL)
            for line in child.stdout.read().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    num, seq = map(int, line.split())
                    answered[num] = max(seq, answered.get(num, 0))
    with sqlite3.connect(path) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    conn.close()
    store = open_store(path)
    feed = store.view(lambda tx: events.feed(tx, limit=100_000))
    assert [one.feed for one in feed] == list(range(1, len(feed) + 1))
    for num, seq in answered.items():
        stored = store.view(lambda tx, n=num: jobs.load(tx, n))
        assert stored.last_seq >= seq
        assert rebuild(store.view(lambda tx, n=num: events.machine_log(tx, n))) == stored.job
        ours = [one.seq for one in feed if one.job == num]
        assert ours == list(range(1, stored.last_seq + 1))
    store.close()
