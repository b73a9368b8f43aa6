"""A plain Ray Tune script that notes what its trials do; trials above the third wait while a file is there.

Nothing here knows Phalanx, nor restores anything but the checkpoint of a trial, as any Tune script does.
"""

import sys
import tempfile
import time
from pathlib import Path

import ray
from ray import tune

NOTES = Path(sys.argv[1])


def note(*words):
    with NOTES.open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def objective(config):
    begin = 0
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            begin = int(Path(folder, "step").read_text())
    note("begin", config["n"], begin)
    for step in range(begin + 1, 4):
        if step == 3:
            note("third step of", config["n"])
        while step == 3 and config["n"] >= 3 and NOTES.with_name("hold").exists():
            time.sleep(0.05)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            kept = tune.Checkpoint.from_directory(folder)
            tune.report({"height": config["n"] + step, "step": step}, checkpoint=kept)
    note("end", config["n"])


if __name__ == "__main__":
    ray.init(num_cpus=2)
    tuner = tune.Tuner(
        objective,
        param_space={"n": tune.grid_search(list(range(6)))},
        tune_config=tune.TuneConfig(metric="height", mode="min", max_concurrent_trials=2),
    )
    results = tuner.fit()
    print("results", len(results), "best", results.get_best_result().metrics["height"], flush=True)
    print("reports", [len(result.metrics_dataframe) for result in results], flush=True)
