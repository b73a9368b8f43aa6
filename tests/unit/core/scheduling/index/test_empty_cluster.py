"""Whether a gang could ever start: what runs and what is closed does not count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape
from phalanx.core.scheduling import Project, QueuedJob
from phalanx.core.scheduling.index.empty_cluster import EmptyCluster, fits_ever
from phalanx.core.scheduling.model.entitlement import never_allowed
from support import clusters

pytestmark = pytest.mark.unit

NODES = clusters.nodes(4, closed="drained")


@pytest.mark.parametrize(
    ("nodes", "required", "fits"),
    [(4, None, True), (5, None, False), (2, "rack", True), (3, "rack", False), (1, "zone", False)],
)
def test_a_gang_fits_by_its_size_and_its_level(
    nodes: int, required: str | None, fits: bool
) -> None:
    job = QueuedJob(1, GangShape(nodes, 4, 4), 50, 0, required=required)
    assert fits_ever(job, NODES) is fits
    empty = EmptyCluster(NODES)
    assert empty.can_hold(job) is empty.can_hold(job) is fits


def test_an_elastic_gang_fits_at_its_least_size() -> None:
    job = QueuedJob(1, GangShape(9, 4, 4), 50, 0, min_nodes=4)
    assert fits_ever(job, NODES)


def test_a_limit_of_its_project_or_of_one_above_rules_a_gang_out_by_its_least_size() -> None:
    projects = {"lab": Project("lab", max_slots=10), "p": Project("p", parent="lab", max_slots=40)}
    job = QueuedJob(1, GangShape(4, 4, 4), 50, 0, project="p")
    assert [one.name for one in never_allowed(projects, job)] == ["lab"]
    assert not never_allowed(projects, replace(job, min_nodes=2))
    assert replace(job, min_nodes=2, roles=(GangShape(1, 3, 3),)).least_slots == 11
