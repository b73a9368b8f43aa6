"""A job's own packages through the whole platform: spec, flags, reuse, and what a mistake looks like."""

import json

import pytest

from e2e.platform.harness import BIN
from support.waiting import wait_until
from tinywheel import make_wheel

# Several whole jobs: what `make test` needs of it is in test_mistakes and in the supervisor's tests.
pytestmark = [pytest.mark.e2e, pytest.mark.proof]


def wheels(platform):
    folder = platform.root / "wheels"
    if not folder.exists():
        make_wheel(folder, "tinypkg")
    return {"installer": "pip", "index_url": "none", "find_links": [str(folder)]}


def spec(platform, out, *packages, ranks=1):
    return {
        "name": "packages",
        "run": f"{BIN / 'python'} packages_job.py",
        "warm": False,
        "resources": {"slots_per_node": ranks},
        "env": {"PROBE_OUT": str(out)},
        "python": {**wheels(platform), "packages": list(packages)},
    }


def builds(platform, job):
    return platform.run("logs", job).stdout.count("building environment")


def test_a_second_job_reuses_the_environment(platform, tmp_path):
    jobs = []
    for name in ("one", "two"):
        jobs.append(platform.submit(spec(platform, tmp_path / name, "tinypkg==1.0", ranks=2)))
        platform.wait_state(jobs[-1], "succeeded")
    found = [
        json.loads((tmp_path / f"{n}.{r}").read_text()) for n in ("one", "two") for r in (0, 1)
    ]
    assert all(one == found[0] for one in found)
    assert found[0]["version"] == "1.0"
    assert found[0]["prefix"].startswith(str(platform.home / "python"))
    assert [builds(platform, job) for job in jobs] == [1, 0]


def test_why_says_what_a_starting_job_does(platform, tmp_path):
    """The installer is a program that waits until it is told to go on."""
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "uv").write_text(f"#!/bin/sh\nuntil test -e {tmp_path / 'go'}; do sleep 0.05; done\n")
    (fake / "uv").chmod(0o700)
    wanted = spec(platform, tmp_path / "x", "tinypkg")
    wanted["run"] = "true"
    wanted["python"]["installer"] = "uv"
    wanted["env"]["PATH"] = f"{fake}:{BIN}:/usr/bin:/bin"
    job = platform.submit(wanted)
    said = "the Python packages are being installed on local"
    wait_until(lambda: said in platform.run("why", job).stdout, "its reason")
    (tmp_path / "go").touch()
    platform.wait_state(job, "succeeded")


def test_flags_of_run_and_files_that_do_not_travel(platform, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("import tinypkg; print('got', tinypkg.VERSION)\n")
    wheel = make_wheel(folder / "wheels", "tinypkg", "3.0")
    (folder / "needs.txt").write_text(f"--no-index\n--find-links {wheel.parent}\ntinypkg\n")
    platform.root, home = folder, platform.root
    try:
        done = platform.run("run", "--no-warm", "--requirements", "needs.txt", "train.py")
        assert "got 3.0" in done.stdout
        missing = platform.run("run", "--requirements", "gone.txt", "train.py", check=False)
        assert missing.returncode == 1
        assert "gone.txt: no such file" in missing.stderr
    finally:
        platform.root = home
    wanted = {**spec(platform, tmp_path / "x"), "python": "nothere.txt"}
    with pytest.raises(AssertionError, match=r"python\.requirements.*is not in the work directory"):
        platform.submit(wanted)
