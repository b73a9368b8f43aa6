"""The control plane deletes checkpoints of targets that nothing needs, and never a pinned one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration.rig import Rig
from phalanx.checkpoint.commit import sealed
from phalanx.core.training.checkpoints import AT_TARGET, MANIFEST
from phalanx.services.lifecycle.assignments import checkpoint_dir, contract_of
from phalanx.services.studies import target_checkpoints
from phalanx.services.studies.target_checkpoints import TargetProgress, target_retention_step
from phalanx.store import jobs, lineage
from phalanx.store.studies import checkpoint_pins, trial_reports
from phalanx.store.tables import checkpoints
from support.manifests import manifest_of

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(rig: Rig) -> Path:
    """The folder of a job with checkpoints of five targets, of which the spec retains one."""
    rig.submit(checkpoint={"keep": {"last": 1}})
    rig.turn()
    supervisor = rig.supervisor(1)
    supervisor.ready()
    supervisor.started()
    stored = rig.store.view(lambda tx: jobs.load(tx, 1))
    found = checkpoint_dir(rig.platform.home, stored.facts.project, 1)
    uid = contract_of(stored.facts).uid
    for step in range(1, 6):
        commit(rig, found, step, uid)
    return found


def commit(rig: Rig, folder: Path, step: int, uid: str, why: str = AT_TARGET) -> None:
    made = manifest_of(step, root="r", why=why, job_uid=uid)
    path = folder / made.name
    path.mkdir(parents=True)
    (path / MANIFEST).write_bytes(sealed(made))
    values = {"path": str(path), "step": step, "size_bytes": 0, "metrics": {}, "created_at": step}
    report = {"job": 1, "unit": step, "attempt": 1, "generation": 0, "value": 0.5, "metrics": {}}
    report |= {"checkpoint": str(path), "final": True, "at": step}
    rig.store.transact(lambda tx: lineage.add_checkpoint(tx, (1, 1, 0), values))
    rig.store.transact(lambda tx: trial_reports.add(tx, report))


def path_of(folder: Path, step: int) -> str:
    (found,) = folder.glob(f"step-{step:08d}-*")
    return str(found)


def pin(rig: Rig, path: str) -> bool:
    return rig.store.transact(lambda tx: checkpoint_pins.pin(tx, 1, path, "s-1", 9))


def left(folder: Path) -> list[int]:
    return sorted(int(one.name.split("-")[1]) for one in folder.iterdir())


def valid(rig: Rig) -> list[int]:
    return [row.step for row in rig.store.view(lambda tx: lineage.valid_checkpoints_of(tx, 1))]


def test_a_live_trial_keeps_its_newest_target_and_pinned_ones(rig: Rig, folder: Path) -> None:
    uid = contract_of(rig.store.view(lambda tx: jobs.load(tx, 1)).facts).uid
    commit(rig, folder, 6, uid, why="every")
    pinned = path_of(folder, 2)
    assert pin(rig, pinned)
    progress = TargetProgress()
    target_retention_step(rig.platform, progress, rig.clock.now())
    assert left(folder) == valid(rig) == [2, 5, 6]
    rig.store.transact(lambda tx: checkpoint_pins.unpin(tx, "s-1"))
    target_retention_step(rig.platform, progress, rig.clock.now())
    assert left(folder) == valid(rig) == [5, 6]
    assert not pin(rig, pinned)


def test_a_trial_that_is_over_keeps_what_the_spec_retains(
    rig: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = contract_of(rig.store.view(lambda tx: jobs.load(tx, 1)).facts).uid
    commit(rig, folder, 6, uid, why="every")
    progress = TargetProgress()
    target_retention_step(rig.platform, progress, rig.clock.now())
    monkeypatch.setattr("phalanx.core.jobs.model.Job.is_terminal", property(lambda job: True))
    target_retention_step(rig.platform, progress, rig.clock.now())
    assert (left(folder), progress.jobs) == ([6], {})


def test_another_jobs_checkpoint_and_one_never_reported_stay(rig: Rig, folder: Path) -> None:
    other = manifest_of(1, root="r", why=AT_TARGET, job_uid="other", name="step-00000001-0000ffff")
    (folder / other.name).mkdir()
    (folder / other.name / MANIFEST).write_bytes(sealed(other))
    second = checkpoints.c.path == path_of(folder, 2)
    rig.store.transact(lambda tx: tx.conn.execute(checkpoints.delete().where(second)))
    target_retention_step(rig.platform, TargetProgress(), rig.clock.now())
    assert left(folder) == [1, 2, 5]


def test_files_that_a_crash_left_are_deleted(
    rig: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(target_checkpoints.checkpoint, "remove", crash)
        with pytest.raises(KeyboardInterrupt):
            target_retention_step(rig.platform, TargetProgress(), rig.clock.now())
    assert (left(folder), valid(rig)) == ([1, 2, 3, 4, 5], [5])
    target_retention_step(rig.platform, TargetProgress(), rig.clock.now())
    assert left(folder) == [5]


@pytest.mark.parametrize("first", ["pin", "removal"])
def test_a_pin_and_a_removal_exclude_each_other(
    rig: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """A pin comes between the look at the folder and the transaction, or after it."""
    path, told = path_of(folder, 3), []
    marked = checkpoint_pins.mark_removed

    def race(tx: Any, job: int, paths: list[str]) -> list[str]:
        if first == "pin":
            told.append(checkpoint_pins.pin(tx, 1, path, "s-1", 9))
        gone = marked(tx, job, paths)
        if first == "removal":
            told.append(checkpoint_pins.pin(tx, 1, path, "s-1", 9))
        return gone

    monkeypatch.setattr(checkpoint_pins, "mark_removed", race)
    target_retention_step(rig.platform, TargetProgress(), rig.clock.now())
    assert told == [first == "pin"]
    assert Path(path).exists() == told[0] == (3 in valid(rig))
