"""What rules of rungs save, and what they lose, on tables of real learning curves.

Each study draws 100 of a table's networks in an order given by its seed, with 10 trials in parallel. Slot
time is counted in epochs, beside training all 100 to the end; regret is the difference of the error after
27 epochs between the network that the study calls best and the best of the 100.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.search.simulator import Simulation

from phalanx.core.search.model import Objective, RungPolicy, Study, StudyPolicy
from phalanx.core.search.space import IntParameter, Space

FOLDER = Path(__file__).parent
NUM_TRIALS, PARALLEL, EPOCHS = 100, 10, 27
TARGET_SHARE, TARGET_REGRET = 0.20, 0.001
IMAGES = 599
RULES: Mapping[str, RungPolicy | None] = {
    "all to the end": None,
    "median": RungPolicy(rule="median"),
    "asha, stop": RungPolicy(type="stop"),
    "asha, promotion": RungPolicy(),
    "hyperband": RungPolicy(rule="hyperband"),
    "pasha": RungPolicy(rule="pasha"),
}


@dataclass(frozen=True)
class Economy:
    """The figures of one study."""

    epochs: int
    slot_s: float
    regret: float
    makespan_s: float
    resumes: int


def table(name: str) -> np.ndarray:
    """Errors by (network, epoch)."""
    with np.load(FOLDER / f"{name}.npz") as file:
        return np.asarray(file["errors"], dtype=float) / IMAGES


def order_of(rows: int, seed: int) -> list[int]:
    """The networks of one study, in the order in which they are tried."""
    return random.Random(f"order/{seed}").sample(range(rows), NUM_TRIALS)


def study(errors: np.ndarray, rungs: RungPolicy | None, seed: int) -> Economy:
    order = order_of(len(errors), seed)
    policy = StudyPolicy(
        Space({"network": IntParameter(0, len(errors) - 1)}),
        objective=Objective("error", at="last"),
        method="random",
        max_trials=NUM_TRIALS,
        parallel=PARALLEL,
        rungs=rungs,
    )

    def suggest(_: Study, number: int) -> dict[str, Any]:
        return {"network": order[number]}

    def curve(params: Mapping[str, Any], unit: int) -> float:
        return float(errors[params["network"], unit - 1])

    simulation = Simulation(policy, suggest, curve, max_units=EPOCHS, seed=seed, unit_s=60.0)
    found = simulation.go()
    best = found.study.best
    assert best is not None
    last = errors[:, EPOCHS - 1]
    regret = float(last[best.params["network"]] - last[order].min())
    return Economy(found.units, found.slot_s, regret, found.makespan_s, found.resumes)


def line(name: str, found: Iterable[tuple[int, float]], extra: str = "") -> str:
    """One row of the report: mean epochs, share of the full time, mean and largest regret."""
    rows = list(found)
    epochs = statistics.mean(one for one, _ in rows)
    regrets = [one for _, one in rows]
    share = epochs / (NUM_TRIALS * EPOCHS)
    return (
        f"| {name} | {epochs:.0f} | {share:.1%} | {statistics.mean(regrets):.5f} | "
        f"{max(regrets):.4f} | {extra} |"
    )


def report(seeds: Iterable[int], tables: Iterable[str] = ("digits_1", "digits_2")) -> bool:
    """Print the rows of all rules; returns whether ASHA by promotion keeps its goals on every table."""
    kept = True
    seeds = list(seeds)
    for name in tables:
        errors = table(name)
        print(
            f"\n{name}: {len(seeds)} orders from {seeds[0]}, {NUM_TRIALS} trials, {PARALLEL} at a time"
        )
        print("| rule | epochs | share | mean regret | largest | makespan s, resumes |")
        print("|---|---|---|---|---|---|")
        for rule, rungs in RULES.items():
            found = [study(errors, rungs, seed) for seed in seeds]
            makespan = statistics.mean(one.makespan_s for one in found)
            resumes = statistics.mean(one.resumes for one in found)
            rows = [(one.epochs, one.regret) for one in found]
            print(line(rule, rows, f"{makespan:.0f}, {resumes:.0f}"))
            if rule == "asha, promotion":
                share = statistics.mean(one.epochs for one in found) / (NUM_TRIALS * EPOCHS)
                regret = statistics.mean(one.regret for one in found)
                kept = kept and share <= TARGET_SHARE and regret <= TARGET_REGRET
    said = "kept" if kept else "missed"
    print(f"\nasha by promotion, share <= {TARGET_SHARE:.0%} at regret <= {TARGET_REGRET}: {said}")
    return kept
