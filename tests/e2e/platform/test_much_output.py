"""Ranks that print much while supervisors and control planes are killed: every byte is there or counted.

The long form, 1 GB from each rank: `-m proof`.
"""

import os
import random
import re
import sys
import time
from pathlib import Path

import pytest

from e2e.platform.harness import Platform, kill
from phalanx.kit.text import parse_job_label
from support.waiting import wait_until

RANKS = 3
LINE = 1000

# Each line holds its own offset, so that what arrived can be checked. The ranks live until the last kill.
SCRIPT = f"""
import os, sys, time
lines, life_s, done = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
began = time.monotonic()
batch = max(1, lines // 1000)
for first in range(0, lines, batch):
    data = b"".join(
        b"%012d" % (number * {LINE}) + b"." * ({LINE} - 13) + b"\\n"
        for number in range(first, min(lines, first + batch))
    )
    while data:
        data = data[os.write(1, data):]
    time.sleep(max(0.0, began + life_s * first / lines - time.monotonic()))
while not os.path.exists(done):
    time.sleep(0.02)
"""


def check_stream(platform: Platform, num: int, job: str, rank: int) -> tuple[int, int, int]:
    """(bytes in the files, bytes that `logs` returns, bytes that it counts as missing) of one rank."""
    files = list((platform.home / "jobs" / job).glob(f"a*/n*/g*/r{rank:05d}.out"))
    written = sum(path.stat().st_size for path in files)
    found = missing = 0
    cursor = None
    with platform.client() as client:
        while True:
            page = client.logs(num, ranks=[rank], stream="out", cursor=cursor)
            for line in page.lines:
                if line.gap is not None:
                    missing += line.gap.num_bytes
                    continue
                text = line.text
                found += len(text) + (not line.partial)
                if len(text) == LINE - 1:
                    assert re.fullmatch(r"\d{12}\.+", text)
            if page.done or page.cursor == cursor:
                break
            cursor = page.cursor
    return written, found, missing


def print_under_kills(
    platform: Platform, root: Path, num_bytes: int, life_s: float, kills: int
) -> list[tuple[int, int, int]]:
    """Run the job, kill supervisors and control planes in turns, and account for each rank."""
    (root / "noise.py").write_text(SCRIPT)
    job = platform.submit(
        {
            "name": "noise",
            "workdir": str(root),
            "run": [
                sys.executable,
                "noise.py",
                str(num_bytes // LINE),
                str(life_s),
                str(root / "done"),
            ],
            "framework": "none",
            "resources": {"slots_per_node": RANKS},
            "recovery": {"node_lost": {"count": 50, "per": "1h"}},
        }
    )
    num = parse_job_label(job)
    assert num is not None
    rng = random.Random(20261123)
    for number in range(kills):
        view = platform.wait_state(job, "running")
        seen = platform.show(job).attempts
        folder = platform.home / "jobs" / job / f"a{seen:03d}"
        wait_until(
            lambda folder=folder: (
                sum(path.stat().st_size for path in folder.glob("n*/g*/r*.out"))
                > num_bytes * RANKS * rng.uniform(0.1, 0.3)
            )
        )
        if number % 2:
            assert platform.process is not None
            kill(platform.server_pid())
            platform.process.wait()
            platform.up()
        else:
            pid = view.nodes[0].pid
            assert pid is not None
            kill(pid)
            wait_until(lambda seen=seen: platform.show(job).attempts > seen, "another attempt")
    (root / "done").touch()
    platform.wait_state(job, "succeeded")
    return [check_stream(platform, num, job, rank) for rank in range(RANKS)]


def said(accounts: list[tuple[int, int, int]]) -> None:
    for rank, (written, found, missing) in enumerate(accounts):
        print(f"rank {rank}: {written:,} bytes written, {found:,} stored, {missing:,} counted")
        # A line that a kill has cut ends without a line end, which `logs` adds: one byte in each attempt.
        assert 0 <= found + missing - written <= 50


@pytest.mark.e2e
@pytest.mark.extras
def test_thirty_megabytes_under_kills_all_arrive(platform: Platform, tmp_path: Path):
    accounts = print_under_kills(platform, tmp_path, 10_000_000, 2.0, kills=3)
    said(accounts)
    assert [missing for _, _, missing in accounts] == [0, 0, 0]


@pytest.mark.e2e
@pytest.mark.proof
@pytest.mark.leaves("the control plane was started again, and the fixture of the module ends it")
def test_a_gigabyte_of_each_rank_under_kills_is_there_or_counted(
    platform: Platform, tmp_path: Path
):
    began = time.monotonic()
    accounts = print_under_kills(platform, tmp_path, 1_000_000_000, 10.0, kills=6)
    print(f"{time.monotonic() - began:.0f} s, {os.cpu_count()} CPUs")
    said(accounts)
