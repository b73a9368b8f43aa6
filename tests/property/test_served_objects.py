"""The status of served objects under any order of job states, suspensions and times."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phalanx.core.serving.conditions import ConditionKind, find, holds
from phalanx.core.serving.life import (
    OVER,
    JobPhase,
    LifeStatus,
    ObjectDemand,
    ReplicaCounts,
    SeenJob,
    ServedObject,
    demand,
    next_look_s,
    reflect,
)
from phalanx.operator.submission import KINDS

pytestmark = pytest.mark.unit
K = ConditionKind
counts = st.builds(
    ReplicaCounts, active=st.integers(0, 2), succeeded=st.integers(0, 2), failed=st.integers(0, 2)
)
# Mostly states that others follow: an end makes the rest of a life short.
PHASES = [*JobPhase, *[one for one in JobPhase if one not in OVER] * 4]
some = st.builds(
    SeenJob,
    phase=st.sampled_from(PHASES),
    replicas=st.fixed_dictionaries({"Master": counts, "Worker": counts}),
    began=st.booleans(),
    restarts=st.integers(0, 3),
    failed_role=st.sampled_from(["", "Master", "Worker"]),
    no_more_restarts=st.booleans(),
    nodes=st.sampled_from([None, (1, 3), (2, 4)]),
)
jobs = st.one_of(some, some, some, st.none())
looks = st.tuples(jobs, st.sampled_from([False, False, False, True]), st.integers(0, 40))
limits = st.none() | st.integers(0, 60)
deadlines = st.none() | st.integers(1, 60)  # Kubernetes takes no deadline of 0


def served(suspended: bool, deadline_s: int | None, ttl_s: int | None) -> ServedObject:
    return ServedObject(
        kind="PyTorchJob",
        namespace="team",
        name="llm",
        replicas={"Master": 1, "Worker": 2},
        suspended=suspended,
        deadline_s=deadline_s,
        ttl_s=ttl_s,
        backoff_limit=1,
        nodes=(1, 3),
    )


scalars = st.none() | st.booleans() | st.integers(-1, 3) | st.floats() | st.sampled_from(["", "x"])
WORDS = [
    *("runPolicy", "elasticPolicy", "minReplicas", "replicas", "suspend", "parallelism"),
    *("pytorchReplicaSpecs", "Master", "worker", "restartPolicy", "replicatedJobs", "template"),
    *("spec", "name", "conditions", "type", "status", "replicaStatuses", "active", "startTime"),
    *("replicatedJobsStatus", "failurePolicy", "maxRestarts", "managedBy", "completions"),
]
anything = st.recursive(
    scalars, lambda one: st.lists(one, max_size=2) | st.dictionaries(st.sampled_from(WORDS), one)
)


@example("PyTorchJob", {}, {"conditions": 1})
@example("JobSet", {"replicatedJobs": {}}, {"conditions": [{"type": []}]})
@given(st.sampled_from(sorted(KINDS)), anything, anything)
def test_an_object_of_any_form_is_read_and_gets_a_status(
    kind: str, spec: object, status: object
) -> None:
    """Schemas of clusters differ, and objects are older than they are."""
    served_kind = KINDS[kind]
    meta = {"name": "llm", "namespace": "team", "uid": "u"}
    one = {"metadata": meta, "spec": spec, "status": status}
    assert served_kind.is_served(one, "pytorchjob") in (True, False)
    wanted, known = served_kind.asked_for(one), served_kind.read_status(one)
    assert served_kind.spec_digest(one) == served_kind.spec_digest(one)
    assert served_kind.rank_labels(wanted, 0)
    for phase in JobPhase:
        seen = SeenJob(phase=phase)
        demand(known, wanted, seen, 5)
        found = reflect(known, wanted, seen, 5).status
        assert isinstance(served_kind.status_body(one, found, 0)["conditions"], list)


RUNS_AND_RESTARTS = [
    (SeenJob(phase=JobPhase.RUNNING, began=True), False, 1),
    (SeenJob(phase=JobPhase.RESTARTING, began=True, restarts=1), False, 1),
]


@example(RUNS_AND_RESTARTS, None, None)
@given(st.lists(looks, max_size=12), deadlines, limits)
def test_a_status_is_consistent_and_settled_at_every_moment(
    life: list[tuple[SeenJob | None, bool, int]], deadline_s: int | None, ttl_s: int | None
) -> None:
    status, now_s, ended = LifeStatus(), 0, None
    for seen, suspended, passed_s in life:
        now_s += passed_s
        wanted = served(suspended, deadline_s, ttl_s)
        before = status
        asked = demand(status, wanted, seen, now_s)
        status = reflect(status, wanted, seen, now_s).status
        # A second look at the same moment changes nothing.
        assert reflect(status, wanted, seen, now_s).status == status
        assert status.conditions[0].kind == K.CREATED
        assert len({one.kind for one in status.conditions}) == len(status.conditions)
        assert not (find(status.conditions, K.RUNNING) and find(status.conditions, K.RESTARTING))
        assert not (holds(status.conditions, K.SUCCEEDED) and holds(status.conditions, K.FAILED))
        assert status.finished == (status.completed_s is not None)
        if status.finished:
            assert not holds(status.conditions, K.RUNNING)
            assert all(one.active == 0 for one in status.replicas.values())
        if before.finished:
            assert status == before == ended
            assert asked in (ObjectDemand.NOTHING, ObjectDemand.CANCEL, ObjectDemand.DELETE)
        ended = status if status.finished else None
        assert all(one.changed_s <= one.updated_s <= now_s for one in status.conditions)
        if asked is ObjectDemand.SUBMIT:
            assert seen is None and before.start_s is None and not suspended
        if asked is ObjectDemand.CANCEL:
            assert seen is not None and seen.phase not in OVER
        if asked is ObjectDemand.DELETE:
            assert ttl_s is not None and before.completed_s is not None
            assert now_s > before.completed_s + ttl_s
        if suspended and not status.finished:
            assert holds(status.conditions, K.SUSPENDED)
            assert asked in (ObjectDemand.NOTHING, ObjectDemand.PAUSE, ObjectDemand.RESIZE)
        if asked is ObjectDemand.RESIZE:
            assert seen is not None and seen.phase not in OVER and seen.nodes == (2, 4)
        # Where nothing is to be done, it is not looked at again and again.
        at_s = next_look_s(status, wanted)
        if at_s is not None and demand(status, wanted, seen, now_s) is ObjectDemand.NOTHING:
            assert at_s > now_s
