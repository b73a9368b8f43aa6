"""Streams of jobs at the limits of slot types and of users: how often a limit binds, and all decisions.

    .venv/bin/python bench/scheduler/user_limits.py [SEEDS]

prints JSON. The planner that mypyc compiled and the one in Python are compared by it: limits of one user,
and of slot types, go through code of the planner that no other comparison reaches.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.scheduler import variants

from phalanx.core.gang.placement import GangShape
from phalanx.core.scheduling import ClusterIndex, Plan, Project, QueuedJob, RunningJob, plan_pass
from phalanx.core.scheduling.model.planning_input import UserQuota
from phalanx.sim.jobs import US
from phalanx.sim.workload import traces

_SEEDS, _PASSES = 6, 120
_PROJECTS = (
    Project("lab", max_slots_by_type=(("H100", 24),), users=(UserQuota("", 32, 12),)),
    Project("vision", parent="lab", max_slots_by_type=(("H100", 12), ("A100", 14))),
    Project("free", users=(UserQuota("bob", 16),)),
)
_USERS = (UserQuota("", 48), UserQuota("ada", None, 12, (("H100", 12),)), UserQuota("eve", 12))


@dataclass(slots=True)
class Limited:
    """What one planner did: a digest of its decisions, with what shows that limits were met."""

    planner: str  # compiled or Python
    num_started: int = 0
    num_evicted: int = 0
    num_resized: int = 0
    reasons: dict[str, int] = field(default_factory=dict)  # of jobs that wait, over all passes
    decisions: str = ""


def measured(seeds: int) -> Limited:
    """The streams of so many seeds."""
    found, digest = Limited(variants.here().name), hashlib.sha256()
    for seed in range(seeds):
        _Stream(seed, found, digest).run()
    found.reasons = dict(sorted(found.reasons.items()))
    found.decisions = digest.hexdigest()[:16]
    return found


class _Stream:
    """Jobs of four users that arrive, start, grow, shrink, give way and end."""

    def __init__(self, seed: int, found: Limited, digest: hashlib._Hash) -> None:
        self.rng, self.found, self.digest = random.Random(seed), found, digest
        nodes = [
            replace(node, slot_type="H100" if at % 2 else "A100")
            for at, node in enumerate(traces.grid_nodes(32, 4, 8, 2))
        ]
        self.cluster = ClusterIndex(nodes, _PROJECTS)
        self.cluster.users = _USERS
        self.jobs: dict[int, QueuedJob] = {}
        self.now = 0

    def run(self) -> None:
        """All passes of the stream."""
        for _ in range(_PASSES):
            for _ in range(self.rng.randrange(4)):
                self._submit()
            plan = plan_pass(self.cluster, self.now)
            self._note(plan)
            self._apply(plan)
            self.now += self.rng.choice([60, 900, 5000]) * US
            self._end_some()

    def _submit(self) -> None:
        rng, num = self.rng, len(self.jobs) + 1
        shape = GangShape(rng.choice([1, 1, 1, 2, 4]), rng.choice([1, 2, 4]), 1)
        job = QueuedJob(
            num,
            shape,
            rng.choice([10, 50, 50, 90]),
            self.now,
            project=rng.choice(["lab", "vision", "free"]),
            slot_type=rng.choice(["", "H100", "A100"]),
            min_nodes=1 if shape.nodes > 1 and rng.random() < 0.4 else None,
            user=rng.choice(["ada", "bob", "cem", "eve"]),
        )
        self.jobs[num] = job
        self.cluster.submit(job)

    def _note(self, plan: Plan) -> None:
        moves = (plan.starts, plan.preemptions, plan.resizes, plan.reservations)
        rest = (list(plan.pending_reasons), plan.wake_at, plan.num_steps)
        self.digest.update(repr((*moves, *rest)).encode())
        found = self.found
        found.num_started += len(plan.starts)
        found.num_evicted += len(plan.preemptions)
        found.num_resized += len(plan.resizes)
        for _, reason in plan.pending_reasons:
            found.reasons[reason.code.value] = found.reasons.get(reason.code.value, 0) + 1

    def _apply(self, plan: Plan) -> None:
        cluster = self.cluster
        cluster.reservations = {one.job: one for one in plan.reservations if one.victims}
        for one in plan.preemptions:
            cluster.update(replace(cluster.held[one.job], stopping=True))
        for resize in plan.resizes:
            before = cluster.release(resize.job)
            if before is not None:
                cluster.hold(replace(before, placement=resize.placement))
        for start in plan.starts:
            job = cluster.waiting[start.job]
            held = RunningJob(
                job.num,
                start.placement,
                project=job.project,
                priority=job.priority,
                started_at=self.now,
                min_nodes=job.min_nodes,
                max_nodes=None if job.min_nodes is None else job.shape.nodes,
                user=job.user,
            )
            cluster.start(job.num, start.placement, held)

    def _end_some(self) -> None:
        for num, held in list(self.cluster.held.items()):
            if held.stopping:
                self.cluster.release(num)
                self.cluster.submit(replace(self.jobs[num], queued_at=self.now))
            elif self.rng.random() < 0.05:
                self.cluster.release(num)


if __name__ == "__main__":
    asked = int(sys.argv[1]) if sys.argv[1:] else _SEEDS
    print(json.dumps(asdict(measured(asked))))
