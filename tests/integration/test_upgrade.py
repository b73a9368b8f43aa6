"""A home that the previous schema wrote opens with everything in it readable.

`fixtures/store_0003.sql` is the database of a small real home: j-1 succeeded with checkpoints, j-2 failed
after three restarts, j-3 is paused, j-4 is leaving for j-5, which has a reservation, and j-6 waits for the
limit of its project.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from integration.rig import Rig, open_rig
from phalanx.core.gang.placement import Node
from phalanx.core.jobs.events import NodeReleased
from phalanx.core.jobs.machine import decide, rebuild
from phalanx.core.jobs.model import JobState
from phalanx.kit.clock import ManualClock
from phalanx.services.planning.why import why_view
from phalanx.services.resources import inventory, projects
from phalanx.store import events, jobs, migrate, planning
from phalanx.testing.executors import FakeExecutor

pytestmark = [pytest.mark.integration, pytest.mark.sqlite]
DUMP = Path(__file__).parents[1] / "fixtures" / "store_0003.sql"
# A moment after the newest row of the dump.
NOW = 1_795_361_140_000_000
STATES = ["succeeded", "failed", "paused", "stopping", "queued", "queued"]


def old_home(root: Path) -> Path:
    path = root / "db" / "phalanx.sqlite"
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as conn:
        conn.executescript(DUMP.read_text())
    conn.close()
    return path


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Rig]:
    old_home(tmp_path)
    nodes = (Node("local", "local", "127.0.0.1", 4, 4, 8 << 30, splittable=True),)
    with open_rig(tmp_path, executor=FakeExecutor(nodes), clock=ManualClock(NOW)) as rig:
        yield rig


def test_the_fixture_is_of_the_schema_before(tmp_path: Path) -> None:
    with sqlite3.connect(old_home(tmp_path)) as conn:
        (stored,) = conn.execute("SELECT version_num FROM alembic_version").fetchone()
    conn.close()
    assert stored == "0003" < migrate.HEAD


def test_every_job_is_shown_and_rebuilt_by_its_events(old: Rig) -> None:
    for num, state in enumerate(STATES, start=1):
        view = old.job(num)
        assert view.state == state
        assert view.spec is not None and view.spec["resources"]["slots_per_node"] == 2
        # The earlier release did not store the times of preemptions and failures; the events have them.
        stored = old.store.view(partial(jobs.load, num=num)).job
        rebuilt = rebuild(old.store.view(partial(events.machine_log, num=num)))
        progress = replace(rebuilt.progress, failed_at=stored.progress.failed_at)
        same = replace(rebuilt, preempted_at=stored.preempted_at, progress=progress)
        assert same == stored
    found = {one.num for one in old.client.jobs().jobs}
    assert found == set(range(1, 7))


def test_lineage_checkpoints_and_restarts_are_readable(old: Rig) -> None:
    done, broken, paused = (old.job(num) for num in (1, 2, 3))
    assert done.lineage is not None and broken.lineage is not None
    assert (done.lineage.num_valid, done.lineage.missed, done.lineage.duplicated) == (3, 0, 0)
    assert [one.cause for one in broken.lineage.restarts] == ["rank_crash"] * 4
    assert broken.failure is not None and "ValueError: a mistake" in broken.failure.message
    saved = old.client.checkpoints(3)
    assert saved[-1].path == paused.progress.checkpoint_path
    assert {one.state for one in saved} == {"valid", "removed"}


def test_events_decode_in_order(old: Rig) -> None:
    for num in range(1, 7):
        kinds = [one.kind for one in old.client.history(num)]
        assert kinds[0] == "submitted"
        log = old.store.view(lambda tx, num=num: events.machine_log(tx, num))
        assert len(log) == len([kind for kind in kinds if kind not in events.NOTES])


def test_metrics_and_logs_are_readable(old: Rig) -> None:
    view = old.client.metrics(1, names=["loss"], ranks=[1])
    assert "loss" in view.names
    (series,) = view.series
    assert (series.rank, series.steps) == (1, list(range(1, 9)))
    first, last = series.values[0], series.values[-1]
    assert first is not None and last is not None and last < first
    assert old.client.metrics(1, names=["loss"], ranks=[7]).series == []
    assert any("ValueError" in one.text for one in old.client.logs(2).lines)


def test_pools_projects_and_reservations_are_readable(old: Rig) -> None:
    names = {one.name for one in projects.list_projects(old.platform, NOW)}
    assert {"vision", "text"} <= names
    (pool,) = inventory.list_pools(old.platform)
    assert (pool.name, pool.num_slots, pool.num_free) == ("small", 4, 0)
    ((owner, one),) = old.store.view(planning.reservations_now).items()
    assert (owner, one.kind, one.reservation.victims) == (5, planning.PREEMPTION, (4,))


def test_pending_reasons_are_kept_and_the_queue_is_planned(old: Rig) -> None:
    before = [old.store.view(lambda tx, n=n: jobs.load(tx, n)).pending_reason for n in (5, 6)]
    assert [one.code.value for one in before if one] == ["waiting_for_victims", "waiting_for_quota"]
    assert why_view(old.platform, 6, NOW).constraints[0].binding == "quota"
    stored = old.store.view(lambda tx: jobs.load(tx, 4)).job
    assert stored.attempt is not None
    for rank in range(2):
        stored = decide(stored, NodeReleased(stored.attempts, rank), NOW).job
    assert stored.state is JobState.QUEUED


def test_a_paused_job_is_resumed(old: Rig) -> None:
    old.client.resume(3)
    assert old.job(3).state == "queued"
    old.check_log(3)


def test_a_new_job_follows_the_old_ones(old: Rig) -> None:
    assert old.submit(resources={"nodes": 1, "slots_per_node": 2}) == 7
    assert [one.seq for one in old.client.history(7)] == [1]
