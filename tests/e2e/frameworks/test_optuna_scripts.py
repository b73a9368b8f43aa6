"""`framework: optuna`: an unmodified script as a job, whose rank is killed."""

import os
import signal
from pathlib import Path

import pytest

from support.waiting import wait_until

pytest.importorskip("optuna")
pytestmark = [pytest.mark.extras, pytest.mark.e2e]
# Waits in its fourth trial while a file is there.
SCRIPT = """
import os, sys, time
import optuna

def objective(trial):
    while trial.number >= 3 and os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    return trial.suggest_float("x", 0, 1)

study = optuna.create_study()
study.optimize(objective, n_trials=6)
print("states", "".join(trial.state.name[0] for trial in study.trials))
"""


def test_a_killed_optuna_job_goes_on(platform, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "search.py").write_text(SCRIPT)
    hold = tmp_path / "hold"
    hold.touch()
    spec = {"run": f"python search.py {hold}", "framework": "optuna"}
    job = platform.submit({**spec, "workdir": str(tmp_path / "code")})
    wait_until(lambda: (platform.show(job).progress.high_water_step or 0) >= 3, "three trials")
    os.kill(platform.rank_pids(job)[0], signal.SIGKILL)
    wait_until(lambda: platform.show(job).restarts == 1, "the restart")
    hold.unlink()
    view = platform.wait_state(job, "succeeded")
    assert "value" in view.progress.last_metrics
    assert (Path(view.checkpoint_dir) / "optuna-0" / "studies.journal").exists()
    assert "states CCCFCCC" in platform.run("logs", job).stdout
