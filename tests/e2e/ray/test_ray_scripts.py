"""`framework: ray`: unmodified Ray Train and Ray Tune scripts as gangs, on the local pool."""

from pathlib import Path

import pytest
import yaml

pytest.importorskip("ray")
pytestmark = [pytest.mark.extras, pytest.mark.e2e]
FOLDER = Path(__file__).resolve().parents[3] / "examples" / "ray"


def submit(platform, name, *words, **env):
    spec = yaml.safe_load((FOLDER / name).read_text())
    spec["run"] = " ".join([spec["run"].split(" --")[0], *words])
    spec["workdir"] = str(FOLDER)
    return platform.submit({**spec, "env": {**spec.get("env", {}), **env}})


def no_ray_left(job):
    import psutil

    return [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline"])
        if "/tmp/phr" in " ".join(process.info["cmdline"] or [])
    ]


def test_ray_train_reports_become_metrics(platform):
    job = submit(platform, "torch_trainer.yaml", "--workers 2 --epochs 3")
    view = platform.wait_state(job, "succeeded")
    assert view.progress.last_metrics["accuracy"] > 0.5
    assert view.progress.high_water_step == 3
    assert "accuracy" in platform.run("metrics", job).stdout
    assert no_ray_left(job) == []
    # Results lie with the job's checkpoints, and the run has one name in all attempts.
    assert list(Path(view.checkpoint_dir).glob(f"ray/ray_train_run-{job}/checkpoint_*"))


@pytest.mark.proof
def test_a_killed_ray_train_script_goes_on_where_it_was(platform):
    import os
    import signal

    from support.waiting import wait_until

    job = submit(platform, "torch_trainer.yaml", "--workers 2 --epochs 10")
    wait_until(lambda: (platform.show(job).progress.high_water_step or 0) >= 3, "some epochs")
    os.kill(platform.rank_pids(job)[1], signal.SIGKILL)
    view = platform.wait_state(job, "succeeded")
    assert view.restarts == 1
    logs = platform.run("logs", job).stdout
    assert "'epoch': 9" in logs
    # It went on from a checkpoint: fewer reports in the second generation than epochs.
    assert view.progress.high_water_step < 10


def test_ray_tune_reports_carry_their_trial(platform, tmp_path):
    # Ray's daemons ask for a token by default where the user's home holds one.
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0" * 64)
    job = submit(platform, "tune_search.yaml", "--samples 2 --steps 3", HOME=str(tmp_path))
    view = platform.wait_state(job, "succeeded")
    names = [name for name in view.progress.last_metrics if name.endswith("/height")]
    assert names
    assert "best" in platform.run("logs", job).stdout
    assert no_ray_left(job) == []


def test_a_stopped_ray_job_leaves_nothing(platform):
    """Its tasks are in the middle of calls that do not end."""
    from support.waiting import wait_until

    script = (
        "import ray, time\n"
        "ray.init()\n"
        "@ray.remote(num_cpus=1)\n"
        "def hold(number):\n"
        "    print('holds', number, flush=True)\n"
        "    time.sleep(3600)\n"
        "ray.get([hold.remote(number) for number in range(2)])\n"
    )
    resources = {"nodes": 2, "slots_per_node": 1}
    run = ["python", "-c", script]
    job = platform.submit({"framework": "ray", "run": run, "resources": resources})
    wait_until(lambda: platform.output(job).count("holds ") == 2, "both calls")
    platform.run("stop", job, "--grace", "5s")
    platform.wait_state(job, "cancelled")
    assert no_ray_left(job) == []


@pytest.mark.parametrize("end", ["killed", pytest.param("paused", marks=pytest.mark.proof)])
def test_a_tune_search_goes_on_with_the_trials_that_have_not_ended(platform, tmp_path, end):
    import os
    import signal
    import sys

    from support.waiting import wait_until

    notes = tmp_path / "notes"
    (tmp_path / "hold").touch()
    job = platform.submit(
        {
            "run": f"{sys.executable} killed_search.py {notes}",
            "workdir": str(Path(__file__).parent),
            "framework": "ray",
            "resources": {"slots_per_node": 2},
        }
    )

    def noted(*words):
        lines = notes.read_text().splitlines() if notes.exists() else []
        return [line for line in lines if line.startswith(" ".join(words))]

    # The fourth and fifth trial have begun, so the controller knows that the first three have ended.
    wait_until(lambda: noted("third step of 3") and noted("third step of 4"), "trials that wait")
    if end == "killed":
        os.kill(platform.rank_pids(job)[0], signal.SIGKILL)
        wait_until(lambda: platform.show(job).restarts == 1, "the restart")
    else:  # as when a job with a higher priority takes its slots
        platform.run("pause", job)
        platform.wait_state(job, "paused")
        platform.run("resume", job)
    (tmp_path / "hold").unlink()
    platform.wait_state(job, "succeeded")
    assert [noted(f"end {n}") for n in range(6)] == [[f"end {n}"] for n in range(6)]
    assert [len(noted(f"begin {n}")) for n in range(6)] == [1, 1, 1, 2, 2, 1]
    # Unfinished trials go on from their own checkpoints, and finished ones keep all their reports.
    assert not noted("begin 3 0")[1:] and not noted("begin 4 0")[1:]
    logs = platform.run("logs", job).stdout
    assert "num_cpus=2 is not used" in logs
    assert "a search goes on: 3 trials have ended, 2 continue" in logs
    assert "results 6 best 3" in logs
    assert "reports [3, 3, 3, 3, 3, 3]" in logs
    assert no_ray_left(job) == []


def test_the_nodes_of_a_ray_cluster_may_differ(platform):
    """Two roles that share a world are two Ray nodes, each with the slots of its role."""
    told = "print('cluster:', int(ray.cluster_resources()['CPU']), len(ray.nodes()))"
    run = ["python", "-c", f"import ray; ray.init(); {told}"]
    roles = {"large": {"run": run, "slots": 2}, "small": {"run": run, "world": "shared"}}
    job = platform.submit({"name": "unequal", "framework": "ray", "roles": roles})
    view = platform.wait_state(job, "succeeded")
    assert "cluster: 3 2" in platform.run("logs", job).stdout
    assert [(one.name, one.world) for one in view.roles] == [("large", "large"), ("small", "large")]
    assert no_ray_left(job) == []
