"""What the platform itself costs a search: many short trials, many results, a busy day, two projects.

    python -m bench.search.overhead [--only trials,results,day,projects,suggestion] [--trials 10000]
        [--hours 24] [--quick] [--boot-ms 0]

Everything runs in the simulated time of `virtual.py`, in which the control plane's own processor time
counts. Ray Tune's published figures: 10,000 trials of 1 s on 16 slots 715 s; 1,000 trials with 0.1 results
a second 168 s; 96 trials with 10 results a second 169 s (ideal 625, 100 and 100).
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.search.virtual import Course, VirtualPlane, nodes, peak_mib, percentile, virtual_plane
from sqlalchemy import func, select

from phalanx.core.search.draw import random_params
from phalanx.core.search.sampling import Observation, SampleRequest
from phalanx.schemas.spec.study import StudySpec
from phalanx.schemas.wire.assignments import Assignment
from phalanx.search import SamplerWorker
from phalanx.services.resources.projects import apply_projects
from phalanx.store.database import Tx
from phalanx.store.jobs import HOLDING_STATES
from phalanx.store.studies import rows
from phalanx.store.studies.rows import StoredStudy
from phalanx.store.tables import jobs

PARTS = ("trials", "results", "day", "projects", "suggestion")
DAY_S = 86_400.0


def spec(name: str, trials: int, parallel: int, **changes: Any) -> dict[str, Any]:
    """A study of one-slot trials."""
    base: dict[str, Any] = {
        "kind": "study",
        "name": name,
        "objective": {"metric": "loss"},
        "search": {"method": "random", "seed": 1},
        "space": {"lr": {"log": [1e-5, 1.0]}, "dropout": {"float": [0.0, 0.9]}},
        "trials": {"max": trials, "parallel": parallel},
        "job": {"run": ["true"], "resources": {"nodes": 1, "slots_per_node": 1}},
    }
    return base | changes


def load(plane: VirtualPlane, num: int) -> StoredStudy:
    """The row of a study."""

    def read(tx: Tx) -> StoredStudy:
        return rows.load(tx, num)

    return plane.context.platform.store.view(read)


def ended(plane: VirtualPlane, nums: list[int]) -> Callable[[], bool]:
    """Whether all studies are over; asked after each event, looked up after some."""
    calls = 0

    def look() -> bool:
        nonlocal calls
        calls += 1
        return calls % 16 == 0 and all(load(plane, num).progress.ended_at for num in nums)

    return look


@contextmanager
def plane_of(
    course: Callable[[Assignment], Course], count: int, slots: int, boot_s: float
) -> Iterator[VirtualPlane]:
    """A control plane over a folder that is deleted."""
    with (
        tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder,
        virtual_plane(Path(folder), course, nodes(count, slots), boot_s) as plane,
    ):
        yield plane


def one_study(name: str, study: dict[str, Any], course: Course, slots: int, boot_s: float) -> float:
    """Run one study; prints what it took and what cost it. Returns the simulated seconds."""
    wall = time.perf_counter()
    with plane_of(lambda assignment: course, 1, slots, boot_s) as plane:
        num = plane.study(study)
        plane.run(ended(plane, [num]))
        done = load(plane, num).progress
        took = ((done.ended_at or 0) - plane.began) / 1e6
        ideal = study["trials"]["max"] * course.results * course.unit_s / slots
        spent = sum(plane.spent.values())
        each = 1e3 * spent / study["trials"]["max"]
        print(f"| {name} | {took:.1f} s | {ideal:.1f} s | {spent:.0f} s | {each:.1f} ms |")
        parts = ", ".join(f"{k} {v:.1f}" for k, v in plane.spent.most_common(6))
        counts = dict(done.counts)
        print(f"    {counts}; processor s: {parts}; wall {time.perf_counter() - wall:.0f} s")
        assert counts == {"completed": study["trials"]["max"]}, counts
    return took


def trials(given: argparse.Namespace) -> None:
    for parallel in (16, 32):
        study = spec("short", given.trials, parallel)
        name = f"{given.trials} trials of 1 s, 16 slots, parallel {parallel}"
        one_study(name, study, Course(1, 1.0), 16, given.boot_ms / 1e3)


def results(given: argparse.Namespace) -> None:
    share = 10 if given.quick else 1
    slow = Course(10, 10.0)
    name = f"{1000 // share} trials, a result each 10 s"
    one_study(name, spec("slow", 1000 // share, 1000 // share), slow, 1000 // share, 0.0)
    fast = Course(1000 // share, 0.1)
    name = f"96 trials, 10 results a second, {100 // share} s"
    one_study(name, spec("fast", 96, 96), fast, 96, 0.0)


def day(given: argparse.Namespace) -> None:
    """500 studies a day of 100 trials each, as they come; methods and rungs mixed."""
    hours = 0.2 if given.quick else given.hours
    dice, count = random.Random("day"), round(500 * hours / 24)
    at, arrivals = 0.0, []
    for _ in range(count):
        at += dice.expovariate(500 / DAY_S)
        arrivals.append(at)

    def course(assignment: Assignment) -> Course:
        own = random.Random(f"{assignment.gang.job.num}")
        floor = own.random()
        return Course(9, own.lognormvariate(4.0, 0.5), lambda unit: floor + 1.0 / unit)

    wall = time.perf_counter()
    with plane_of(course, 64, 8, 2.0) as plane:
        nums: list[int] = []

        def submit(index: int) -> None:
            study = spec(f"s{index}", 100, 10)
            study["search"] = {
                "method": ("random", "qmc", "random", "auto")[index % 4],
                "seed": index,
            }
            if index % 2:
                study["rungs"] = {"rule": "asha", "min": 1, "max": 9, "eta": 3}
            nums.append(plane.study(study))

        for index, when in enumerate(arrivals):
            plane.at(when, functools.partial(submit, index))
        end = hours * 3600
        plane.run(lambda: plane.now_s >= end)
        passes = next(one.spent for one in plane.loops if one.loop.name == "scheduler")
        done = sum(load(plane, num).progress.ended_at is not None for num in nums)
        print(
            f"| {len(nums)} studies in {hours:g} h, 512 slots | {len(passes)} planner steps "
            f"| p50 {1e3 * percentile(passes, 0.5):.1f} ms | p99 {1e3 * percentile(passes, 0.99):.1f} ms "
            f"| max {1e3 * max(passes):.1f} ms | peak {peak_mib():.0f} MiB |"
        )
        spent = ", ".join(f"{k} {v:.0f}" for k, v in plane.spent.most_common(6))
        print(f"    {done} ended; processor s: {spent}; wall {time.perf_counter() - wall:.0f} s")


_SHARED_S, _FIRST_S = 300, 40
"""Length of the run of two projects, and of its beginning: trials that came first hold slots until then."""
PROJECTS = {
    "schema": 1,
    "projects": [
        {"name": "vision", "weight": 1.0},
        {"name": "speech", "weight": 1.0},
        {"name": "production", "guaranteed_slots": 8},
    ],
}


def projects(given: argparse.Namespace) -> None:
    """Two projects of equal weight, one with a wide study; a gang of a guaranteed project comes twice."""
    for kind in ("studies", "ordinary jobs"):
        print(
            f"    gangs started so many s after their submission: {_two_projects(kind)}", flush=True
        )


def _two_projects(kind: str) -> list[float]:
    def course(assignment: Assignment) -> Course:
        name, own = assignment.gang.job.name, random.Random(assignment.gang.job.num)
        return Course(3, 20.0) if name == "serve" else Course(3, own.uniform(5.0, 15.0))

    with plane_of(course, 4, 4, 0.5) as plane:
        apply_projects(plane.context.platform, PROJECTS, plane.clock.now(), "bench")
        small = {"run": ["true"], "resources": {"nodes": 1, "slots_per_node": 1}}
        for name, count, parallel in (("vision", 150, 100), ("speech", 100, 16)):
            if kind == "studies":
                plane.study(spec(name, count, parallel, job={**small, "project": name}), owner=name)
            else:
                for _ in range(count):
                    plane.job({**small, "schema": 1, "name": name, "project": name}, owner=name)
        gangs: list[tuple[int, int]] = []

        def gang() -> None:
            wide = {"run": ["true"], "resources": {"nodes": 2, "slots_per_node": 4}}
            job = {**wide, "schema": 1, "name": "serve", "project": "production", "priority": 80}
            gangs.append((plane.job(job), plane.clock.now()))

        for when in (60.0, 180.0):
            plane.at(when, gang)
        seconds: list[dict[str, int]] = []
        for second in range(_SHARED_S):
            plane.at(second + 0.5, lambda: seconds.append(_held(plane)))
        plane.run(lambda: plane.now_s >= _SHARED_S)
        for name, part in (("all", seconds), (f"behind {_FIRST_S} s", seconds[_FIRST_S:])):
            vision, speech = (sum(one.get(p, 0) for one in part) for p in ("vision", "speech"))
            used = sum(sum(one.values()) for one in part) / (16 * len(part))
            gap = sum(one.get("vision", 0) - one.get("speech", 0) for one in part) / len(part)
            print(
                f"| {kind}, {name}: share of vision of both | {vision / (vision + speech):.3f} "
                f"| vision holds {gap:+.2f} slots more on average | used {used:.3f} of all |"
            )
        return [round((plane.started_at.get(num, 0) - at) / 1e6, 2) for num, at in gangs]


def _held(plane: VirtualPlane) -> dict[str, int]:
    """Slots that are held now, by project."""
    held = (
        select(jobs.c.project, func.sum(jobs.c.num_slots))
        .where(jobs.c.state.in_(HOLDING_STATES))
        .group_by(jobs.c.project)
    )

    def read(tx: Tx) -> dict[str, int]:
        return {project: int(slots) for project, slots in tx.conn.execute(held)}

    return plane.context.platform.store.view(read)


def suggestion(given: argparse.Namespace) -> None:
    """Wall time of one suggestion, 1,000 trials finished and 10 running, with the sampler process."""
    space = StudySpec.model_validate(
        spec("s", 1, 1)
        | {
            "space": {
                "lr": {"log": [1e-5, 1.0]},
                "batch": {"values": [16, 32, 64]},
                "layers": {"int": [1, 8]},
                **{name: {"float": [0.0, 1.0]} for name in ("dropout", "momentum", "decay")},
            }
        }
    ).to_space()
    drawn = [random_params(space, 1, number) or {} for number in range(1010)]
    dice = random.Random("losses")
    told = tuple(
        Observation(number, dict(params), dice.random() if number < 1000 else None)
        for number, params in enumerate(drawn)
    )
    worker = SamplerWorker()
    try:
        for method in ("auto", "tpe"):
            took: list[float] = []
            for trial in range(1010, 1015 if given.quick else 1060):
                began = time.perf_counter()
                worker.suggest(SampleRequest(space, method, {}, 1, trial, told))
                took.append(time.perf_counter() - began)
            warm = took[1:]  # the first one starts the process
            said = (f"{1e3 * percentile(warm, share):.1f} ms" for share in (0.5, 0.9, 1.0))
            print(f"| {method}: wall time of a suggestion, p50, p90, max | {' | '.join(said)} |")
    finally:
        worker.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--boot-ms", type=float, default=0.0)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.quick:
        given.trials = min(given.trials, 200)
    for name in given.only.split(","):
        globals()[name](given)
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
