"""Changes to jobs after their submission, through the real routes."""

from __future__ import annotations

import hashlib
import io
import itertools
import tarfile
from typing import Any

import pytest
from tests.integration.rig import Rig, ScriptedSupervisor, spec

from phalanx.core.contract.job import JobContract
from phalanx.core.contract.resume import ResumeSource
from phalanx.errors import (
    CheckpointNotFound,
    Conflict,
    NotFound,
    PreconditionFailed,
    SpecInvalid,
)
from phalanx.executors.protocol import SupervisorRef
from phalanx.schemas.api.jobs import ChangeRequest, CloneRequest, JobView, SubmitRequest
from phalanx.schemas.api.provenance import SourceRequest
from phalanx.schemas.wire import supervision as wire
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.store import jobs, tables

pytestmark = pytest.mark.integration


def change(rig: Rig, num: int, if_match: str | None = None, **settings: Any) -> JobView:
    return rig.client.change(num, ChangeRequest(**settings), if_match=if_match)


def changes_of(rig: Rig, num: int) -> list[dict[str, Any]]:
    return [one.data for one in rig.client.history(num) if one.kind == "settings_changed"]


def running(rig: Rig, **spec: Any) -> int:
    num = rig.submit(**spec)
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    assert rig.job(num).state == "running"
    return num


def test_settings_change_with_an_event_that_says_before_and_after(rig: Rig) -> None:
    num = rig.submit(labels={"team": "vision", "run": "1"}, max_duration="2h")
    view = change(
        rig,
        num,
        name="renamed",
        description="The second try",
        labels={"team": "nlp", "run": None, "new": "x"},
        priority="high",
        max_duration=None,
    )
    assert (view.name, view.description, view.priority) == ("renamed", "The second try", 75)
    assert view.labels == {"team": "nlp", "new": "x"}
    (data,) = changes_of(rig, num)
    assert data["before"] == {
        "name": "digits",
        "description": None,
        "labels": {"team": "vision", "run": "1"},
        "priority": 50,
        "max_duration": "2h",
    }
    assert data["after"]["labels"] == view.labels
    assert (data["after"]["priority"], data["after"]["max_duration"]) == (75, None)
    assert (view.spec or {})["name"] == "renamed"
    change(rig, num, priority=75)  # it is so already
    assert len(changes_of(rig, num)) == 1
    rig.check_log(num)


def test_the_planner_sees_a_new_priority_at_its_next_pass(rig: Rig) -> None:
    running(rig)  # it holds every slot
    first, second = rig.submit(), rig.submit()
    rig.turn()
    change(rig, second, priority=90)
    rig.client.stop(1, grace_s=0)
    supervisor = rig.supervisor(1)
    supervisor.sync()
    supervisor.ended(outcome="stopped")
    supervisor.leave()
    for _ in range(3):
        rig.turn(1.0)
    assert (rig.job(first).state, rig.job(second).state) == ("queued", "starting")


def test_a_limit_that_is_set_while_the_job_runs_ends_it(rig: Rig) -> None:
    num = running(rig)
    rig.turn(60.0)
    with pytest.raises(Conflict, match="would fail at once"):
        change(rig, num, max_duration="30s")
    change(rig, num, max_duration="90s")
    rig.turn(29.0)
    assert rig.job(num).state == "running"
    rig.turn(2.0)
    view = rig.job(num)
    assert (view.state, view.goal) == ("stopping", "fail")
    assert "max_duration" in view.reason.message
    rig.check_log(num)


def test_the_pool_of_a_job_that_holds_slots_cannot_change(rig: Rig) -> None:
    num = running(rig)
    with pytest.raises(Conflict, match="is running and holds slots of local: the pool"):
        change(rig, num, pool=["local"])
    assert changes_of(rig, num) == []
    waits = rig.submit()
    assert (change(rig, waits, pool=["local"]).spec or {})["pool"] == ["local"]
    with pytest.raises(SpecInvalid, match="there is no such pool"):
        change(rig, waits, pool=["elsewhere"])


