"""A script that prints no step: its lines are counted on after a restart, in the job as users see it."""

import sys
from pathlib import Path

import pytest

from e2e.platform.harness import Platform
from phalanx.kit.text import parse_job_label
from support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.extras]

SCRIPT = """
import os, sys, time
out, restarts = sys.argv[1], os.environ["TORCHELASTIC_RESTART_COUNT"]
done = int(open("out/state.bin").read()) if os.path.isdir("out") else 0
for number in range(done + 1, done + 41):
    print(f"{{'loss': {1 / number}}}", flush=True)
os.makedirs("out", exist_ok=True)
open("out/state.bin.tmp", "w").write(str(number))
os.replace("out/state.bin.tmp", "out/state.bin")
# The folder is committed when it is quiet; the test then lets this life end.
while not os.path.exists(f"{out}-{restarts}"):
    time.sleep(0.01)
sys.exit(int(restarts) < 2)
"""


def test_lines_are_counted_across_restarts(platform: Platform, tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    go = tmp_path / "go"
    job = platform.submit(
        {
            "name": "counted",
            "workdir": str(tmp_path),
            "run": [sys.executable, "train.py", str(go)],
            "resources": {"slots_per_node": 1},
            "metrics": "'loss': {loss}",
            "checkpoint": {"directory": "out"},
            # With lines counted from 0 again the second crash would use up the budget.
            "recovery": {"rank_crash": {"count": 1, "per": "1h"}},
        }
    )
    num = parse_job_label(job)
    assert num is not None
    with platform.client() as client:
        for life in range(3):
            wait_until(lambda n=life: len(client.checkpoints(num)) > n, "a commit of the folder")
            Path(f"{go}-{life}").touch()
        platform.wait_state(job, "succeeded")
        series = client.metrics(num, names=["loss"]).series[0]
    assert series.steps == list(range(1, 121))
    assert series.values[-1] == pytest.approx(1 / 120)
