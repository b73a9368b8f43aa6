"""Retention periods delete jobs and checkpoints when they are over, and nothing that is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from integration.rig import Rig
from integration.test_control_deletion import (
    SMALL,
    assert_gone,
    ended,
    far_folder,
    places,
    with_store,
)
from phalanx.errors import CheckpointNotFound, Conflict, NotFound, SpecInvalid
from phalanx.schemas.api.jobs import CloneRequest
from phalanx.services.retention import expiry, files
from phalanx.services.retention.expired_data import RetentionProgress, retention_step
from phalanx.services.retention.expiry import ExpiryProgress, expiry_step
from phalanx.services.retention.work import deletions_step
from phalanx.store.database import Store, Tx
from phalanx.store.retention import deletions, removals

pytestmark = pytest.mark.integration
DAY_S = 86_400.0


def sweep(rig: Rig) -> None:
    """A whole sweep, and the deletions that it begins."""
    progress = ExpiryProgress()
    while expiry_step(rig.platform, progress, rig.clock.now()):
        pass
    deletions_step(rig.platform, rig.clock.now())


def steps_left(folder: Path) -> list[int]:
    return sorted(int(one.name.split("-")[1]) for one in folder.glob("step-*"))


def test_jobs_go_at_the_end_of_their_period_and_pinned_ones_stay(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "JOBS", 1)
    old, pinned = ended(rig), ended(rig)
    rig.client.retention.pin(pinned)
    source = ended(rig)
    fork = rig.client.clone(source, CloneRequest(checkpoint="latest")).job
    rig.retain(jobs=10 * DAY_S)
    assert rig.job(pinned).expires == []
    sweep(rig)
    assert rig.job(old).expires[-1].kind == "jobs"
    rig.clock.advance(11 * DAY_S)
    plan = rig.client.retention.overview()
    assert [(one.label, one.kind) for one in plan.expiring_jobs] == [(f"j-{old}", "jobs")]
    assert plan.held == 1
    sweep(rig)
    assert_gone(rig, old)
    row = rig.store.view(lambda tx: deletions.find(tx, old))
    assert (row.deleted_by, row.cause) == ("retention", "retention")
    with pytest.raises(NotFound, match="was deleted by retention"):
        rig.job(old)
    assert rig.job(pinned).state == rig.job(source).state == "succeeded"
    assert rig.job(fork.num).state == "queued"
    rig.client.stop(fork.num)
    rig.client.retention.unpin(pinned)
    sweep(rig)
    assert_gone(rig, pinned)
    assert_gone(rig, source)
    removed = {(one.kind, one.cause): one.items for one in rig.client.retention.overview().removed}
    assert removed["jobs", "retention"] == 3


def test_surplus_checkpoints_go_here_and_in_the_store(rig: Rig) -> None:
    num = ended(rig, steps=(10, 20, 30, 40), **with_store(rig))
    rig.client.retention.pin_checkpoint(num, "20")
    source = rig.client.clone(num, CloneRequest(checkpoint="10")).job
    rig.retain(checkpoints=5 * DAY_S)
    rig.clock.advance(6 * DAY_S)
    plan = rig.client.retention.overview()
    assert [(one.items, one.num_bytes) for one in plan.expiring_jobs] == [(1, 100)]
    sweep(rig)
    here, far = places(rig, num)[1], far_folder(rig, num)
    assert steps_left(here) == steps_left(far) == [10, 20, 40]
    states = {one.step: one.state for one in rig.client.checkpoints(num)}
    assert states == {10: "valid", 20: "valid", 30: "removed", 40: "valid"}
    (event,) = [one for one in rig.client.history(num) if one.kind == "expired"]
    assert event.data == {"what": "checkpoints", "items": 1, "bytes": 100}
    assert event.actor == "retention"
    rig.client.stop(source.num)
    sweep(rig)
    assert steps_left(here) == steps_left(far) == [20, 40]
    rig.check_log(num)


def test_jobs_without_anything_to_delete_cost_no_write(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    nums = [ended(rig, steps=(10,)) for _ in range(2)]
    source = ended(rig)
    rig.client.clone(source, CloneRequest(checkpoint="latest"))
    rig.retain(checkpoints=DAY_S)
    rig.clock.advance(2 * DAY_S)
    sweep(rig)
    written: list[object] = []
    transact = type(rig.store).transact

    def counted(store: Store, work: Callable[[Tx], object]) -> object:
        written.append(work)
        return transact(store, work)

    monkeypatch.setattr(type(rig.store), "transact", counted)
    sweep(rig)
    assert written == []
    for num in nums:
        rig.client.retention.pin_checkpoint(num, "10")
    rig.retain(checkpoints=None, jobs=DAY_S)
    written.clear()
    sweep(rig)
    assert written == []
    assert all(rig.job(num).state == "succeeded" for num in (*nums, source))


class Cut(Exception):
    pass


@pytest.mark.parametrize("name", ["remove_near_some", "remove_copies"])
def test_checkpoints_that_were_marked_go_after_a_crash(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    num = ended(rig, steps=(10, 20), **with_store(rig))
    rig.retain(checkpoints=DAY_S)
    rig.clock.advance(2 * DAY_S)

    def cut(*_: object, **__: object) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(files, name, cut)
        with pytest.raises(Cut):
            sweep(rig)
    assert rig.store.view(removals.count) == 1
    deletions_step(rig.platform, rig.clock.now())
    assert rig.store.view(removals.count) == 0
    assert steps_left(places(rig, num)[1]) == steps_left(far_folder(rig, num)) == [20]


def test_a_clone_does_not_begin_from_a_checkpoint_that_expires_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phalanx.services.changes import clone

    num = ended(rig)
    rig.retain(checkpoints=DAY_S)
    rig.clock.advance(2 * DAY_S)
    prepared = clone._prepared

    def slow(*given: object) -> object:
        found = prepared(*given)
        sweep(rig)
        return found

    monkeypatch.setattr(clone, "_prepared", slow)
    with pytest.raises(CheckpointNotFound, match="no valid checkpoint"):
        rig.client.clone(num, CloneRequest(checkpoint="10"))


def test_periods_of_a_project_replace_those_of_the_platform(rig: Rig) -> None:
    rig.retain(jobs=10 * DAY_S, logs=5 * DAY_S)
    project = {"schema": 1, "projects": [{"name": "vision", "max_running": 3}]}
    rig.client.apply_projects(project)
    view = rig.client.retention.set_periods("vision", jobs="forever", logs="1d")
    assert view.own == {"jobs": "forever", "logs": "1d"}
    assert view.periods["jobs"] == "forever" and view.periods["code"] == "7d"
    assert rig.client.project("vision").max_running == 3
    mine, other = ended(rig, project="vision"), ended(rig)
    assert {one.kind for one in rig.job(mine).expires} == {"logs", "code"}
    rig.clock.advance(2 * DAY_S)
    retention_step(rig.platform, RetentionProgress(), rig.clock.now())
    assert [one.gap is not None for one in rig.client.logs(mine).lines] == [True]
    assert [one.gap for one in rig.client.logs(other).lines] == [None]
    rig.clock.advance(20 * DAY_S)
    sweep(rig)
    assert rig.job(mine).state == "succeeded"
    with pytest.raises(NotFound):
        rig.job(other)
    assert rig.client.retention.set_periods("vision", jobs=None).own == {"logs": "1d"}
    sweep(rig)
    assert_gone(rig, mine)


@pytest.mark.parametrize("wrong", ["5m", "soon", "-1d", "1000y"])
def test_a_period_that_makes_no_sense_is_refused(rig: Rig, wrong: str) -> None:
    with pytest.raises(SpecInvalid, match="logs"):
        rig.client.retention.set_periods("vision", logs=wrong)
    assert rig.client.retention.periods("vision").own == {}


def test_logs_and_metrics_of_a_pinned_job_stay_until_it_is_unpinned(rig: Rig) -> None:
    num = ended(rig)
    rig.client.retention.pin(num)
    rig.retain(logs=DAY_S, metrics=DAY_S)
    rig.clock.advance(3 * DAY_S)
    progress = RetentionProgress()
    retention_step(rig.platform, progress, rig.clock.now())
    assert rig.client.metrics(num).series and rig.client.logs(num).lines[0].gap is None
    rig.client.retention.unpin(num)
    retention_step(rig.platform, progress, rig.clock.now())
    assert not rig.client.metrics(num).series and rig.client.logs(num).lines[0].gap is not None
    told = [one.data["what"] for one in rig.client.history(num) if one.kind == "expired"]
    assert sorted(told) == ["logs", "metrics"]
    with pytest.raises(Conflict):
        rig.client.retention.archive(rig.submit(resources=SMALL))
