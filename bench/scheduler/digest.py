"""Digests of the planner's decisions, to show that a change of the code changes no decision.

    python bench/scheduler/digest.py [--only T1,T8] [--seeds 0,1,2] [--traces DIR] [--passes N]

Replays the traces of the benchmark with the production planner alone and prints one line for each trace and
seed: the number of passes and a SHA-256 over the starts, preemptions, resizes, migrations and reservations
of every pass in order. A line is also printed after every 1,000 passes, so that the digests of two runs can
be compared as far as both have come. `--passes` ends each trace after so many passes. Run it before and
after a restructuring of the planner and compare the two outputs with `diff`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.scheduler import llm, philly, scale, steady
from bench.scheduler.fgd import ProductionPacking, arrivals, machines, pods, replay

from phalanx.core.gang.placement import Placement
from phalanx.core.scheduling import ClusterIndex, Plan, Project, plan_pass
from phalanx.sim.cluster.engine import simulate
from phalanx.sim.costs import Costs
from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import Oracle, SimulationSetup
from phalanx.sim.peers.catalog import Production
from phalanx.sim.workload import elastic, generated, storms, traces

_EVERY = 1000
Case = tuple[str, Sequence[TraceJob], SimulationSetup]


class _Enough(Exception):
    """Ends a replay after the number of passes that was asked for."""


class Recorder:
    """The production planner, with a digest of everything that it decides."""

    name = "phalanx"

    def __init__(self, label: str, most: int) -> None:
        self._planner = Production()
        self._label, self._most = label, most
        self._digest = hashlib.sha256()
        self._num_passes = 0

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Plan one pass and add its decisions to the digest."""
        decided = self._planner.plan(cluster, now, oracle)
        self._digest.update(decisions(decided, now).encode())
        self._num_passes += 1
        if self._num_passes % _EVERY == 0:
            self.say(str(self._num_passes))
        if self._num_passes == self._most:
            raise _Enough
        return decided

    def say(self, passes: str) -> None:
        """Print the digest so far."""
        print(f"{self._label} {passes} {self._digest.hexdigest()}", flush=True)

    def end(self) -> None:
        """Print the digest of the whole replay."""
        self.say(f"end:{self._num_passes}")


def decisions(decided: Plan, now: int) -> str:
    """What a plan decides as text that depends on no name of a class or a field."""
    starts = [(one.job, _place(one.placement)) for one in decided.starts]
    preempted = [(one.job, one.beneficiary, one.price_slot_s) for one in decided.preemptions]
    resized = [(one.job, _place(one.placement)) for one in decided.resizes]
    moved = [(one.job, _place(one.placement), one.beneficiary) for one in decided.migrations]
    kept = [
        (one.job, one.nodes, one.ready_at, one.expires_at, one.victims)
        for one in decided.reservations
    ]
    return repr((now, starts, preempted, resized, moved, kept, decided.wake_at, decided.num_steps))


def _place(placement: Placement) -> tuple[object, ...]:
    return placement.pool, [(share.node, share.slots) for share in placement.shares]


