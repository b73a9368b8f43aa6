"""A gang that hangs: seen, shown where, ended, and brought back; and stacks of one that does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.platform.harness import BIN, Platform, probe_spec
from phalanx.kit.text import parse_job_label
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
TRAINING = Path(__file__).parents[1] / "training"
LINE = "threading.Event().wait()"


def hanging(out: Path, stall: str, *flags: str) -> dict[str, Any]:
    words = ["care_job.py", "--out", str(out), "--norm", "layer"]
    words += ["--epochs", "1", "--samples", "120", "--hang-at", "9"]
    return {
        **probe_spec(out),
        "run": [str(BIN / "python"), *words, *flags],
        "workdir": str(TRAINING),
        "checkpoint": {"every": "3 steps", "async": False},
        "stall": stall,
    }


@pytest.mark.extras
def test_a_rank_that_hangs_is_named_with_its_line_and_the_job_recovers(
    platform: Platform, tmp_path: Path
) -> None:
    out = tmp_path / "hang"
    job = platform.submit(hanging(out, "3s"))
    view = platform.wait_state(job, "succeeded")
    assert (view.attempts, view.restarts) == (1, 1)
    (restart,) = view.lineage.restarts
    assert restart.cause == "stalled" and restart.next_step_at is not None
    source = (TRAINING / "care_job.py").read_text().splitlines()
    number = next(at for at, line in enumerate(source, 1) if LINE in line)
    assert "no step for" in restart.message
    assert (
        f"rank 1 differs from the other ranks: care_job.py:{number} in wait_for_ever"
        in restart.message
    )
    assert view.failure is not None and view.failure.rank == 1
    assert "in wait_for_ever" in view.failure.traceback
    # All ranks' stacks are kept with the attempt, also after the job's end.
    kept = json.loads(platform.run("stacks", job, "--kept", "--json").stdout)
    assert [one["rank"] for one in kept["ranks"]] == [0, 1, 2]
    assert (kept["attempt"], kept["generation"], kept["elsewhere"]) == (1, 0, [1])
    assert all("care_job.py" in one["text"] for one in kept["ranks"])
    shown = platform.run("stacks", job, "--kept").stdout
    assert f"rank 1: care_job.py:{number} in wait_for_ever  <- differs" in shown


@pytest.mark.extras
def test_with_one_rank_on_each_of_two_nodes_the_one_that_hangs_is_named(
    platform: Platform, tmp_path: Path
) -> None:
    """Each supervisor sees one rank and cannot compare it with another."""
    spec = hanging(tmp_path / "two", "3s")
    spec["resources"] = {"nodes": 2, "slots_per_node": 1}
    job = platform.submit(spec)
    view = platform.wait_state(job, "succeeded")
    (restart,) = view.lineage.restarts
    assert restart.cause == "stalled"
    assert "rank 1 differs from the other ranks: care_job.py" in restart.message
    assert view.failure is not None and (view.failure.rank, view.failure.node_rank) == (1, 1)
    assert "in wait_for_ever" in view.failure.traceback


@pytest.mark.proof
def test_without_stall_detection_it_hangs_and_stacks_on_demand_end_nothing(
    platform: Platform, tmp_path: Path
) -> None:
    job = platform.submit(hanging(tmp_path / "off", "never"))
    num = parse_job_label(job)
    assert num is not None

    def hangs() -> Any:
        with platform.client() as client:
            if client.job(num).progress.step != 8:
                return None
            asked = client.ask_stacks(num)
            found = client.stacks(num, asked=asked, wait_s=10).captures[-1]
            assert found.request == asked.request
            return found if found.elsewhere == [1] else None

    found = wait_until(hangs, "the stacks of a gang that hangs")
    assert "wait_for_ever" in (found.ranks[1].place or "")
    view = platform.show(job)
    assert (view.state, view.restarts) == ("running", 0)
    platform.run("stop", job, "--grace", "0s")
    refused = platform.run("stacks", job, check=False)
    assert refused.returncode == 1 and "no rank of" in refused.stderr
