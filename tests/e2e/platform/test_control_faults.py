"""What a control plane under load does when its database, disk or clock fails it: `-m proof`.

SECONDS sets how long each fault lasts (60). Needs to run as root where a file system is mounted.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.databases import PostgresServer
from support.load import Load
from support.replicas import Replicas
from support.waiting import wait_until

pytestmark = pytest.mark.proof
SECONDS = float(os.environ.get("SECONDS", "60"))
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a file system")


@contextmanager
def loaded(replicas: Replicas) -> Iterator[Load]:
    """Mixed load; afterwards everything that was accepted has run once, and the ledger adds up."""
    with Load(replicas, random.Random(1)) as load:
        wait_until(lambda: load.done.total() > 10, "load", every_s=0.1)
        yield load
        asked = load.done.total()
        wait_until(lambda: load.done.total() > asked + 10, "load after the fault", every_s=0.1)
    wait_until(replicas.is_idle, "the jobs", guard_s=600, every_s=1.0)
    rows = dict(replicas.ask("SELECT num, state FROM jobs"))
    starts = {load.accepted[int(name)]: count for name, count in replicas.starts().items()}
    assert not set(load.accepted.values()) - rows.keys(), "lost"
    ended = {num: state for num, state in rows.items() if num not in load.cancelled}
    assert set(ended.values()) == {"succeeded"}, ended
    assert {starts[num] for num in ended} == {1} and max(starts.values()) == 1
    assert load.wrong == [] and replicas.unbalanced() == []
    print(load.done, load.refused, sep="\n")


def answers(replicas: Replicas, path: str) -> httpx.Response:
    token = (replicas.home / "token").read_text().strip()
    url, headers = replicas.running[0].url, {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{url}{path}", headers=headers, timeout=60)


def submits(replicas: Replicas) -> httpx.Response:
    """Submit a job once; it runs when this was accepted, and the caller counts it."""
    token = (replicas.home / "token").read_text().strip()
    spec = {"schema": 1, "name": "tried", "run": "true", "framework": "none"}
    return httpx.post(
        f"{replicas.running[0].url}/api/v1/jobs",
        headers={"Authorization": f"Bearer {token}"},
        params={"dry_run": "false"},
        json={"spec": spec},
        timeout=60,
    )


def show_errors(load: Load, capsys: Any, began: float) -> None:
    with capsys.disabled():
        print(f"after {time.monotonic() - began:.1f} s: {load.done} {load.refused}", flush=True)


def test_the_database_is_gone(postgres: PostgresServer, tmp_path: Path, capsys: Any) -> None:
    name = "faults"
    replicas = Replicas(tmp_path, postgres.create(name, empty=False), slots=6)
    postgres.execute(f"ALTER DATABASE {name} SET synchronous_commit = on")
    try:
        replicas.start()
        replicas.start()
        replicas.wait()
        with loaded(replicas) as load:
            postgres.stop("fast")
            began = time.monotonic()
            wait_until(lambda: answers(replicas, "/readyz").status_code == 503, every_s=0.2)
            answer = submits(replicas)
            while time.monotonic() - began < SECONDS:
                assert answers(replicas, "/healthz").status_code == 200
                time.sleep(1)
            with capsys.disabled():
                print(answers(replicas, "/readyz").text, answer.status_code, answer.text)
            show_errors(load, capsys, began)
            assert answer.status_code == 503, answer.text
            postgres.start()
            began, asked = time.monotonic(), load.done.total()
            wait_until(lambda: load.done.total() > asked, "an answer", every_s=0.1)
            show_errors(load, capsys, began)
            replicas.leader()
    finally:
        replicas.close()


@pytest.mark.skipif(not FAKETIME.exists(), reason="needs libfaketime: install it")
@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_the_clock_of_the_machine_jumps(tmp_path: Path, database: str, capsys: Any) -> None:
    """Control planes, supervisors, ranks and the database: all of them see the clock jump by an hour."""
    offset = tmp_path / "offset"
    offset.write_text("+0")
    faked = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    postgres = None
    with pytest.MonkeyPatch.context() as patch:
        for key, value in faked.items():
            patch.setenv(key, value)
        if database == "postgresql":
            postgres = PostgresServer()
    url = postgres.create("clocks", empty=False) if postgres else None
    replicas = Replicas(tmp_path, url, slots=6)
    replicas.env |= faked
    try:
        for _ in range(2 if postgres else 1):
            replicas.start()
        replicas.wait()
        began = time.monotonic()
        with loaded(replicas) as load:
            for jump in ("+3600", "+0", "-3600", "+0"):
                offset.write_text(jump)
                asked = load.done.total()
                wait_until(lambda asked=asked: load.done.total() > asked + 10, jump, every_s=0.1)
                with capsys.disabled():
                    print(jump, round(load.waited_s(), 1))
                show_errors(load, capsys, began)
                replicas.leader()
    finally:
        replicas.close()
        if postgres:
            postgres.close()


@as_root
def test_the_disk_of_the_home_is_full(tmp_path: Path, capsys: Any) -> None:
    replicas = Replicas(tmp_path, None, slots=6)
    replicas.home.mkdir(mode=0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs", replicas.home], check=True
    )
    try:
        replicas.start()
        replicas.wait()
        with loaded(replicas) as load:
            ballast = replicas.home / "ballast"
            began = time.monotonic()
            answer = None
            while time.monotonic() - began < SECONDS:
                subprocess.run(
                    f"head -c 64m /dev/zero >> {ballast}", shell=True, stderr=subprocess.DEVNULL
                )
                assert answers(replicas, "/healthz").status_code == 200
                if time.monotonic() - began > SECONDS / 2 and answer is None:
                    answer = submits(replicas)
                time.sleep(1)
            assert answer is not None
            with capsys.disabled():
                ready = answers(replicas, "/readyz")
                print(ready.status_code, ready.text, answer.status_code, answer.text)
            show_errors(load, capsys, began)
            ballast.unlink()
            began, asked = time.monotonic(), load.done.total()
            wait_until(lambda: load.done.total() > asked, "an answer", every_s=0.1)
            show_errors(load, capsys, began)
            assert answer.status_code in (503, 507) and "full" in answer.text, answer.text
        assert "Traceback" not in replicas.running[0].log.read_text()
    finally:
        replicas.close()
        subprocess.run(["umount", "-l", replicas.home], check=True)


@as_root
def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    """It does not start, and says so; when the home can be written again, all jobs are there."""
    replicas = Replicas(tmp_path, None, slots=6)
    replicas.home.mkdir(mode=0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs", replicas.home], check=True
    )
    try:
        replicas.start()
        replicas.wait()
        with loaded(replicas):
            pass
        replicas.leave(replicas.running[0])
        subprocess.run(["mount", "-o", "remount,ro", replicas.home], check=True)
        one = replicas.start()
        assert one.process.wait(60) == 1, one.log.read_text()
        said = one.log.read_text()
        assert (
            "read-only" in said.lower()
            and str(replicas.home) in said
            and len(said.splitlines()) <= 2
        ), said
        replicas.running.remove(one)
        subprocess.run(["mount", "-o", "remount,rw", replicas.home], check=True)
        replicas.start()
        replicas.wait()
        assert replicas.are_over()
    finally:
        replicas.close()
        subprocess.run(["umount", "-l", replicas.home], check=True)
