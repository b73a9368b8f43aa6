"""The search looks at real folders: mounts that are late, disks that do not answer, damage."""

import errno

import pytest

from phalanx.checkpoint import catalog
from phalanx.checkpoint.search import CheckpointSearch
from phalanx.core.contract.records import PhaseRecord, QuarantinedRecord, WarningRecord
from phalanx.core.training.checkpoints import MANIFEST
from phalanx.core.training.resumption import AWAITING, StartAction, StartWait
from phalanx.errors import CheckpointMissing
from support.faulty_files import FaultyFiles
from unit.checkpoint.test_catalog import line

pytestmark = pytest.mark.unit


@pytest.fixture
def said():
    return []


def search(store, wanted, said, wait_s=60.0):
    return CheckpointSearch(store, StartWait(str(store), wanted, wait_s), said.append)


def kinds(said, kind):
    return [one for one in said if isinstance(one, kind)]


def test_a_folder_that_comes_late_is_waited_for_and_the_place_is_named_once(tmp_path, said):
    store, away = tmp_path / "j-1", tmp_path / "away"
    paths = line(store, 9, 12, 14)
    store.rename(away)
    one = search(store, paths[-1].name, said)
    assert [one.next(at).action for at in (0.0, 1.0)] == [StartAction.WAIT] * 2
    assert PhaseRecord(AWAITING) in said
    (warning,) = kinds(said, WarningRecord)
    assert str(store) in warning.message
    assert paths[-1].name in warning.message
    away.rename(store)
    decision = one.next(2.0)
    assert [found.step for found in decision.order] == [14, 12, 9]
    assert said[-1] == PhaseRecord("restoring")


def test_a_folder_that_stays_away_fails_and_an_empty_one_too(tmp_path, said):
    (path,) = line(tmp_path / "old", 9)
    for store in (tmp_path / "none", tmp_path):
        one = search(store, path.name, said)
        assert one.next(0.0).action is StartAction.WAIT
        with pytest.raises(CheckpointMissing, match=path.name):
            one.next(60.0)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ELOOP, errno.EACCES])
@pytest.mark.parametrize("only", ["", MANIFEST])
def test_a_disk_that_does_not_answer_is_waited_for_and_nothing_is_quarantined(
    tmp_path, monkeypatch, said, number, only
):
    paths = line(tmp_path, 9, 12)
    faults = FaultyFiles(tmp_path, monkeypatch)
    faults.reading, faults.only = number, only
    for wanted in (None, paths[-1].name):
        one = search(tmp_path, wanted, said)
        assert one.next(0.0).action is StartAction.WAIT
    faults.heal()
    assert one.next(1.0).order[0].step == 12
    assert not kinds(said, QuarantinedRecord)


def test_damage_is_quarantined_and_when_nothing_is_left_that_is_said(tmp_path, said):
    first, second = line(tmp_path, 9, 12)
    (second / MANIFEST).write_bytes(b"[" * 100_000)
    one = search(tmp_path, second.name, said)
    assert [found.step for found in one.next(0.0).order] == [9]
    one.reject(first, "the bytes do not match")
    decision = one.next(0.0)
    assert decision.action is StartAction.BEGIN
    assert "all 2 checkpoints" in kinds(said, WarningRecord)[-1].message
    assert len(kinds(said, QuarantinedRecord)) == 2
    # The next start has no damaged checkpoint before it, only what was set aside.
    said.clear()
    assert search(tmp_path, None, said).next(0.0).action is StartAction.BEGIN
    assert "begins anew" in kinds(said, WarningRecord)[-1].message


def test_a_disk_that_goes_away_between_two_looks_damages_nothing(tmp_path, monkeypatch, said):
    paths = line(tmp_path, 9, 12)
    one = search(tmp_path, paths[-1].name, said)
    monkeypatch.setattr(catalog, "is_bad", lambda path: "")
    (paths[-1] / MANIFEST).unlink()
    assert one.next(0.0).action is StartAction.WAIT
    assert not kinds(said, QuarantinedRecord)


def test_what_cannot_be_quarantined_is_still_passed_over(tmp_path, monkeypatch, said):
    _, second = line(tmp_path, 9, 12)
    (second / MANIFEST).write_bytes(b"")
    FaultyFiles(tmp_path, monkeypatch).writing = errno.EROFS
    one = search(tmp_path, second.name, said)
    assert [found.step for found in one.next(0.0).order] == [9]
    assert "cannot be quarantined" in kinds(said, WarningRecord)[0].message
