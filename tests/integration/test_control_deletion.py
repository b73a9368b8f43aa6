"""Jobs are archived, pinned and deleted: nothing that is needed goes, and nothing is left behind."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from integration.rig import Rig, spec
from phalanx.checkpoint.commit import sealed
from phalanx.core.training.checkpoints import MANIFEST
from phalanx.errors import CheckpointNotFound, Conflict, NotFound
from phalanx.schemas.api.jobs import CloneRequest, SubmitRequest
from phalanx.schemas.wire import supervision as wire
from phalanx.services.batches import submit as batch_service
from phalanx.services.lifecycle import submit as submit_service
from phalanx.services.lifecycle.assignments import checkpoint_dir, contract_of
from phalanx.services.retention import files, work
from phalanx.services.retention.work import deletions_step
from phalanx.store import jobs
from phalanx.store.retention import deletions
from phalanx.store.schema import metadata
from phalanx.store.tables import checkpoints
from phalanx.store.tenancy.audit import AuditFilter, page
from support.manifests import manifest_of

pytestmark = pytest.mark.integration
SMALL = {"nodes": 1, "slots_per_node": 1}
HOUR_S = 3600.0


def ended(rig: Rig, steps: tuple[int, ...] = (10, 20), **changes: object) -> int:
    """A job that has ended with output, metrics, and checkpoints here and in its store."""
    num = rig.submit(resources=SMALL, **changes)
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started(pids=(1,))
    supervisor.step(0, 1)
    supervisor.log(0, b"abc\n")
    stored = rig.store.view(lambda tx: jobs.load(tx, num))
    folder = checkpoint_dir(rig.platform.home, stored.facts.project, num)
    contract = contract_of(stored.facts)
    for step in steps:
        commit(folder, step, contract.uid)
        if contract.roles[0].checkpoint.store is not None:
            commit(far_folder(rig, num), step, contract.uid)
        path = next(iter(folder.glob(f"step-{step:08d}-*")))
        seq, at = supervisor.next_seq(), supervisor.now()
        supervisor.sync(
            wire.CheckpointReport(
                seq=seq, generation=0, step=step, path=str(path), at=at, size_bytes=100
            )
        )
    rig.clock.advance(5)
    supervisor.ended(0, "succeeded", step=max(steps, default=1))
    supervisor.leave()
    rig.turn()
    node = rig.platform.home.node_dir(num, 1, 0)
    node.mkdir(parents=True, exist_ok=True)
    (node / "out").write_text("abc")
    assert rig.job(num).state == "succeeded"
    return num


def commit(folder: Path, step: int, uid: str) -> Path:
    made = manifest_of(step, root="r", job_uid=uid)
    path = folder / made.name
    path.mkdir(parents=True)
    (path / "state").write_bytes(b"x" * 50)
    (path / MANIFEST).write_bytes(sealed(made))
    return path


def far_folder(rig: Rig, num: int) -> Path:
    return rig.platform.home.root / "far" / "default" / f"j-{num}"


def with_store(rig: Rig) -> dict[str, object]:
    (rig.platform.home.root / "far").mkdir(exist_ok=True)
    return {"checkpoint": {"store": f"file://{rig.platform.home.root}/far"}}


def places(rig: Rig, num: int) -> list[Path]:
    home = rig.platform.home
    return [home.job_dir(num), home.checkpoints_dir / "default" / f"j-{num}", far_folder(rig, num)]


def rows_of(rig: Rig, num: int) -> dict[str, int]:
    """The number of rows of a job in each table that has any."""
    found = {}
    for table in metadata.sorted_tables:
        key = table.c.num if table.name in ("jobs", "job_listing") else table.c.get("job")
        if key is not None:
            query = select(func.count()).select_from(table).where(key == num)
            count = rig.store.view(lambda tx, q=query: tx.conn.execute(q).scalar_one())
            if count:
                found[table.name] = count
    return found


def sweep(rig: Rig) -> int | None:
    return deletions_step(rig.platform, rig.clock.now())


def assert_gone(rig: Rig, num: int) -> None:
    assert set(rows_of(rig, num)) <= deletions.KEPT_TABLES | {"deleted_jobs"}
    assert not any(one.exists() for one in places(rig, num))
    row = rig.store.view(lambda tx: deletions.find(tx, num))
    assert row is not None and row.done_at is not None and row.remains is None
    assert "cost_rows" in rows_of(rig, num)


def test_everything_of_a_job_goes_but_its_cost_and_what_was_deleted_by_whom(rig: Rig) -> None:
    num, other = ended(rig, **with_store(rig)), ended(rig, **with_store(rig))
    assert all(one.exists() for one in places(rig, num))
    before = rows_of(rig, other)
    plan = rig.client.retention.delete(num, dry_run=True)
    assert {one.kind: (one.items, one.num_bytes) for one in plan.sizes} == {
        "logs": (1, 4),
        "metrics": (1, 0),
        "checkpoints": (2, 200),
    }
    assert rig.job(num).state == "succeeded"
    rig.client.retention.delete(num)
    with pytest.raises(NotFound, match=rf"j-{num} \(digits\) was deleted by user:admin at 20"):
        rig.job(num)
    with pytest.raises(NotFound, match="was deleted"):
        rig.client.retention.delete(num)
    assert sweep(rig) is None
    assert_gone(rig, num)
    assert rows_of(rig, other) == before and all(one.exists() for one in places(rig, other))
    entry = rig.store.view(lambda tx: page(tx, AuditFilter(), before=None, limit=1))[0]
    (change,) = entry.changes
    assert entry.action.startswith("DELETE") and change["after"] is None
    assert (change["before"]["name"], change["before"]["owner"]) == ("digits", "ada")
    counted = rig.store.view(deletions.totals)
    assert counted["jobs", "request"][0] == 1 and counted["logs", "request"] == (1, 4)
    assert counted["checkpoints", "request"][0] == 4


def test_what_a_job_needs_keeps_it(rig: Rig) -> None:
    live = rig.submit(resources=SMALL)
    with pytest.raises(Conflict, match=f"j-{live} has not ended"):
        rig.client.retention.delete(live)
    num = ended(rig)
    rig.client.retention.pin(num)
    assert rig.job(num).pinned_by == "user:admin"
    with pytest.raises(Conflict, match="is pinned by user:admin"):
        rig.client.retention.delete(num)
    rig.client.retention.unpin(num)
    path = rig.client.retention.pin_checkpoint(num, "10").path
    assert [one.is_pinned for one in rig.client.checkpoints(num)] == [True, False]
    with pytest.raises(Conflict, match="1 of the checkpoints"):
        rig.client.retention.delete(num)
    assert rig.client.retention.unpin_checkpoint(num, path).pinned is False
    fork = rig.client.clone(num, CloneRequest(checkpoint="latest")).job
    assert fork is not None
    with pytest.raises(Conflict, match=rf"j-{fork.num} begins from a checkpoint"):
        rig.client.retention.delete(num)
    (held,) = rig.client.retention.delete(num, dry_run=True).in_the_way
    assert held.hold == "forked"
    rig.client.stop(fork.num)
    rig.client.retention.delete(num)
    sweep(rig)
    assert_gone(rig, num)
    kinds = [one.kind for one in rig.client.history(fork.num)]
    assert "cloned" in kinds and rig.job(fork.num).state == "cancelled"


def test_a_clone_of_a_job_that_was_deleted_meanwhile_is_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    num = ended(rig)
    from phalanx.services.changes import clone

    prepared = clone._prepared

    def slow(*given: object) -> object:
        found = prepared(*given)
        rig.client.retention.delete(num)
        return found

    monkeypatch.setattr(clone, "_prepared", slow)
    with pytest.raises(NotFound, match="was deleted"):
        rig.client.clone(num, CloneRequest(checkpoint="latest"))
    assert rig.client.jobs(limit=10).jobs == []


def test_a_store_that_is_away_is_tried_again_until_its_copies_are_gone(rig: Rig) -> None:
    num = ended(rig, **with_store(rig))
    away = rig.platform.home.root / "far"
    away.rename(away.with_name("unmounted"))
    rig.client.retention.delete(num)
    due = sweep(rig)
    row = rig.store.view(lambda tx: deletions.find(tx, num))
    assert due is not None and due > rig.clock.now()
    assert row.tries == 1 and "this machine does not see the folder" in row.error
    assert sweep(rig) == due  # not before it is due
    away.with_name("unmounted").rename(away)
    rig.clock.advance(2 * HOUR_S)
    assert sweep(rig) is None
    assert_gone(rig, num)


def held_up(rig: Rig) -> int:
    """A deleted job with a copy in a store that is away."""
    num = ended(rig, **with_store(rig))
    query = checkpoints.update().where(checkpoints.c.job == num, checkpoints.c.step == 20)
    rig.store.transact(lambda tx: tx.conn.execute(query.values(copy_state="stored", copy_bytes=90)))
    away = rig.platform.home.root / "far"
    away.rename(away.with_name("unmounted"))
    rig.client.retention.delete(num)
    assert sweep(rig) is not None
    return num


def test_copies_in_a_store_that_never_returns_are_given_up(rig: Rig) -> None:
    num = held_up(rig)
    (open_one,) = rig.client.retention.overview().deletions
    assert open_one.tries == 1
    view = rig.client.retention.abandon(num)
    assert view == rig.client.retention.abandon(num)
    store = f"file://{far_folder(rig, num)}"
    assert (view.stores, view.num_checkpoints, view.num_bytes) == ([store], 1, 90)
    assert [one[:13] for one in view.checkpoints] == ["step-00000020"]
    assert (view.deleted_by, view.abandoned_by) == ("user:admin", "user:admin")
    entry = rig.store.view(lambda tx: page(tx, AuditFilter(), before=None, limit=2))[1]
    (change,) = entry.changes
    assert entry.action.endswith("/deletion/abandon")
    assert change["after"]["left"]["stores"] == [store]
    assert change["after"]["abandoned_by"] == "user:admin"
    # It is due at once, however long the store was to be waited for.
    assert sweep(rig) is None
    assert set(rows_of(rig, num)) <= deletions.KEPT_TABLES | {"deleted_jobs"}
    assert not any(one.exists() for one in places(rig, num))
    row = rig.store.view(lambda tx: deletions.find(tx, num))
    assert row is not None and row.done_at is not None and "does not see the folder" in row.error
    overview = rig.client.retention.overview()
    assert (overview.deletions, overview.abandoned) == ([], [view])
    with pytest.raises(NotFound, match=r"user:admin gave up its copies in the object store"):
        rig.job(num)
    away = rig.platform.home.root / "far"
    away.with_name("unmounted").rename(away)
    rig.clock.advance(2 * HOUR_S)
    assert sweep(rig) is None and len(list(far_folder(rig, num).glob("step-*"))) == 2


def test_only_what_a_store_holds_up_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    num = ended(rig, **with_store(rig))

    def refused(why: str, job: int = num) -> None:
        with pytest.raises(Conflict, match=why):
            rig.client.retention.abandon(job)

    with pytest.raises(NotFound, match="there is no job j-99"):
        rig.client.retention.abandon(99)
    refused("is not deleted: there is nothing to give up")
    rig.client.retention.delete(num)
    refused("the deletion of j-1 has not failed")
    sweep(rig)
    refused("everything of j-1 is deleted")
    assert_gone(rig, num)
    other = ended(rig)
    with monkeypatch.context() as patch:
        patch.setattr(files, "is_held", lambda node: True)
        rig.client.retention.delete(other)
        sweep(rig)
    refused("j-2 has no copies in a store", other)
    rig.clock.advance(HOUR_S)
    sweep(rig)
    assert_gone(rig, other)


def test_a_try_that_fails_meanwhile_does_not_put_off_what_was_given_up(rig: Rig) -> None:
    num = held_up(rig)
    rig.client.retention.abandon(num)
    later = rig.clock.now() + 10**12
    rig.store.transact(
        lambda tx: deletions.retry(tx, num, tries=2, not_before=later, error="too late")
    )
    assert sweep(rig) is None
    row = rig.store.view(lambda tx: deletions.find(tx, num))
    assert row is not None and row.done_at is not None and row.error != "too late"


def resumed(num: int, **more: object) -> SubmitRequest:
    wanted = {"checkpoint": {"resume_from": f"j-{num}@10"}}
    return SubmitRequest(spec=spec(resources=SMALL, **wanted, **more))


def test_jobs_that_resume_from_a_checkpoint_keep_its_job(rig: Rig) -> None:
    num = ended(rig)
    one = rig.client.submit(resumed(num)).job
    assert one is not None
    requests = [resumed(num, name="b"), resumed(num, array="0-1")]
    batch = [made.num for made in rig.client.submit_batch(requests).jobs]
    assert len(batch) == 3
    for other in (one.num, *batch):
        found = rig.client.provenance(other).begins_from
        assert found is not None and (found.job, found.step) == (num, 10)
        assert "resume_chosen" in [event.kind for event in rig.client.history(other)]
    names = ", ".join(f"j-{other}" for other in (one.num, *batch))
    with pytest.raises(Conflict, match=f"{names} begins from a checkpoint of j-{num}"):
        rig.client.retention.delete(num)
    for other in (*reversed(batch), one.num):
        rig.client.stop(other)
    rig.client.retention.delete(num)
    sweep(rig)
    assert_gone(rig, num)
    # What the job began from is still known of those that it was of use to.
    assert rig.client.provenance(one.num).begins_from.job == num


@pytest.mark.parametrize("way", ["submit", "batch"])
def test_a_job_that_was_deleted_meanwhile_is_resumed_from_by_none(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    num = ended(rig)
    module = submit_service if way == "submit" else batch_service
    prepare = module.prepare

    def slow(*given: Any, **named: Any) -> Any:
        found = prepare(*given, **named)
        rig.client.retention.delete(num)
        return found

    monkeypatch.setattr(module, "prepare", slow)
    client = rig.client
    ways = {"submit": client.submit, "batch": lambda one: client.submit_batch([one])}
    with pytest.raises(NotFound, match=rf"j-{num} \(digits\) was deleted"):
        ways[way](resumed(num))
    assert client.jobs(limit=9).jobs == []


class Cut(Exception):
    pass


CUTS = (
    (files, "remove_near"),
    (files, "remove_copies"),
    (work, "_remove_code"),
    (deletions, "drop_rows"),
    (deletions, "finish"),
    (deletions, "count"),
)


@pytest.mark.parametrize(("module", "name"), CUTS, ids=[name for _, name in CUTS])
@pytest.mark.parametrize("is_after", [False, True])
def test_a_deletion_that_is_cut_at_any_step_is_completed_by_the_next_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, module: object, name: str, is_after: bool
) -> None:
    num = ended(rig, **with_store(rig))
    rig.client.retention.delete(num)
    whole = getattr(module, name)

    def cut(*given: object, **rest: object) -> object:
        if is_after:
            whole(*given, **rest)
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(module, name, cut)
        # Without a digest of code there is no step that deletes it.
        if name == "_remove_code":
            sweep(rig)
        else:
            with pytest.raises(Cut):
                sweep(rig)
    sweep(rig)
    assert_gone(rig, num)


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "lines", [9, *(pytest.param(one, marks=pytest.mark.extras) for one in (1, 3, 6, 12, 15))]
)
def test_sigkill_at_any_point_leaves_what_the_next_sweep_completes(rig: Rig, lines: int) -> None:
    nums = [ended(rig, **with_store(rig)) for _ in range(2)]
    for num in nums:
        rig.client.retention.delete(num)
    words = [sys.executable, "-m", "integration.deletion_worker", str(rig.platform.home.root)]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
    assert all(said) and "done\n" not in said
    rig.clock.advance(HOUR_S)
    assert sweep(rig) is None
    for num in nums:
        assert_gone(rig, num)


def test_it_is_said_of_every_table_whether_its_rows_go_with_their_job() -> None:
    of_jobs = {table.name for table in metadata.sorted_tables if "job" in table.c}
    assert of_jobs == deletions.DELETED_TABLES | deletions.KEPT_TABLES | {"deleted_jobs"}
    assert not deletions.DELETED_TABLES & deletions.KEPT_TABLES


def test_rows_go_in_batches(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    num = ended(rig)
    rig.client.retention.delete(num)
    counts = [rows_of(rig, num)["events"]]
    assert counts[0] > 6
    while rig.store.transact(lambda tx: deletions.drop_rows(tx, num, limit=3)):
        counts.append(rows_of(rig, num).get("events", 0))
    assert all(0 <= a - b <= 3 for a, b in itertools.pairwise(counts))
    assert counts[-1] == 0


def test_a_held_folder_and_the_files_of_another_database_stay(rig: Rig) -> None:
    num = ended(rig, steps=(10,))
    folder = places(rig, num)[1]
    other = commit(folder, 99, "another-database:1")
    outside = rig.platform.home.root / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    (folder / "step-00000050-00000000").symlink_to(outside)
    rig.client.retention.delete(num)
    assert sweep(rig) is None
    assert other.is_dir() and [one.name for one in folder.iterdir()] == [other.name]
    assert (outside / "file").exists()


def test_only_jobs_that_have_ended_are_archived_and_listings_leave_them_out(rig: Rig) -> None:
    num, other = ended(rig), ended(rig)
    live = rig.submit(resources=SMALL)
    with pytest.raises(Conflict, match="only jobs that have ended can be archived"):
        rig.client.retention.archive(live)
    for _ in range(2):
        assert rig.client.retention.archive(num).archived_at is not None

    def listed(**given: object) -> list[int]:
        return [one.num for one in rig.client.jobs(**given).jobs]

    assert listed() == [live, other]
    assert listed(archived="only") == [num]
    assert listed(archived="include") == [live, other, num]
    rig.client.retention.unarchive(num)
    assert listed() == [live, other, num]
    kinds = [one.kind for one in rig.client.history(num)]
    assert kinds.count("archived") == kinds.count("unarchived") == 1
    rig.check_log(num)


def test_the_ranks_of_a_live_job_learn_of_pins(rig: Rig) -> None:
    from phalanx.checkpoint import retain
    from phalanx.core.training.checkpoints import Keep

    num = rig.submit(resources=SMALL)
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started(pids=(1,))
    stored = rig.store.view(lambda tx: jobs.load(tx, num))
    folder = checkpoint_dir(rig.platform.home, stored.facts.project, num)
    for step in (10, 20, 30):
        path = commit(folder, step, contract_of(stored.facts).uid)
        seq, at = supervisor.next_seq(), supervisor.now()
        supervisor.sync(
            wire.CheckpointReport(seq=seq, generation=0, step=step, path=str(path), at=at)
        )
    pinned = rig.client.retention.pin_checkpoint(num, "10").path
    kept = Keep(last=1)
    gone = retain(folder, kept, check=lambda path: None)
    assert [one.step for one in gone] == [20] and Path(pinned).is_dir()
    rig.client.retention.unpin_checkpoint(num, "10")
    assert [one.step for one in retain(folder, kept, check=lambda path: None)] == [10]
    supervisor.sync(
        wire.CheckpointReport(
            seq=supervisor.next_seq(),
            generation=0,
            step=40,
            path="/elsewhere/step-00000040-00000040",
            at=supervisor.now(),
        )
    )
    with pytest.raises(Conflict, match="does not see the folder"):
        rig.client.retention.pin_checkpoint(num, "40")
    with pytest.raises(CheckpointNotFound):
        rig.client.retention.pin_checkpoint(num, "41")
