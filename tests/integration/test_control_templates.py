"""Job templates through HTTP: versions, typed values, rights, and the version in the job."""

from __future__ import annotations

from typing import Any

import pytest

from integration.rig import URL, Rig
from phalanx.core.contract.access import Scope
from phalanx.errors import NotFound, PermissionDenied, SpecInvalid
from phalanx.schemas.api.templates import SubmitTemplateRequest, TemplateJobs
from phalanx.sdk import PhalanxClient

pytestmark = pytest.mark.integration
TEMPLATE: dict[str, Any] = {
    "schema": 1,
    "description": "fine-tune a model",
    "parameters": {
        "lr": {"type": "float", "default": 0.1, "min": 0, "max": 1},
        "model": {"choices": ["small", "large"]},
        "slots": {"type": "int", "default": 1, "min": 1, "max": 2},
        "tag": {"default": "none"},
    },
    "job": {
        "name": "tune-${params.model}",
        "run": "python train.py --lr ${params.lr} --tag ${params.tag}",
        "resources": {"slots_per_node": "${params.slots}"},
        "labels": {"lr": "${params.lr}"},
    },
}


def submit(
    rig: Rig, version: int | None = None, dry_run: bool = False, **values: Any
) -> TemplateJobs:
    request = SubmitTemplateRequest(set=values, version=version, dry_run=dry_run, owner="ada")
    return rig.client.templates.submit("tune", request)


def test_a_job_of_a_template_names_its_version_and_values(rig: Rig) -> None:
    assert rig.client.templates.put("tune", TEMPLATE).version == 1
    assert rig.client.templates.put("tune", TEMPLATE).version == 1  # nothing changed
    made = submit(rig, model="small", lr=0.5, tag="a; rm -rf /")
    view = rig.job(made.jobs[0].num)
    assert (view.name, view.labels, view.num_slots) == ("tune-small", {"lr": "0.5"}, 1)
    assert view.spec["run"] == "python train.py --lr 0.5 --tag 'a; rm -rf /'"
    (event,) = [one for one in rig.client.history(view.num) if one.kind == "templated"]
    assert event.data == {
        "template": "tune",
        "project": "default",
        "version": 1,
        "set": {"model": "small", "lr": 0.5, "tag": "a; rm -rf /"},
    }
    rig.check_log(view.num)


def test_versions_stay_as_they_were(rig: Rig) -> None:
    rig.client.templates.put("tune", TEMPLATE)
    job = {**TEMPLATE["job"], "priority": 70}
    assert rig.client.templates.put("tune", {**TEMPLATE, "job": job}).version == 2
    old, new = submit(rig, version=1, model="small"), submit(rig, model="small")
    assert (old.version, rig.job(old.jobs[0].num).priority) == (1, 50)
    assert (new.version, rig.job(new.jobs[0].num).priority) == (2, 70)
    assert rig.client.templates.show("tune", version=1).job == TEMPLATE["job"]
    assert [one.version for one in rig.client.templates.list()] == [2]
    rig.client.templates.remove("tune")
    with pytest.raises(NotFound, match="no template tune"):
        submit(rig, model="small")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "set.model: has no default"),
        ({"model": "huge"}, "must be one of small, large"),
        ({"model": "small", "lr": 2}, "set.lr: must be at most 1"),
        ({"model": "small", "lr": "fast"}, "not of the type float"),
        ({"model": "small", "slots": True}, "not of the type int"),
        ({"model": "small", "slots": 1.5}, "not of the type int"),
        ({"model": "small", "speed": 1}, "set.speed: is no parameter of the template"),
        ({"model": "small", "tag": "x" * 1001}, "longer than 1000"),
    ],
)
def test_values_are_typed_and_limited(rig: Rig, values: dict[str, Any], says: str) -> None:
    rig.client.templates.put("tune", TEMPLATE)
    for dry_run in (True, False):
        with pytest.raises(SpecInvalid, match=says):
            submit(rig, dry_run=dry_run, **values)
    assert rig.client.jobs().jobs == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parameters": {"lr": {"type": "float", "default": 2, "max": 1}}}, "must be at most 1"),
        ({"parameters": {"lr": {"min": 1}}}, "min and max are for numbers"),
        ({"job": {"run": "x ${params.lrr}"}}, "did you mean lr"),
        ({"parameters": {}, "job": {"run": "x", "priority": 101}}, "priority"),
        (
            {"parameters": {}, "job": {"run": "x", "env": {"API_TOKEN": "tok-123456"}}},
            "secrets set",
        ),
        ({"job": {"run": "x", "project": "vision"}}, "job.project: must be default"),
    ],
)
def test_a_template_with_a_mistake_is_refused(rig: Rig, change: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecInvalid, match=says):
        rig.client.templates.put("tune", TEMPLATE | change)
    assert rig.client.templates.list() == []


def test_a_dry_run_and_a_repeated_request(rig: Rig) -> None:
    rig.client.templates.put("tune", TEMPLATE)
    seen = submit(rig, dry_run=True, model="large")
    assert (seen.jobs, seen.spec["name"], rig.client.jobs().jobs) == ([], "tune-large", [])
    request = SubmitTemplateRequest(set={"model": "large"})
    first = rig.client.templates.submit("tune", request, key="k" * 20)
    assert rig.client.templates.submit("tune", request, key="k" * 20) == first
    assert len(rig.client.jobs().jobs) == 1


def test_an_array_from_a_template(rig: Rig) -> None:
    rig.client.templates.put("tune", {**TEMPLATE, "job": {**TEMPLATE["job"], "array": "0-2"}})
    made = submit(rig, model="small")
    assert [one.array_index for one in made.jobs] == [0, 1, 2]
    kinds = [[event.kind for event in rig.client.history(one.num)] for one in made.jobs]
    assert all("templated" in one for one in kinds)


def test_members_use_templates_and_operators_change_them(rig: Rig) -> None:
    rig.client.templates.put("whole", TEMPLATE, project=None)
    rig.client.templates.put("tune", TEMPLATE, project="vision")
    rig.client.accounts.add("mia")
    rig.client.accounts.grant("user:mia", "member", "default")
    token = rig.client.create_token("t", [Scope.ADMIN], principal="user:mia").token
    with PhalanxClient(URL, token, transport=rig.transport) as mia:
        assert [one.name for one in mia.templates.list()] == ["whole"]
        made = mia.templates.submit("whole", SubmitTemplateRequest(set={"model": "small"}))
        assert rig.job(made.jobs[0].num).owner == "mia"
        for project in ("default", None):
            with pytest.raises(PermissionDenied):
                mia.templates.put("mine", TEMPLATE, project)
        with pytest.raises(NotFound):
            mia.templates.submit("tune", SubmitTemplateRequest(), "vision")
        rig.client.accounts.grant("user:mia", "operator", "default")
        assert mia.templates.put("whole", TEMPLATE | {"description": "ours"}).project == "default"
        assert mia.templates.show("whole").description == "ours"
