"""Scripts without the library: lines are counted on after a restart, and metrics are sent over HTTP."""

import sys
from pathlib import Path

import pytest

from e2e.platform.harness import BIN, Platform
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


SENDER = """
import json, os, signal, subprocess, sys, urllib.request
from pathlib import Path
def send(body, url, token):
    headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the answer says when to stop
token = os.environ["PHALANX_METRICS_TOKEN"]
print("the token is", token, flush=True)
status = {"trainerStatus": {"progressPercentage": 10, "metrics": [
    {"name": "current_step", "value": "1"}, {"name": "grad_norm", "value": "2.5"}]}}
file = Path(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read_text()
send(status, os.environ["KUBEFLOW_TRAINER_SERVER_URL"], file)
step = 1
while True:
    step += 1
    points = [{"name": "loss", "value": 1 / step, "step": step}]
    answer = send({"points": points}, os.environ["PHALANX_METRICS_URL"], token)
    if answer["stop"]:
        Path(sys.argv[1]).write_text(answer["reason"])
        verb = [sys.argv[2], "report", "loss=0.5", "--step", str(step)]
        sys.exit(0 if subprocess.run(verb).returncode == 104 else 9)
"""


def test_a_script_sends_metrics_and_learns_that_it_should_stop(platform: Platform, tmp_path: Path):
    (tmp_path / "train.py").write_text(SENDER)
    reason = tmp_path / "reason"
    job = platform.submit(
        {
            "name": "sender",
            "workdir": str(tmp_path),
            "run": ["env", sys.executable, "train.py", str(reason), str(BIN / "phalanx")],
            "framework": "none",
            "resources": {"slots_per_node": 1},
        }
    )
    num = parse_job_label(job)
    assert num is not None
    with platform.client() as client:
        wait_until(lambda: (client.job(num).progress.step or 0) > 2, "steps of the script")
        platform.run("pause", job, "--grace", "60s")
        assert platform.wait_state(job, "paused").state == "paused"
        assert reason.read_text() == "pause_requested"
        assert {"loss", "grad_norm", "progress_percent"} <= set(client.metrics(num).names)
        text = "".join(line.text for line in client.logs(num).lines)
    assert "the token is" in text and f"{num}.1.0.0." not in text
