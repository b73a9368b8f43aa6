"""A plain Ray Tune script: nothing here knows Phalanx.

python examples/ray/tune_search.py
phalanx submit examples/ray/tune_search.yaml --follow
"""

import argparse

from ray import tune


def objective(config):
    height = 100.0
    for step in range(1, config["steps"] + 1):
        height *= 1.0 - config["lr"] * (1.0 - config["lr"])
        tune.report({"height": height, "step": step})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    tuner = tune.Tuner(
        objective,
        param_space={"lr": tune.uniform(0.01, 0.9), "steps": args.steps},
        tune_config=tune.TuneConfig(num_samples=args.samples, metric="height", mode="min"),
    )
    best = tuner.fit().get_best_result()
    print("best", best.config, best.metrics["height"])
