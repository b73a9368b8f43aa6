"""Unmodified Optuna scripts under `framework: optuna`, with a real SIGKILL in the middle of a trial."""

import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("optuna")
pytestmark = pytest.mark.integration

# Nothing here knows Phalanx. The fourth trial kills the process in its first start.
SCRIPT = """
import os, signal
import optuna

def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    note("begin", x)
    if trial.number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    note("end", x)
    return x

def note(*words):
    with open(os.environ["NOTES"], "a") as file:
        print(*words, file=file)

study = optuna.create_study({STORAGE}sampler=optuna.samplers.RandomSampler(seed=1))
study.enqueue_trial({"x": 0.5})
study.optimize(objective, n_trials=6, n_jobs={JOBS})
print("states", "".join(trial.state.name[0] for trial in study.trials))
"""
# As scripts name their storage: none, a file, with a name that exists at the second start.
STORAGES = {
    "memory": "",
    "sqlite": "storage='sqlite:///a.db', ",
    "named": "storage='sqlite:///a.db', study_name='lr', ",
    "journal": "study_name='lr', storage=optuna.storages.JournalStorage("
    "optuna.storages.journal.JournalFileBackend('kept/lr.log')), ",
}


class Job:
    """One job: a folder that stays, and an own copy of the code for each start."""

    def __init__(self, root, text):
        self.root, self.text, self.starts = root, text, 0
        self.notes = root / "notes"
        self.env = {
            **os.environ,
            "PHALANX_CHECKPOINT_DIR": str(root / "kept-by-the-job"),
            "NOTES": str(self.notes),
            "PHALANX_JOB_UID": f"uid-{root.name}",
            "RANK": "0",
            "WORLD_SIZE": "1",
        }

    def start(self):
        self.starts += 1
        code = self.root / f"start-{self.starts}"
        code.mkdir()
        (code / "search.py").write_text(self.text)
        words = [sys.executable, "-m", "phalanx.train.frameworks.optuna", "--"]
        return subprocess.run(
            [*words, sys.executable, "search.py"],
            cwd=code,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def noted(self, kind):
        return [line.split()[1] for line in self.notes.read_text().splitlines() if kind in line]


def script(storage, jobs=1):
    return SCRIPT.replace("{STORAGE}", STORAGES[storage]).replace("{JOBS}", str(jobs))


@pytest.mark.parametrize(
    "storage",
    ["memory", *(pytest.param(one, marks=pytest.mark.extras) for one in list(STORAGES)[1:])],
)
def test_a_killed_script_goes_on_with_the_trials_that_have_not_ended(tmp_path, storage):
    job = Job(tmp_path, script(storage))
    assert job.start().returncode == -signal.SIGKILL
    first = job.noted("end")
    assert len(first) == 3
    done = job.start()
    assert done.returncode == 0, done.stderr
    ended = job.noted("end")
    assert ended[:3] == first
    assert len(ended) == len(set(ended)) == 6  # n_trials, and none of them twice
    begun = job.noted("begin")
    assert begun[4] == begun[3] == ended[3]  # the trial that was killed runs again, with its params
    assert ended.count("0.5") == 1  # what the script enqueues at each start is one trial
    assert "states CCCFCCC" in done.stdout
    assert "3 trials have ended, 1 run again" in done.stderr
    # A third start finds nothing to do.
    assert "states CCCFCCC" in job.start().stdout
    assert job.noted("end") == ended


@pytest.mark.extras
def test_threads_share_the_storage_and_are_all_run_again(tmp_path):
    job = Job(tmp_path, script("memory", jobs=2))
    assert job.start().returncode == -signal.SIGKILL
    first = job.noted("end")
    done = job.start()
    assert done.returncode == 0, done.stderr
    ended = job.noted("end")
    # A trial may note its end just before the other thread kills the process: it was never told.
    assert len(set(ended)) == 6
    assert len(ended) <= 7
    assert ended[: len(first)] == first


@pytest.mark.extras
def test_a_job_that_begins_anew_has_another_study(tmp_path):
    job = Job(tmp_path, script("named").replace("== 3", "== -1"))
    assert job.start().returncode == 0
    job.env["PHALANX_BEGINNING"] = "1"
    assert "states CCCCCC" in job.start().stdout
    assert len(job.noted("end")) == 12


@pytest.mark.extras
def test_a_study_of_another_job_is_refused_as_optuna_does(tmp_path):
    shared = f"storage='sqlite:///{tmp_path}/shared.db', study_name='lr', "
    text = SCRIPT.replace("{STORAGE}", shared).replace("{JOBS}", "1").replace("== 3", "== -1")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    assert Job(tmp_path / "first", text).start().returncode == 0
    refused = Job(tmp_path / "second", text).start()
    assert refused.returncode == 1
    assert "DuplicatedStudyError" in refused.stderr


def test_a_command_that_is_no_python_script_is_refused(tmp_path):
    words = [sys.executable, "-m", "phalanx.train.frameworks.optuna", "--shell", "--"]
    done = subprocess.run([*words, "cd x && python y.py"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "framework: optuna runs `python SCRIPT" in done.stderr
