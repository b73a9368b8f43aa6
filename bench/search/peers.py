"""ASHA of Optuna and Syne Tune on the same tables, orders and durations; run by a Python that has them.

    python bench/search/peers.py FIRST_SEED NUMBER

It imports nothing of this repository. A library that is not installed is left out.
"""

from __future__ import annotations

import heapq
import logging
import math
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

NUM_TRIALS, PARALLEL, EPOCHS, IMAGES = 100, 10, 27, 599
Decide = Callable[[int, int, float], bool]


def simulate(errors: np.ndarray, seed: int, goes_on: Decide) -> tuple[int, float]:
    """Epochs and regret of a study in which `goes_on(trial, epoch, error)` stops trials."""
    order = random.Random(f"order/{seed}").sample(range(len(errors)), NUM_TRIALS)
    chance = random.Random(seed)
    running: list[tuple[float, int, int, float]] = []
    reached = {}
    epochs, following = 0, 0
    now = 0.0
    while True:
        while len(running) < PARALLEL and following < NUM_TRIALS:
            speed = 60 * math.exp(chance.gauss(0.0, 0.3))
            heapq.heappush(running, (now + speed, following, 1, speed))
            following += 1
        if not running:
            break
        now, trial, epoch, speed = heapq.heappop(running)
        epochs += 1
        error = float(errors[order[trial], epoch - 1])
        reached[trial] = (-epoch, error)
        if goes_on(trial, epoch, error) and epoch < EPOCHS:
            heapq.heappush(running, (now + speed, trial, epoch + 1, speed))
    last = errors[:, EPOCHS - 1]
    best = min(reached, key=lambda trial: (reached[trial], trial))
    return epochs, float(last[order[best]] - last[order].min())


def optuna_asha(seed: int) -> Decide:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    study = optuna.create_study(pruner=pruner, sampler=optuna.samplers.RandomSampler(seed=seed))
    trials: dict[int, optuna.Trial] = {}

    def goes_on(number: int, epoch: int, error: float) -> bool:
        if number not in trials:
            trials[number] = study.ask()
        trial = trials[number]
        trial.report(error, epoch)
        if epoch == EPOCHS:
            study.tell(trial, error)
        elif trial.should_prune():
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return False
        return True

    return goes_on


def syne_tune_asha(seed: int) -> Decide:
    from syne_tune.backend.trial_status import Trial
    from syne_tune.config_space import uniform
    from syne_tune.optimizer.baselines import ASHA

    scheduler = ASHA(
        {"x": uniform(0, 1)},
        metric="error",
        time_attr="epoch",
        max_t=EPOCHS,
        grace_period=1,
        reduction_factor=3,
        random_seed=seed,
        do_minimize=True,
    )
    trials: dict[int, Trial] = {}

    def goes_on(number: int, epoch: int, error: float) -> bool:
        if number not in trials:
            from datetime import UTC, datetime

            trials[number] = Trial(number, scheduler.suggest().config, datetime.now(UTC))
            scheduler.on_trial_add(trials[number])
        result = {"error": error, "epoch": epoch}
        if epoch == EPOCHS:
            scheduler.on_trial_complete(trials[number], result)
            return True
        return scheduler.on_trial_result(trials[number], result) == "CONTINUE"

    return goes_on


def main() -> None:
    logging.disable(logging.WARNING)
    first, number = int(sys.argv[1]), int(sys.argv[2])
    for name in ("digits_1", "digits_2"):
        with np.load(Path(__file__).with_name(f"{name}.npz")) as file:
            errors = np.asarray(file["errors"], dtype=float) / IMAGES
        print(f"\n{name}, peers: {number} orders from {first}")
        print("| rule | epochs | share | mean regret | largest |\n|---|---|---|---|---|")
        for peer, make in (("Optuna, asha", optuna_asha), ("Syne Tune, asha", syne_tune_asha)):
            try:
                found = [
                    simulate(errors, seed, make(seed)) for seed in range(first, first + number)
                ]
            except ImportError as error:
                print(f"| {peer} | not installed: {error} |")
                continue
            epochs = statistics.mean(one for one, _ in found)
            regrets = [one for _, one in found]
            share = epochs / (NUM_TRIALS * EPOCHS)
            mean = statistics.mean(regrets)
            print(f"| {peer} | {epochs:.0f} | {share:.1%} | {mean:.5f} | {max(regrets):.4f} |")


if __name__ == "__main__":
    main()
