"""A profile of a job that runs on the platform, asked for with the command line; a failed preflight."""

import gzip
import json
from pathlib import Path

import pytest

from e2e.platform.harness import BIN, Platform, probe_spec
from support.waiting import wait_until

pytestmark = [pytest.mark.extras, pytest.mark.e2e]
TRAINING = Path(__file__).parents[1] / "training"


def job_of(script: str, out: Path, *flags: str) -> dict[str, object]:
    words = [str(BIN / "python"), script, "--out", str(out), *flags]
    return {**probe_spec(out), "run": words, "workdir": str(TRAINING)}


def test_a_live_job_is_profiled_and_trains_on(platform: Platform, tmp_path: Path) -> None:
    job = platform.submit(job_of("profile_job.py", tmp_path / "live", "--for-ever"))
    wait_until(lambda: (platform.show(job).progress.step or 0) > 2, "the first steps")
    trace = tmp_path / "trace.json.gz"
    words = ("--steps", 4, "--trace", 1, "--memory", "--output", trace)
    shown = platform.run("profile", job, *words).stdout
    assert "verdict" in shown and "no memory snapshot: there is no GPU" in shown
    ranks = {
        one["pid"] // 100 for one in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    }
    kept = json.loads(platform.run("profile", job, "--kept", "--json").stdout)
    assert [one["rank"] for one in kept["splits"]] == sorted(ranks)
    (saved,) = json.loads(platform.run("checkpoint", "save", job, "--json").stdout)
    known = json.loads(platform.run("checkpoints", job, "--json").stdout)
    assert saved["path"] in [one["path"] for one in known]
    before = platform.show(job)
    assert (before.state, before.restarts) == ("running", 0)
    wait_until(lambda: platform.show(job).progress.step > before.progress.step, "more steps")
    assert "profiled: " in platform.run("show", job).stdout
    platform.run("stop", job, "--grace", "0s")


def test_a_failed_preflight_is_shown_in_one_line(platform: Platform, tmp_path: Path) -> None:
    spec = job_of("preflight_job.py", tmp_path / "odd", "--odd", "1")
    job = platform.submit({**spec, "recovery": {"start_failed": {"count": 0}}})
    view = platform.wait_state(job, "failed")
    assert view.failure is not None and view.failure.cause == "start_failed"
    assert "has torch 2.12.1+cpu, the others 2.13" in platform.run("show", job).stdout
