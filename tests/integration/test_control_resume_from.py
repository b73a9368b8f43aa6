"""`checkpoint.resume_from`: what it names at the submission, and whether the caller may read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration.rig import Rig, ScriptedSupervisor, spec
from phalanx.core.contract.access import Scope
from phalanx.core.contract.resume import ResumeSource
from phalanx.core.tenancy.principals import Caller, Principal
from phalanx.core.tenancy.roles import UserRole
from phalanx.errors import CheckpointNotFound, SpecInvalid
from phalanx.schemas.api.jobs import CloneRequest, SubmitRequest
from phalanx.schemas.wire import supervision as wire
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.services.lifecycle.submit import check
from phalanx.store import jobs
from support.checkpoints import commit

pytestmark = pytest.mark.integration
SMALL = {"nodes": 1, "slots_per_node": 1}
NAME = "step-{:08d}-0a1b2c3d"


def saved(rig: Rig, *steps: int, folder: str = "/c", copies: bool = False, **more: Any) -> int:
    """A job with checkpoints of some steps; the metric `acc` falls."""
    num = rig.submit(resources=SMALL, **more)
    rig.turn()
    one = rig.supervisor(num)
    one.ready()
    one.started()
    for step in steps:
        path = f"{folder}/{NAME.format(step)}"
        _commit(one, step, path)
        if copies:
            one.sync(
                wire.CheckpointCopyReport(
                    seq=one.next_seq(),
                    generation=0,
                    name=NAME.format(step),
                    state="stored",
                    at=one.now(),
                )
            )
    return num


def _commit(one: ScriptedSupervisor, step: int, path: str) -> None:
    one.sync(
        wire.CheckpointReport(
            seq=one.next_seq(),
            generation=0,
            step=step,
            path=path,
            size_bytes=1,
            metrics={"acc": 1 / step},
            at=one.now(),
        )
    )


def begins(rig: Rig, wanted: str, **more: Any) -> ResumeSource | None:
    num = rig.submit(resources=SMALL, checkpoint={"resume_from": wanted}, **more)
    return contract_of(rig.store.view(lambda tx: jobs.load(tx, num)).facts).resume


def refused(rig: Rig, wanted: str, why: str, **more: Any) -> None:
    with pytest.raises(SpecInvalid, match=why) as caught:
        rig.submit(resources=SMALL, checkpoint={"resume_from": wanted}, **more)
    assert [one.path for one in caught.value.problems] == ["checkpoint.resume_from"]


def test_a_job_and_one_of_its_checkpoints_are_named_in_every_form(rig: Rig) -> None:
    best = {"keep": {"best": {"metric": "acc", "mode": "max"}}}
    num = saved(rig, 10, 20, checkpoint=best)
    for wanted, step in (
        (f"j-{num}", 20),
        (f"j-{num}@latest", 20),
        (f"j-{num}@best", 10),
        (f"j-{num}@10", 10),
        (f"j-{num}@{NAME.format(20)}", 20),
    ):
        assert begins(rig, wanted) == ResumeSource((f"/c/{NAME.format(step)}",), num, step)
    refused(rig, f"j-{num}@30", "j-1 has no valid checkpoint '30'")
    refused(rig, "j-99", "there is no job j-99")
    for wrong in ("j-0", "somewhere/else", "j-1@", "ftp://x/y", "/a/../b"):
        refused(rig, wrong, "must be|at most")


def test_the_choice_is_made_once_and_is_an_event_of_the_job(rig: Rig) -> None:
    num = saved(rig, 10)
    other = rig.submit(resources=SMALL, name="next", checkpoint={"resume_from": f"j-{num}"})
    _commit_later(rig, num, 40)
    (note,) = [one for one in rig.client.history(other) if one.kind == "resume_chosen"]
    assert (note.data["job"], note.data["step"]) == (num, 10)
    rig.turn()
    resume = rig.supervisor(other).assignment.resume
    assert resume is not None and resume.places == [f"/c/{NAME.format(10)}"]
    found = rig.client.provenance(other).begins_from
    assert found is not None and (found.job, found.step) == (num, 10)
    # A clone begins from the same one, although a newer one is there.
    again = rig.client.clone(other).job.num
    assert rig.client.provenance(again).begins_from == found
    assert rig.client.provenance(again).digest == rig.client.provenance(other).digest


def _commit_later(rig: Rig, num: int, step: int) -> None:
    one = rig.supervisor(num)
    for _ in range(50):
        one.next_seq()
    _commit(one, step, f"/c/{NAME.format(step)}")


def test_latest_is_the_newest_of_the_jobs_with_that_name_or_nothing(rig: Rig) -> None:
    assert begins(rig, "latest", name="nightly") is None
    first = saved(rig, 10, name="nightly")
    saved(rig, 30, name="another")
    assert begins(rig, "latest", name="nightly") == ResumeSource(
        (f"/c/{NAME.format(10)}",), first, 10
    )
    notes = [one for one in rig.client.history(1) if one.kind == "resume_chosen"]
    assert [one.data["path"] for one in notes] == [None]


def test_a_copy_in_the_object_store_is_a_second_place(rig: Rig) -> None:
    store = {"store": "s3://bucket/ckpt", "keep": {"last": 3}}
    num = saved(rig, 10, checkpoint=store, copies=True)
    found = begins(rig, f"j-{num}")
    url = f"s3://bucket/ckpt/default/j-{num}/{NAME.format(10)}"
    assert found == ResumeSource((f"/c/{NAME.format(10)}", url), num, 10)
    # The same by its URL belongs to that job.
    assert begins(rig, url) == ResumeSource((url,), num)
    assert begins(rig, "s3://other/place") == ResumeSource(("s3://other/place",))


def test_a_path_of_this_machine_has_to_hold_a_checkpoint(rig: Rig, tmp_path: Path) -> None:
    path = commit(tmp_path / "store", 3)
    for place in (path, path.parent):
        assert begins(rig, str(place)) == ResumeSource((str(place),))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for place in ("empty", "file", "typo"):
        refused(rig, str(tmp_path / place), "there is no committed checkpoint here")
    # A folder of the nodes that this machine does not have.
    assert begins(rig, "/not/here/at-all") == ResumeSource(("/not/here/at-all",))


def test_only_checkpoints_of_projects_that_the_caller_may_read_are_found(
    rig: Rig, tmp_path: Path
) -> None:
    folder = rig.platform.home.checkpoints_dir / "default" / "j-1"
    path = commit(folder, 3)
    num = saved(rig, 3, folder=str(folder), checkpoint={"store": "s3://bucket/ckpt"})
    assert num == 1
    link = tmp_path / "link"
    link.symlink_to(path)
    url = f"s3://bucket/ckpt/default/j-1/{path.name}"
    places = ["j-1", str(path), str(folder), str(link), url, str(rig.platform.home.checkpoints_dir)]

    def problems(by: Caller | None, project: str) -> list[str]:
        found = []
        for place in places:
            body = spec(resources=SMALL, project=project, checkpoint={"resume_from": place})
            try:
                check(rig.platform, SubmitRequest(spec=body), by=by)
            except SpecInvalid as error:
                found.append(error.problems[0].message)
        return found

    none = "there is no committed checkpoint here"
    # The platform itself reads those of the job's own project alone, as for trials of a study.
    assert problems(None, "other") == ["there is no job j-1", *[none] * 5]
    assert problems(None, "default") == [none]
    stranger = Caller("t1", (Scope.ADMIN,), Principal("user:bob", {"other": UserRole.ADMIN}))
    assert problems(stranger, "other") == ["there is no job j-1", *[none] * 5]
    both = {"other": UserRole.MEMBER, "default": UserRole.VIEWER}
    reader = Caller("t2", (Scope.SUBMIT,), Principal("user:eve", both))
    assert problems(reader, "other") == [none]


def test_a_clone_begins_from_a_checkpoint_also_of_a_job_with_a_folder(rig: Rig) -> None:
    num = saved(rig, 10, checkpoint={"directory": "out"})
    made = rig.client.clone(num, CloneRequest(checkpoint="latest")).job.num
    facts = rig.store.view(lambda tx: jobs.load(tx, made)).facts
    assert contract_of(facts).resume == ResumeSource((f"/c/{NAME.format(10)}",), num, 10)
    assert facts.spec["checkpoint"]["resume_from"] == f"j-{num}@{NAME.format(10)}"
    with pytest.raises(CheckpointNotFound):
        rig.client.clone(num, CloneRequest(checkpoint="77"))
