"""The living world of the control plane: whatever changes between two passes, it equals a rebuild."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.placement import GangShape, Node, NodeShare, Placement
from phalanx.core.scheduling import Held, Hole, Project, Snapshot, Waiting, World, plan_pass
from phalanx.services.living import follow

pytestmark = pytest.mark.unit

US = 1_000_000
NODES = tuple(
    Node(f"n{i}", "p", "h", 4, 8, 64, domains=(("rack", f"r{i // 2}"),)) for i in range(4)
)


def changed(rng: random.Random, before: Snapshot, at: int) -> Snapshot:
    """Some jobs come, start, save, end, or come back; a node closes; a quota changes."""
    waiting = {job.num: job for job in before.waiting}
    held = {one.job: one for one in before.held}
    for _ in range(rng.randrange(1, 6)):
        kind = rng.choice(["come", "start", "save", "end", "back", "priority", "node", "quota"])
        num = rng.randrange(1, 12)
        if kind == "come" and num not in waiting and num not in held:
            shape = GangShape(rng.choice([1, 2]), rng.choice([1, 2, 4]), 1)
            due = at + 60 * US if rng.random() < 0.2 else None
            waiting[num] = Waiting(num, shape, 50, at, not_before=due, project=rng.choice("ab"))
        elif kind == "start" and num in waiting:
            decided = plan_pass(World.of(replace(before, waiting=(waiting[num],))), at)
            if decided.starts and num not in held:
                job = waiting.pop(num)
                where = decided.starts[0].placement
                held[num] = Held(num, where, project=job.project, priority=50, started_at=at)
                before = replace(before, held=tuple(held.values()))
        elif kind == "save" and num in held:
            held[num] = replace(held[num], saved_at=at, stopping=rng.random() < 0.3)
        elif kind in ("end", "back") and num in held:
            gone = held.pop(num)
            before = replace(before, held=tuple(held.values()))
            if kind == "back":
                waiting[num] = Waiting(num, GangShape(1, 1, 1), 50, 1, queued_at=at)
            assert gone.job == num
        elif kind == "priority" and num in waiting:
            waiting[num] = replace(waiting[num], priority=rng.choice([10, 90]))
        elif kind == "node":
            nodes = list(before.nodes)
            i = rng.randrange(len(nodes))
            nodes[i] = replace(nodes[i], closed="" if nodes[i].closed else "drained")
            before = replace(before, nodes=tuple(nodes))
        elif kind == "quota":
            before = replace(before, projects=(Project("a", max_slots=rng.randrange(1, 9)),))
    holes = tuple(Hole(num, ("n0",), at, at + US) for num in list(waiting)[:1])
    return replace(before, waiting=tuple(waiting.values()), held=tuple(held.values()), holes=holes)


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_following_equals_building_anew(seed: int) -> None:
    rng = random.Random(seed)
    snapshot, world = Snapshot(NODES, (), ()), None
    for step in range(1, 25):
        at = step * 100 * US
        snapshot = changed(rng, snapshot, at)
        world = follow(world, snapshot)
        fresh = World.of(snapshot)
        for one in (world, fresh):
            one.ripen(at)
        assert world.state() == fresh.state()
        assert world.projects == fresh.projects
        assert plan_pass(world, at) == plan_pass(fresh, at)


def test_a_world_that_missed_a_change_would_be_seen() -> None:
    """The negative control: without following, the states differ."""
    shares = (NodeShare("n0", "h", (0, 1)),)
    running = Snapshot(NODES, (Held(1, Placement("p", shares)),), ())
    assert follow(None, Snapshot(NODES, (), ())).state() != World.of(running).state()
