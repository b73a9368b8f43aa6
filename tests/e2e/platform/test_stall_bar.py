"""The bar of stall detection, at its defaults: hangs are found within a minute and the rank is named.

`STALL_RUNS=30` and `STALL_CLEAN_RUNS=15` make the counts of docs/proof/stalls.md.
"""

import os
from collections.abc import Iterator

import pytest

from e2e.platform.harness import BIN, HERE, Platform
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
RUNS = int(os.environ.get("STALL_RUNS", "1"))
CLEAN_RUNS = int(os.environ.get("STALL_CLEAN_RUNS", "1"))
FAULTS = ("stop", "loop", "collective", "loader")
CLEAN = ("validation", "save", "compile", "step")
WAIT_S = 400.0


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform with room for four gangs of three ranks."""
    one = Platform(tmp_path_factory.mktemp("wide"))
    one.slots = ("--slots", "12")
    one.up()
    yield one
    one.down()


def submitted(platform: Platform, what: str) -> str:
    return platform.submit(
        {
            "name": f"stall-{what}",
            "run": [str(BIN / "python"), "stall_job.py", what],
            "workdir": str(HERE),
            "resources": {"nodes": 1, "slots_per_node": 3},
            "checkpoint": {"every": "20 steps"},
        }
    )


def ended(platform: Platform, job: str) -> bool:
    return platform.show(job).is_terminal


def last_step_before(platform: Platform, job: str, at: float) -> float:
    """When a rank last printed a step before that time."""
    rows = [line.split() for line in platform.output(job).splitlines()]
    times = [float(row[0]) for row in rows if row[1:2] == ["step"]]
    return max(time for time in times if time < at)


@pytest.mark.extras
@pytest.mark.timeout(600 * max(RUNS, 1))
def test_hangs_are_found_within_a_minute_and_the_rank_is_named(wide: Platform) -> None:
    rows: list[tuple[str, float, bool, str]] = []
    for _ in range(RUNS):
        jobs = {what: submitted(wide, what) for what in FAULTS}
        for what, job in jobs.items():
            wait_until(
                lambda job=job: ended(wide, job), f"the end of {job}", guard_s=WAIT_S, every_s=0.5
            )
            view = wide.show(job)
            assert view.state == "succeeded", view.failure
            (restart,) = view.lineage.restarts
            assert restart.cause == "stalled", restart
            assert view.failure is not None
            failed_at = restart.failed_at.timestamp()
            took_s = failed_at - last_step_before(wide, job, failed_at)
            rows.append((what, took_s, view.failure.rank == 1, restart.message))
            print(f"{what:11} {took_s:5.1f} s, named {view.failure.rank}: {restart.message}")
    for what in FAULTS:
        times = [row[1] for row in rows if row[0] == what]
        named = sum(row[2] for row in rows if row[0] == what)
        print(f"{what}: {len(times)} runs, at most {max(times):.1f} s, culprit named {named}")
    assert max(row[1] for row in rows) <= 60.0
    assert sum(row[2] for row in rows) >= 0.95 * len(rows)
    different = [row[3] for row in rows if row[0] == "collective"]
    assert all("called different collectives" in said for said in different)


@pytest.mark.extras
@pytest.mark.timeout(600 * max(CLEAN_RUNS, 1))
def test_what_only_takes_long_is_no_stall(wide: Platform) -> None:
    for _ in range(CLEAN_RUNS):
        jobs = {what: submitted(wide, what) for what in CLEAN}
        for what, job in jobs.items():
            wait_until(
                lambda job=job: ended(wide, job), f"the end of {job}", guard_s=WAIT_S, every_s=0.5
            )
            view = wide.show(job)
            assert (view.state, view.restarts) == ("succeeded", 0), (what, view.lineage.restarts)
    print(f"{CLEAN_RUNS * len(CLEAN)} runs without a fault, 0 false alarms")