def cases(trace: str, seed: int, where: Path) -> Iterator[Case]:
    """The replays of one trace with one seed, as the benchmark sets them up."""
    week = traces.grid_nodes(60, 8, 15, 4)
    rough = Costs(graceful=False)
    if trace == "T1":
        jobs = philly.week(where, seed)
        yield "", philly.blind(jobs), SimulationSetup(week)
        yield "kill", philly.blind(jobs), SimulationSetup(week, costs=rough)
    elif trace == "T1q":
        jobs = philly.week(where, seed)
        owned = philly.quotas(where / "philly_vc_quota.csv", 60)
        names = sorted({job.project for job in jobs})
        projects = [Project(name, guaranteed_slots=8 * owned.get(name, 0)) for name in names]
        yield "", jobs, SimulationSetup(week, projects)
    elif trace == "T1s":
        jobs = philly.blind(philly.week(where, seed))
        many, real_s = steady.repeated(jobs, 7 * philly.DAY_S, 480, seed)
        yield "", many, SimulationSetup(week, until_s=2 * real_s)
    elif trace == "T2":
        yield "", philly.gangs(where, seed), SimulationSetup(traces.grid_nodes(52, 8, 13, 4))
    elif trace == "T3":
        jobs = philly.blind(generated.llm_mix(seed))
        yield "", jobs, SimulationSetup(traces.grid_nodes(256, 8, 16, 8))
    elif trace == "T4":
        jobs = philly.blind(generated.llm_mix(seed))
        jobs = [replace(job, submit_s=job.submit_s / 3.3) for job in jobs]
        yield "", jobs, SimulationSetup(traces.lingjun_nodes(where / "lingjun_topology_847.csv"))
    elif trace == "T5":
        for number in (1, 2, 3):
            yield (str(number), *elastic.sia(where / "sia", number))
    elif trace == "T7":
        nodes, jobs = llm._spot_and_sure(), llm._mixed(seed)
        kill = SimulationSetup(nodes, outages=llm._outages(nodes, seed), costs=rough)
        yield "kill", jobs, kill
        yield "saves", jobs, replace(kill, costs=Costs())
    elif trace == "T8":
        for name, make in storms.STORMS.items():
            storm = make(seed)
            yield name.replace(" ", "-"), storm.jobs, storm.setup


def replayed(trace: str, seed: int, where: Path, most: int) -> None:
    """Print the digests of one trace with one seed."""
    for name, jobs, setup in cases(trace, seed, where):
        recorder = Recorder(f"{trace}/{name or '-'} seed {seed}", most)
        try:
            simulate(jobs, setup, recorder)
        except _Enough:
            pass
        recorder.end()


def streamed(num_passes: int) -> None:
    """T9: the first passes of the stream that measures the time of a pass."""
    stream, digest = scale._Stream(), hashlib.sha256()
    for _ in range(num_passes):
        stream.step()
        decided = plan_pass(stream.cluster, stream.now)
        digest.update(decisions(decided, stream.now).encode())
        stream.apply(decided)
    print(f"T9/- seed 0 end:{num_passes} {digest.hexdigest()}", flush=True)


def packed(seed: int, where: Path) -> None:
    """T6: which pods find room, and what is left on the machines."""
    folder = where / "openb_fgd"
    hosts = machines(folder / "openb_node_list_gpu_node.csv")
    capacity = 1000 * sum(host.num_devices for host in hosts)
    for workload in ("default", "multigpu50"):
        asked = pods(folder / f"openb_pod_list_{workload}.csv")
        arriving = arrivals(asked, capacity, 1.3, 42 + seed)
        packer = _Noted(ProductionPacking(hosts))
        replay(hosts, arriving, packer)
        print(f"T6/{workload} seed {seed} end:{packer.num} {packer.digest.hexdigest()}", flush=True)


@dataclass
class _Noted:
    """The production placement, with a digest of the pods that found room."""

    packer: ProductionPacking

    def __post_init__(self) -> None:
        self.name = self.packer.name
        self.digest = hashlib.sha256()
        self.num = 0
        self.put: Callable[..., bool] = self._put

    def _put(self, pod: object) -> bool:
        found = self.packer.put(pod)  # type: ignore[arg-type]
        self.digest.update(b"1" if found else b"0")
        self.num += 1
        return found


TRACES = ("T9", "T8", "T5", "T7", "T3", "T1", "T4", "T2", "T1q", "T1s", "T6")


def main() -> int:
    """Print the digests that were asked for."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--only", default=",".join(TRACES))
    asked.add_argument("--seeds", default="0,1,2")
    asked.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    asked.add_argument("--passes", type=int, default=0, help="end each trace there; 0: at its end")
    options = asked.parse_args()
    for seed in [int(text) for text in options.seeds.split(",")]:
        for trace in options.only.split(","):
            if trace == "T6":
                packed(seed, options.traces)
            elif trace == "T9":
                if not seed:
                    streamed(options.passes or 60)
            else:
                replayed(trace, seed, options.traces, options.passes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
