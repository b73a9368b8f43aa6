"""A project's parent: its guarantee and its limits bind what all its parts hold together."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from phalanx.core.reasons import ReasonCode
from phalanx.core.scheduling import (
    Plan,
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    RunningJob,
    plan,
)
from phalanx.core.scheduling.explain.why import why
from phalanx.core.scheduling.model.entitlement import (
    EntitlementTier,
    lineage,
    project_shares,
    rolled_up,
)
from support.clusters import nodes, queued, running

pytestmark = pytest.mark.unit

US = 1_000_000
HOUR = 3600 * US
LAB = Project("lab", guaranteed_slots=8, max_slots=8)
VISION = Project("vision", guaranteed_slots=4, parent="lab")
TEXT = Project("text", parent="lab")
OTHER = Project("other")


def job(num: int, project: str, count: int = 1, **more: object) -> QueuedJob:
    return queued(num, count, 4, project=project, **more)


def held(num: int, node: int, project: str, **more: object) -> RunningJob:
    return running(num, {node: (0, 1, 2, 3)}, project=project, **more)


def started(decided: Plan) -> list[int]:
    return [start.job for start in decided.starts]


def evicted(decided: Plan) -> list[int]:
    return [preemption.job for preemption in decided.preemptions]


class TestLimits:
    TREE = (LAB, VISION, TEXT)

    def test_the_parts_together_stay_within_the_limit_of_the_parent(self) -> None:
        requests = (job(1, "vision"), job(2, "text"), job(3, "text"))
        decided = plan(PlanningInput(nodes(4), (), requests, self.TREE), 10)
        assert started(decided) == [1, 2]
        apart = tuple(replace(project, parent="") for project in self.TREE)
        assert started(plan(PlanningInput(nodes(4), (), requests, apart), 10)) == [1, 2, 3]

    def test_what_the_parent_runs_itself_counts_too(self) -> None:
        busy = (held(9, 0, "lab"),)
        requests = (job(1, "vision"), job(2, "text"))
        decided = plan(PlanningInput(nodes(4), busy, requests, self.TREE), 10)
        assert started(decided) == [1]

    def test_the_reason_names_the_project_whose_limit_it_is(self) -> None:
        requests = (job(1, "vision"), job(2, "vision"), job(3, "text"))
        snapshot = PlanningInput(nodes(4), (), requests, self.TREE)
        reason = dict(plan(snapshot, 10).pending_reasons)[3]
        assert reason.code is ReasonCode.WAITING_FOR_QUOTA
        assert "project lab, which text is part of, holds 8 of at most 8" in reason.message
        told = why(snapshot, 3, 10)
        assert told is not None
        assert any("project lab might hold" in change.text for change in told.changes) or any(
            "project lab, which text is part of" in one.text for one in told.constraints
        )

    def test_raising_the_limits_of_all_above_is_what_would_help(self) -> None:
        tree = (LAB, replace(VISION, max_slots=4), TEXT)
        busy = (held(8, 0, "vision"), held(9, 1, "text"))
        told = why(PlanningInput(nodes(4), busy, (job(3, "vision"),), tree), 3, 10)
        assert told is not None
        texts = [change.text for change in told.changes]
        wanted = "if project vision might hold 8 slots and project lab might hold 12 slots"
        assert any(wanted in text for text in texts), texts

    def test_elastic_jobs_grow_only_as_far_as_the_parent_may(self) -> None:
        growing = held(9, 0, "vision", min_nodes=1, max_nodes=4)
        decided = plan(PlanningInput(nodes(4), (growing,), (), self.TREE), HOUR)
        (resize,) = decided.resizes
        assert len(resize.placement.shares) == 2


class TestGuarantees:
    TREE = (LAB, VISION, TEXT, OTHER)

    def gang(self, busy: tuple[RunningJob, ...], project: str, tree: tuple[Project, ...]) -> Plan:
        """A plan for one job of four slots on two full nodes; nobody is put aside as a mere peer."""
        alone = PlannerConfig(hysteresis=math.inf)
        return plan(PlanningInput(nodes(2), busy, (job(1, project),), tree, config=alone), HOUR)

    def test_a_part_without_a_guarantee_claims_that_of_its_parent(self) -> None:
        busy = (held(8, 0, "other"), held(9, 1, "other", priority=90))
        decided = self.gang(busy, "text", self.TREE)
        assert len(evicted(decided)) == 1
        alone = (LAB, VISION, replace(TEXT, parent=""), OTHER)
        assert evicted(self.gang(busy, "text", alone)) == []

    def test_what_a_parent_is_guaranteed_is_safe_in_the_hands_of_any_part(self) -> None:
        busy = (held(8, 0, "text"), held(9, 1, "text"))
        rich = Project("rich", guaranteed_slots=4)
        assert evicted(self.gang(busy, "rich", (*self.TREE, rich))) == []
        poorer = (replace(LAB, guaranteed_slots=4), *self.TREE[1:], rich)
        assert len(evicted(self.gang(busy, "rich", poorer))) == 1

    def test_among_siblings_only_their_own_guarantees_count(self) -> None:
        busy = (held(8, 0, "text"), held(9, 1, "text"))
        decided = self.gang(busy, "vision", self.TREE)
        # The whole laboratory holds 8 of at most 8: within its limit, too, a part claims its guarantee.
        assert len(evicted(decided)) == 1
        wider = (replace(LAB, max_slots=None), *self.TREE[1:])
        assert len(evicted(self.gang(busy, "vision", wider))) == 1
        back = (held(8, 0, "vision"), held(9, 1, "text"))
        assert evicted(self.gang(back, "text", wider)) == []


class TestArithmetic:
    TREE = {p.name: p for p in (LAB, VISION, TEXT, OTHER)}  # noqa: RUF012

    def test_use_is_rolled_up(self) -> None:
        used = rolled_up(self.TREE, {"vision": 3, "text": 2, "lab": 1, "stranger": 7})
        assert used == {"lab": 6, "vision": 3, "text": 2, "stranger": 7}
        assert [p.name for p in lineage(self.TREE, "text")] == ["text", "lab"]
        assert lineage(self.TREE, "stranger") == ()

    def test_shares_of_the_widest_projects_are_compared_first(self) -> None:
        share_of = project_shares(
            self.TREE, {"vision": 12, "other": 6}, {"text": 4, "other": 4}, 24
        )
        used = rolled_up(self.TREE, {"vision": 12, "other": 6})
        assert share_of["text"].over_guarantee(used) == (4, 0)
        assert share_of["other"].over_guarantee(used) == (6,)
        assert share_of["text"].tier(used, 4) is not EntitlementTier.GUARANTEED

    def test_a_circle_of_parents_ends(self) -> None:
        odd = {p.name: p for p in (Project("a", parent="b"), Project("b", parent="a"))}
        assert [p.name for p in lineage(odd, "a")] == ["a", "b"]
