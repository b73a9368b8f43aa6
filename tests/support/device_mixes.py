"""Random mixes of jobs on a machine with eight devices: its driver, the local executor and the planner.

The driver is the fake library behind the real bindings; devices are lost and return, other programs come
and go, and the control plane restarts. After every pass each device is in one job at most, and no job waits
that fits in devices which are idle and kept for no other job.
"""

import random
from dataclasses import dataclass, replace

from phalanx.core.gang.placement import GangShape, with_chosen_devices
from phalanx.core.scheduling import (
    ClusterIndex,
    PlannerConfig,
    PlanningInput,
    QueuedJob,
    RunningJob,
    plan,
)
from phalanx.core.scheduling.index.topology import place, request_of
from phalanx.core.scheduling.model.planning_input import US
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from phalanx.executors.local import LocalExecutor
from phalanx.executors.local.executor import DEVICES_NAME
from phalanx.kit.clock import SystemClock
from phalanx.launch.accelerators import discover
from phalanx.schemas.home import HomeLayout
from support.nvml import GB, LOST

NUM_DEVICES = 8
STEP_US = 60 * US
_PEACE = PlannerConfig(hysteresis=float("inf"))
# A process that exists on every machine, and that no supervisor has started.
_OUTSIDER = 1


@dataclass
class Tally:
    """What happened in one mix or in many."""

    passes: int = 0
    starts: int = 0
    ends: int = 0
    lost: int = 0
    outside: int = 0
    restarts: int = 0
    shared: int = 0
    unfit: int = 0
    idle: int = 0
    kept: int = 0  # passes in which idle devices were kept for a larger job

    def add(self, other):
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Mix:
    def __init__(self, driver, root, seed, keeps_numbers=True):
        self.rng, self.driver, self.keeps_numbers = random.Random(seed), driver, keeps_numbers
        self.home = HomeLayout(root)
        self.home.root.mkdir(mode=0o700, parents=True)
        self.driver.have_h100(NUM_DEVICES)
        self.now, self.num, self.tally = 0, 0, Tally()
        self.waiting, self.held, self.reservations = {}, {}, ()
        self.executor = self._executor()

    def _executor(self):
        return LocalExecutor(
            self.home, num_slots=4, num_cpus=16, clock=SystemClock(), find=lambda: discover({})
        )

    def run(self, num_steps=24):
        for _ in range(num_steps):
            self._happen()
            self._pass()
            self.now += STEP_US
        self.executor.close()
        return self.tally

    def _happen(self):
        events = (self._submit, self._submit, self._end, self._lose, self._use, self._restart)
        self.rng.choices(events, weights=(3, 2, 7, 1, 1, 1))[0]()
        self.driver.write()
        self.executor._devices.take(discover({}))

    def _submit(self):
        for _ in range(self.rng.randint(1, 2)):
            self.num += 1
            nodes = self.rng.choice((1, 1, 1, 2))
            slots = self.rng.choice((1, 1, 2, 3, 4, 8) if nodes == 1 else (1, 2, 4))
            self.waiting[self.num] = QueuedJob(
                self.num, GangShape(nodes, slots, slots), 50, self.now + self.num
            )

    def _end(self):
        for num in self.rng.sample(sorted(self.held), min(len(self.held), self.rng.randint(1, 3))):
            del self.held[num]
            self.tally.ends += 1

    def _lose(self):
        device = self.rng.choice(self.driver.devices)
        device.error = 0 if device.error else LOST
        self.tally.lost += 1

    def _use(self):
        device = self.rng.choice(self.driver.devices)
        device.users = {} if device.users else {_OUTSIDER: self.rng.choice((1, 20, 70)) * GB}
        self.tally.outside += 1

    def _restart(self):
        self.executor.close()
        if not self.keeps_numbers:
            (self.home.root / DEVICES_NAME).unlink()
        self.executor = self._executor()
        self.tally.restarts += 1

    def _pass(self):
        nodes = tuple(self.executor.inventory())
        devices = {node.id: node.devices for node in nodes}
        decided = plan(self._input(nodes), self.now)
        self.reservations = decided.reservations
        fit = {
            d.uuid for d in self.driver.devices if not d.error and sum(d.users.values()) < 8 * GB
        }
        for start in decided.starts:
            job = self.waiting.pop(start.job)
            placement = with_chosen_devices(start.placement, devices)
            self.held[job.num] = RunningJob(job.num, placement, priority=50, started_at=self.now)
            chosen = [one for share in placement.shares for one in share.devices]
            assert len(chosen) == job.num_slots
            self.tally.unfit += len(set(chosen) - fit)
        used = [one for h in self.held.values() for s in h.placement.shares for one in s.devices]
        self.tally.passes += 1
        self.tally.starts += len(decided.starts)
        self.tally.shared += len(used) - len(set(used))
        self._idle(nodes)

    def _input(self, nodes):
        held, waiting = tuple(self.held.values()), tuple(self.waiting.values())
        kept = tuple(r for r in self.reservations if r.job in self.waiting)
        return PlanningInput(nodes, held, waiting, (), kept, config=_PEACE)

    def _idle(self, nodes):
        """Count jobs that wait although they fit in idle devices that are kept for no other job."""
        cluster = ClusterIndex.of(replace(self._input(nodes), waiting=(), reservations=()))
        state = Pass(cluster, self.now)
        for job in self.waiting.values():
            mark, groups = cluster.index.mark(), cluster.groups_for(request_of(job))
            if place(cluster.index, request_of(job), groups, job.shape) is None:
                continue
            for one in self.reservations:
                if one.job != job.num and one.job in self.waiting:
                    state.hold_back(one, *self.waiting[one.job].widths(len(one.nodes)))
            if place(cluster.index, request_of(job), groups, job.shape) is None:
                self.tally.kept += 1
            else:
                self.tally.idle += 1
            cluster.index.rollback(mark)


def run_mixes(driver, root, seeds, **more):
    total = Tally()
    for seed in seeds:
        total.add(Mix(driver, root / f"mix-{seed}", seed, **more).run())
    return total