def test_of_a_job_that_has_ended_only_what_describes_it_changes(rig: Rig) -> None:
    num = rig.submit()
    rig.client.stop(num)
    view = change(rig, num, name="kept", labels={"paper": "1"})
    assert (view.state, view.name, view.labels) == ("cancelled", "kept", {"paper": "1"})
    for setting in ({"priority": 90}, {"pool": ["local"]}, {"max_duration": "1h"}):
        with pytest.raises(Conflict, match="has ended"):
            change(rig, num, **setting)
    rig.check_log(num)


def test_a_change_is_for_the_settings_that_were_read(rig: Rig) -> None:
    num = rig.submit()
    read = rig.job(num)
    rig.turn()  # progress of the job is no change of its settings
    change(rig, num, if_match=read.etag, priority=60)
    with pytest.raises(PreconditionFailed, match="have changed since you read them"):
        change(rig, num, if_match=read.etag, priority=70)
    assert rig.job(num).priority == 60


def test_settings_are_checked_as_at_the_submission(rig: Rig) -> None:
    num = rig.submit()
    rig.client.apply_projects({"schema": 1, "projects": [{"name": "default", "max_priority": 60}]})
    with pytest.raises(SpecInvalid) as raised:
        change(rig, num, priority=70)
    assert [one.path for one in raised.value.problems] == ["priority"]
    with pytest.raises(SpecInvalid, match="max_duration"):
        change(rig, num, max_duration="soon")
    with pytest.raises(SpecInvalid, match="priority"):
        change(rig, num, priority="highest")
    assert changes_of(rig, num) == []


# -- clones ----------------------------------------------------------------------------------------


def contract(rig: Rig, num: int) -> JobContract:
    return contract_of(rig.store.view(lambda tx: jobs.load(tx, num)).facts)


def test_a_clone_has_the_spec_the_code_and_the_environment(rig: Rig) -> None:
    archive = io.BytesIO()
    tarfile.open(fileobj=archive, mode="w").close()
    digest = hashlib.sha256(archive.getvalue()).hexdigest()
    rig.client.put_code(digest, archive.getvalue())
    env = {"PLAIN": "1", "DB_PASSWORD": "correct horse"}
    first = rig.client.submit(
        SubmitRequest(
            spec=spec(env={"SEED": "7", "API_TOKEN": "tok-first"}, labels={"a": "b"}),
            code=digest,
            kind="run",
            caller_cwd="/tmp",
            caller_env=env,
            owner="ada",
        )
    ).job
    assert first is not None and first.withheld == ["API_TOKEN", "DB_PASSWORD"]
    with pytest.raises(SpecInvalid, match=r"env\.API_TOKEN: the value was withheld"):
        rig.client.clone(first.num)
    secrets = {"API_TOKEN": "tok-again"}
    made = rig.client.clone(first.num, CloneRequest(secrets=secrets, owner="bob"))
    assert made.job is not None and made.job.owner == "bob"
    assert made.notes == [
        "without the secret variables DB_PASSWORD: their values are stored nowhere"
    ]
    view = rig.job(made.job.num)
    assert (view.spec, view.code, view.kind) == (rig.job(first.num).spec, digest, "run")
    one, two = (rig.store.view(lambda tx, n=n: jobs.load(tx, n)).facts for n in (1, 2))
    assert (one.caller_env, one.caller_cwd) == (two.caller_env, two.caller_cwd)
    assert one.caller_env == {"PLAIN": "1"}
    (note,) = (event for event in rig.client.history(view.num) if event.kind == "cloned")
    assert note.data == {"job": first.num, "checkpoint": None}
    rig.check_log(view.num)


