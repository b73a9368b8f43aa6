"""Data residency through the API: jobs, pools and stores of a region, by every way to submit."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from typer.testing import CliRunner

from integration.rig import Rig, spec
from phalanx.cli.app import app
from phalanx.cli.terminal.output import notice
from phalanx.cli.verbs import pools
from phalanx.errors import PlatformError, SpecInvalid
from phalanx.schemas.api.jobs import ChangeRequest, CloneRequest, SubmitRequest
from phalanx.schemas.api.schedules import PutScheduleRequest
from phalanx.schemas.api.studies import SubmitStudyRequest
from phalanx.schemas.wire import supervision as wire
from phalanx.services.schedules.fire import schedules_step
from phalanx.store.tenancy.audit import AuditFilter, page

pytestmark = pytest.mark.integration

STORES = [
    {"url": "s3://eu-data", "residency": "eu"},
    {"url": "s3://us-data", "residency": "us"},
]


def apply_pools(rig: Rig, **places: str | None) -> list[str]:
    """A pool of two nodes for each name, in its place; None: without the label."""
    made = [
        {
            "name": name,
            "nodes": [{"name": f"{name}-n", "count": 2, "slots": 4}],
            "labels": {} if place is None else {"residency": place},
        }
        for name, place in places.items()
    ]
    rig.clock.advance(1)
    return rig.client.apply_pools({"schema": 1, "pools": made}).warnings


def apply_projects(rig: Rig, *projects: dict[str, Any], stores: Any = STORES) -> list[str]:
    rig.clock.advance(1)
    file = {"schema": 1, "projects": list(projects), "stores": stores}
    return rig.client.apply_projects(file).warnings


@pytest.fixture
def here(rig: Rig) -> Rig:
    """Pools in two places and in none, and a project that is bound to one."""
    apply_pools(rig, america="us", nowhere=None, europe="eu")
    apply_projects(
        rig, {"name": "lab", "residency": ["eu", "ch"]}, {"name": "part", "parent": "lab"}
    )
    return rig


def pool_of(rig: Rig, num: int) -> str:
    rig.turn()
    nodes = rig.job(num).nodes
    return nodes[0].node.removesuffix("-n-0").removesuffix("-n-1") if nodes else ""


def test_jobs_run_in_pools_of_their_residency_alone(here: Rig) -> None:
    assert pool_of(here, here.submit(project="part")) == "europe"
    assert pool_of(here, here.submit(residency="us")) == "america"
    assert pool_of(here, here.submit(project="lab", pool=["america", "europe"])) == "europe"
    # Both nodes of Europe are taken, and others are free.
    third = here.submit(project="lab")
    here.turn()
    assert here.job(third).state == "queued"
    with pytest.raises(SpecInvalid, match=r"residency: no node has this residency.*known: eu, us"):
        here.submit(residency=["ch"])
    with pytest.raises(SpecInvalid, match=r"known: us \(of pool america\)"):
        here.submit(project="lab", pool="america")
    with pytest.raises(SpecInvalid, match="the job allows us; project lab allows eu, ch"):
        here.submit(project="part", residency="us")


def test_stores_outside_are_refused_and_both_are_named(here: Rig) -> None:
    outside = (
        r"checkpoint.store: lies in store s3://us-data, residency us; project lab allows eu, ch"
    )
    with pytest.raises(SpecInvalid, match=outside):
        here.submit(project="part", checkpoint={"store": "s3://us-data/runs"})
    with pytest.raises(SpecInvalid, match=r"data.set: lies in no store with a residency"):
        here.submit(project="lab", data={"set": "https://files.example.org/set.tar"})
    inside = {"checkpoint": {"store": "s3://eu-data/runs"}, "data": {"set": "s3://eu-data/set"}}
    assert pool_of(here, here.submit(project="lab", **inside)) == "europe"
    # Jobs without a rule are free.
    assert here.submit(checkpoint={"store": "s3://us-data/runs"}, data={"a": "s3://other/x"})


STUDY = {
    "kind": "study",
    "name": "lr",
    "objective": {"metric": "loss"},
    "search": {"method": "grid", "seed": 1},
    "space": {"lr": {"values": [0.1, 0.2]}},
    "job": {"run": ["python", "t.py", "${params.lr}"], "project": "lab"},
}


@pytest.mark.parametrize("way", ["array", "batch", "clone", "study", "template", "schedule"])
def test_every_way_to_submit_obeys(here: Rig, way: str) -> None:
    there = {"checkpoint": {"store": "s3://us-data/runs"}}
    bad = spec(project="lab", **there)
    client = here.client
    first = here.submit(checkpoint=there["checkpoint"])

    def template() -> None:
        client.templates.put("t", {"schema": 1, "job": bad}, "lab")

    ways = {
        "array": lambda: client.submit_batch([SubmitRequest(spec=bad | {"array": "0-2"})]),
        "batch": lambda: client.submit_batch([SubmitRequest(spec=spec()), SubmitRequest(spec=bad)]),
        "clone": lambda: client.clone(first, CloneRequest(set={"project": "lab"})),
        "study": lambda: client.studies.submit(
            SubmitStudyRequest(spec=STUDY | {"job": STUDY["job"] | there}, owner="ada")
        ),
        "template": template,
        "schedule": lambda: client.schedules.put(
            "s", PutScheduleRequest(spec=bad, cron="0 * * * *", owner="ada"), "lab"
        ),
    }
    with pytest.raises(PlatformError, match="s3://us-data, residency us; project lab allows eu"):
        ways[way]()
    assert [one.num for one in client.jobs().jobs] == [first]


def test_a_due_schedule_and_a_changed_pool_obey(here: Rig) -> None:
    request = PutScheduleRequest(spec=spec(residency="us"), cron="0 * * * *", owner="ada")
    made = here.client.schedules.put("nightly", request)
    apply_projects(here, {"name": "default", "residency": ["eu"]})
    assert made.next_at is not None
    here.clock.advance(made.next_at.timestamp() - here.clock.now() / 1e6)
    schedules_step(here.platform, here.clock.now())
    (run,) = here.client.schedules.show("nightly").runs
    assert (
        run.outcome == "refused" and "the job allows us; project default allows eu" in run.message
    )
    num = here.submit(pool="europe")
    with pytest.raises(SpecInvalid, match=r"known: us \(of pool america\)"):
        here.client.change(num, ChangeRequest(pool=["america"]))


def test_a_job_that_begins_from_a_checkpoint_stays_where_it_had_to_be(here: Rig) -> None:
    here.submit(project="lab")
    here.turn()
    supervisor = here.supervisor(1)
    supervisor.ready()
    supervisor.started()
    saved = wire.CheckpointReport(
        seq=supervisor.next_seq(), generation=0, at=supervisor.now(), step=4, path="/c/step-4"
    )
    supervisor.sync(saved)
    copy = here.client.clone(1, CloneRequest(set={"project": "default"}, checkpoint="latest")).job
    assert here.job(copy.num).spec["residency"] == ["ch", "eu"]
    assert pool_of(here, copy.num) == "europe"
    away = {"project": "default", "residency": "us"}
    with pytest.raises(
        SpecInvalid, match="the checkpoint of j-1 must stay in ch, eu; the job allow"
    ):
        here.client.clone(1, CloneRequest(set=away, checkpoint="latest"))
    plain = here.client.clone(1, CloneRequest(set=away)).job
    assert pool_of(here, plain.num) == "america"


def test_queued_jobs_obey_rules_that_are_applied_later(here: Rig) -> None:
    nums = [
        here.submit(pool="america"),
        here.submit(checkpoint={"store": "s3://us-data/runs"}),
        here.submit(),
    ]
    apply_projects(here, {"name": "default", "residency": ["eu"]})
    here.turn()
    assert [here.job(num).state for num in nums] == ["queued", "queued", "starting"]
    away, stored, _ = (here.client.why(num) for num in nums)
    assert away.reason.code == stored.reason.code == "outside_residency"
    assert "suitable nodes are in us, and the job may run in eu alone" in away.reason.message
    (bound,) = [one for one in away.constraints if one.binding == "residency"]
    assert "the residency that the job needs (eu); they have us" in bound.text
    assert "s3://us-data, residency us; project default allows eu" in stored.reason.message
    apply_projects(here, {"name": "default"})
    here.turn()
    assert [here.job(num).state for num in nums] == ["starting"] * 3


def test_running_jobs_outside_changed_labels_are_told(here: Rig) -> None:
    num = here.submit(project="lab")
    here.turn()
    assert apply_pools(here, europe="eu") == []
    (said,) = apply_pools(here, europe="us")
    assert said.startswith(f"j-{num} runs on europe-n-0 (us), outside its residency; project lab ")
    (said,) = apply_projects(here, {"name": "lab", "residency": ["ch"]})
    assert f"j-{num} runs on europe-n-0 (us)" in said and "project lab allows ch" in said
    assert apply_projects(here, {"name": "lab"}) == []
    kept = here.submit(checkpoint={"store": "s3://eu-data/runs"}, pool="america")
    here.turn()
    moved = [{"url": "s3://eu-data", "residency": "us"}]
    (said,) = apply_projects(here, {"name": "default", "residency": ["eu", "us"]}, stores=[])
    assert f"j-{kept} runs although checkpoint.store: lies in no store" in said
    assert apply_projects(here, {"name": "default", "residency": ["us"]}, stores=moved) == []


def test_a_running_job_outside_a_changed_rule_gets_an_event(here: Rig) -> None:
    def told(num: int) -> list[tuple[str, str]]:
        kinds = ("residency_left", "residency_restored")
        events = [one for one in here.client.history(num) if one.kind in kinds]
        assert {one.attempt for one in events} <= {1} and {one.actor for one in events} <= {
            "user:admin"
        }
        return [(one.kind, one.data.get("message", "")) for one in events]

    num = here.submit(project="lab")
    queued = here.submit(project="lab", resources={"nodes": 2, "slots_per_node": 4})
    free = here.submit(pool="nowhere")
    here.turn()
    version = here.job(num).etag
    for _ in range(2):  # applied again, it says nothing new
        (warning,) = apply_projects(here, {"name": "lab", "residency": ["ch"]})
    ((kind, message),) = told(num)
    assert kind == "residency_left" and warning.startswith(f"j-{num} {message}: ")
    assert message == "runs on europe-n-0 (eu), outside its residency; project lab allows ch"
    entries = here.store.view(lambda tx: page(tx, AuditFilter(), before=None, limit=3))
    # The file that was applied again changed nothing of the job.
    changes = [[one["what"] for one in entry.changes] for entry in entries]
    assert changes[1:2] == [[f"job j-{num}"]] and [f"job j-{num}"] not in (changes[0], changes[2])
    assert entries[1].changes[0]["after"] == {"outside_residency": message}
    apply_pools(here, europe="us")
    assert [kind for kind, _ in told(num)] == ["residency_left"] * 2
    assert "(us), outside" in told(num)[-1][1]
    # Without its rule it is inside; one message says so, whatever is applied after it.
    here.client.remove_project("part")
    here.client.remove_project("lab")
    apply_pools(here, europe="us")
    assert told(num)[2:] == [("residency_restored", "")]
    assert told(queued) == told(free) == []
    assert (here.job(num).state, here.job(num).etag) == ("starting", version)
    events = [one for one in here.client.history(num) if one.kind.startswith("residency_")]
    said = [notice(one) for one in events]
    assert said[0] == f"warning: {message}" and said[-1] == "is where its residency allows it again"


def test_stores_are_listed_and_bad_ones_refused(here: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "connected", lambda ctx: nullcontext(here.client))
    done = CliRunner().invoke(app, ["projects", "stores"], catch_exceptions=False)
    assert "s3://eu-data" in done.output and "eu" in done.output
    done = CliRunner().invoke(app, ["projects", "show", "lab"], catch_exceptions=False)
    assert "eu, ch" in done.output
    done = CliRunner().invoke(app, ["pools", "show", "europe"], catch_exceptions=False)
    assert "residency" in done.output and "eu" in done.output
    found = {one.name: one.residency for one in here.client.pools()}
    assert found == {"america": ["us"], "europe": ["eu"], "nowhere": []}
    for url, said in (
        ("eu-data", "must be a URL such as s3://bucket/prefix, or an absolute path"),
        ("s3://key:secret@eu", "must not hold credentials"),
        ("s3://eu/../us", "must not hold `..`"),
    ):
        with pytest.raises(SpecInvalid, match=said):
            apply_projects(here, stores=[{"url": url, "residency": "eu"}])
    twice = [{"url": "s3://a", "residency": "eu"}, {"url": "s3://a/", "residency": "us"}]
    with pytest.raises(SpecInvalid, match="store s3://a is given 2 times"):
        apply_projects(here, stores=twice)
    with pytest.raises(SpecInvalid, match="project part allows us; project lab allows eu, ch"):
        apply_projects(here, {"name": "part", "parent": "lab", "residency": ["us"]})
    assert [one.url for one in here.client.stores()] == ["s3://eu-data", "s3://us-data"]
    apply_projects(here, stores=[])
    assert here.client.stores() == []
