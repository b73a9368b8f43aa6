"""Whatever users and time do, retention deletes no pinned, live or needed thing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from integration.rig import Rig, open_rig
from phalanx.errors import CheckpointNotFound, Conflict, NotFound
from phalanx.schemas.api.jobs import CloneRequest
from phalanx.services.retention import expiry
from phalanx.services.retention.expiry import ExpiryProgress, expiry_step
from phalanx.services.retention.work import deletions_step
from phalanx.store import lineage

pytestmark = pytest.mark.integration
DAY_S = 86_400.0
ACTS = ("submit", "stop", "save", "pin", "unpin", "pin_step", "unpin_step", "fork", "delete", "age")
Act = tuple[str, int, int]
acts = st.lists(
    st.tuples(st.sampled_from(ACTS), st.integers(0, 5), st.integers(1, 4)), min_size=4, max_size=30
)
periods = st.sampled_from([None, 1.0, 3.0, 10.0])


class World:
    """A control plane, and what must be there: kept apart from what the control plane decides by."""

    def __init__(self, rig: Rig, jobs_d: float | None, checkpoints_d: float | None) -> None:
        self.rig = rig
        self.nums: list[int] = []
        self.live: set[int] = set()
        self.pinned: set[int] = set()
        self.steps: dict[int, dict[int, Path]] = {}
        self.pins: set[tuple[int, int]] = set()
        self.forks: dict[int, tuple[int, int]] = {}  # live fork: the job and step it begins from
        self.progress = ExpiryProgress()
        days = {"jobs": jobs_d, "checkpoints": checkpoints_d}
        rig.retain(**{name: None if one is None else one * DAY_S for name, one in days.items()})

    def act(self, act: str, which: int, step: int) -> None:
        if act == "submit" or not self.nums:
            self.nums.append(self.rig.submit())
            self.live.add(self.nums[-1])
            return
        if act == "age":
            self.rig.clock.advance(step * DAY_S)
            return
        num = self.nums[which % len(self.nums)]
        try:
            getattr(self, f"_{act}")(num, step)
        except (CheckpointNotFound, Conflict, NotFound):
            pass

    def _stop(self, num: int, step: int) -> None:
        self.rig.client.stop(num)
        self.live.discard(num)
        self.forks.pop(num, None)

    def _save(self, num: int, step: int) -> None:
        if num not in self.live or step in self.steps.get(num, {}):
            return
        folder = self.rig.platform.home.checkpoints_dir / "default" / f"j-{num}"
        path = folder / f"step-{step:08d}-0000000{step}"
        path.mkdir(parents=True)
        row = {"path": str(path), "step": step, "size_bytes": 1, "metrics": {}, "created_at": step}
        self.rig.store.transact(lambda tx: lineage.add_checkpoint(tx, (num, 1, 0), row))
        self.steps.setdefault(num, {})[step] = path

    def _pin(self, num: int, step: int) -> None:
        self.rig.client.retention.pin(num)
        self.pinned.add(num)

    def _unpin(self, num: int, step: int) -> None:
        self.rig.client.retention.unpin(num)
        self.pinned.discard(num)

    def _pin_step(self, num: int, step: int) -> None:
        self.rig.client.retention.pin_checkpoint(num, str(step))
        self.pins.add((num, step))

    def _unpin_step(self, num: int, step: int) -> None:
        self.rig.client.retention.unpin_checkpoint(num, str(step))
        self.pins.discard((num, step))

    def _fork(self, num: int, step: int) -> None:
        made = self.rig.client.clone(num, CloneRequest(checkpoint=str(step))).job
        self.nums.append(made.num)
        self.live.add(made.num)
        self.forks[made.num] = (num, step)

    def _delete(self, num: int, step: int) -> None:
        self.rig.client.retention.delete(num)
        needed = {job for job, _ in (*self.pins, *self.forks.values())}
        assert num not in self.live | self.pinned | needed
        self.steps.pop(num, None)

    def sweep(self) -> None:
        while expiry_step(self.rig.platform, self.progress, self.rig.clock.now()):
            pass
        deletions_step(self.rig.platform, self.rig.clock.now())

    def check(self) -> None:
        """What is live, pinned or needed is there."""
        for num in self.live | self.pinned:
            self.rig.job(num)
        for num in self.live | (self.pinned & self.steps.keys()):
            assert all(path.is_dir() for path in self.steps.get(num, {}).values())
        for num, step in {*self.pins, *self.forks.values()}:
            self.rig.job(num)
            assert self.steps[num][step].is_dir()
        for num, steps in self.steps.items():
            try:
                self.rig.job(num)
            except NotFound:
                assert not any(path.exists() for path in steps.values())
            else:
                assert list(steps.values())[-1].is_dir(), "the newest one stays with its job"


def play(found: list[Act], jobs_d: float | None, checkpoints_d: float | None) -> None:
    with tempfile.TemporaryDirectory() as root, open_rig(Path(root, "home")) as rig:
        world = World(rig, jobs_d, checkpoints_d)
        for act in found:
            world.act(*act)
            if act[0] in ("age", "unpin", "stop"):
                world.sweep()
                world.check()
        world.sweep()
        world.check()


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(acts, periods, periods)
def test_retention_deletes_no_pinned_live_or_needed_thing(
    found: list[Act], jobs_d: float | None, checkpoints_d: float | None
) -> None:
    play(found, jobs_d, checkpoints_d)


FORKED: list[Act] = [
    *(("submit", 0, 1), ("save", 0, 1), ("save", 0, 2), ("stop", 0, 1), ("fork", 0, 1)),
    ("age", 0, 4),
]


def test_the_property_finds_guards_that_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    play(FORKED, 1.0, 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(expiry, "holds", lambda use: ())
        with pytest.raises((NotFound, AssertionError)):
            play(FORKED, 1.0, None)
    with monkeypatch.context() as patch:
        patch.setattr(expiry, "fork_paths", lambda tx, num: set())
        with pytest.raises(AssertionError):
            play(FORKED, None, 1.0)