def test_a_clone_takes_changes_by_their_paths_and_is_made_once(rig: Rig) -> None:
    num = rig.submit(env={"A": "1"})
    asked = CloneRequest(set={"resources.slots_per_node": 2, "env.B": "2", "name": "again"})
    made = [rig.client.clone(num, asked, key="once").job for _ in range(2)]
    assert [one and one.num for one in made] == [num + 1, num + 1]
    view = rig.job(num + 1)
    assert (view.name, view.num_slots) == ("again", 2)
    assert (view.spec or {})["env"] == {"A": "1", "B": "2"}
    with pytest.raises(SpecInvalid, match=r"resources\.slot"):
        rig.client.clone(num, CloneRequest(set={"resources.slot": 2}))
    with pytest.raises(SpecInvalid, match="name has no keys"):
        rig.client.clone(num, CloneRequest(set={"name.first": "x"}))


def test_a_clone_begins_from_a_checkpoint_of_the_job(rig: Rig) -> None:
    num = running(rig, checkpoint={"keep": {"best": {"metric": "acc", "mode": "max"}}})
    supervisor = ScriptedSupervisor(rig, SupervisorRef(num, 1, 0))
    supervisor.numbers = itertools.count(10)
    for step, acc in ((10, 0.9), (20, 0.5)):
        supervisor.sync(
            wire.CheckpointReport(
                seq=supervisor.next_seq(),
                generation=0,
                step=step,
                path=f"/c/step-{step}-abc",
                size_bytes=1,
                metrics={"acc": acc},
                at=supervisor.now(),
            )
        )
    for wanted, step in (("latest", 20), ("best", 10), ("10", 10), ("step-20-abc", 20)):
        made = rig.client.clone(num, CloneRequest(checkpoint=wanted, set={"params.lr": 0.1})).job
        assert made is not None
        found = contract(rig, made.num)
        trial = found.trial
        assert trial is not None and not trial.is_trial and trial.params == {"lr": 0.1}
        assert found.resume == ResumeSource((f"/c/step-{step}-abc",), num, step)
    with pytest.raises(CheckpointNotFound, match="no valid checkpoint '30'"):
        rig.client.clone(num, CloneRequest(checkpoint="30"))


def test_a_job_without_its_code_is_not_cloned(rig: Rig) -> None:
    num = rig.submit()
    gone = tables.jobs.update().values(code_digest="0" * 64)
    rig.store.transact(lambda tx: tx.conn.execute(gone))
    with pytest.raises(NotFound, match="the code of j-1 is not stored any more"):
        rig.client.clone(num)


def test_provenance_leads_to_all_that_a_job_was_made_of_and_a_clone_has_the_same(rig: Rig) -> None:
    source = SourceRequest(
        commit="a" * 40, branch="topic", changed=["train.py"], num_changed=1, diff_digest="b" * 64
    )
    env = {"LR": "0.1", "API_TOKEN": "very-secret-value"}
    request = SubmitRequest(spec=spec(env=env), owner="ada", source=source)
    num = rig.client.submit(request).job.num
    rig.turn()
    found = rig.client.provenance(num)
    assert found.source is not None and found.source.model_dump() == source.model_dump()
    assert (found.owner, found.env["LR"]) == ("ada", "0.1")
    assert "very-secret-value" not in found.model_dump_json()
    assert [(one.attempt, len(one.nodes)) for one in found.places] == [(1, 1)]
    again = rig.client.clone(num, CloneRequest(secrets={"API_TOKEN": "other"})).job
    changed = rig.client.clone(
        num, CloneRequest(secrets={"API_TOKEN": "other"}, set={"env.LR": "0.2"})
    ).job
    assert again is not None and changed is not None
    same = rig.client.provenance(again.num)
    assert (same.digest, same.source) == (found.digest, found.source)
    assert same.cloned_from is not None and same.cloned_from.job == num
    assert rig.client.provenance(changed.num).digest != found.digest
    with pytest.raises(NotFound):
        rig.client.provenance(99)
