"""Labels that projects require: at a submission, a dry run and a change; older jobs are untouched."""

from __future__ import annotations

import pytest

from integration.rig import Rig, spec
from phalanx.errors import SpecInvalid
from phalanx.schemas.api.jobs import ChangeRequest, SubmitRequest

pytestmark = pytest.mark.integration

RULES = {
    "schema": 1,
    "projects": [
        {"name": "lab", "required_labels": {"team": {"values": ["vision", "text"]}}},
        {
            "name": "default",
            "parent": "lab",
            "required_labels": {"cost-center": {"pattern": "cc-[0-9]*"}, "paper": {}},
        },
    ],
}
RIGHT = {"team": "text", "cost-center": "cc-4", "paper": "none"}


def refused(rig: Rig, dry_run: bool = False, **labels: str) -> dict[str, str]:
    request = SubmitRequest(spec=spec(labels=labels), owner="ada")
    with pytest.raises(SpecInvalid) as raised:
        rig.client.submit(request, dry_run=dry_run)
    return {one.path: one.message for one in raised.value.problems}


def test_a_job_without_the_labels_of_its_project_is_refused_with_what_is_right(rig: Rig) -> None:
    rig.client.apply_projects(RULES)
    said = refused(rig, dry_run=True, team="robots")
    assert set(said) == {"labels.team", "labels.cost-center", "labels.paper"}
    above = "project lab, which default is part of, requires this label with one of vision, text"
    assert said["labels.team"] == above
    assert said["labels.cost-center"].endswith(
        "default requires this label with a value like cc-[0-9]*"
    )
    assert said["labels.paper"].endswith("with any value")
    assert set(refused(rig, **{**RIGHT, "cost-center": "cc-x"})) == {"labels.cost-center"}
    assert rig.job(rig.submit(labels=RIGHT)).labels == RIGHT
    shown = rig.client.project("default").required_labels
    assert shown == {"cost-center": "a value like cc-[0-9]*", "paper": "any value"}


def test_older_jobs_are_untouched_and_changes_keep_the_rule(rig: Rig) -> None:
    old = rig.submit(labels={"team": "robots"})
    rig.client.apply_projects(RULES)
    assert rig.client.change(old, ChangeRequest(priority=60)).priority == 60
    assert rig.client.change(old, ChangeRequest(labels={"note": "kept"})).labels["team"] == "robots"
    fresh = rig.submit(labels=RIGHT)
    for change in ({"team": None}, {"team": "robots"}):
        with pytest.raises(SpecInvalid, match=r"labels\.team"):
            rig.client.change(fresh, ChangeRequest(labels=change))
    assert (
        rig.client.change(fresh, ChangeRequest(labels={"team": "vision"})).labels["team"]
        == "vision"
    )


def test_a_rule_with_two_conditions_is_refused(rig: Rig) -> None:
    both = {"values": ["a"], "pattern": "a*"}
    with pytest.raises(SpecInvalid, match="either values or pattern"):
        rig.client.apply_projects(
            {"schema": 1, "projects": [{"name": "lab", "required_labels": {"team": both}}]}
        )
