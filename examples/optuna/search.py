"""A plain Optuna script: nothing here knows Phalanx.

python examples/optuna/search.py
phalanx submit examples/optuna/job.yaml --follow
"""

import argparse

import optuna


def objective(trial):
    lr = trial.suggest_float("lr", 0.001, 0.9, log=True)
    momentum = trial.suggest_float("momentum", 0.0, 0.9)
    height, speed = 100.0, 0.0
    for step in range(30):
        speed = momentum * speed - lr * height
        height += speed
        trial.report(abs(height), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return abs(height)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20)
    args = parser.parse_args()
    study = optuna.create_study(storage="sqlite:///search.db", study_name="height")
    study.optimize(objective, n_trials=args.trials)
    print("best", study.best_params, study.best_value)
