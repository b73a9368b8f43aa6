"""How fast the platform is on a cluster: `-m proof`, with STARTS (10) and ENDS (50).

The times from the kill of a rank to the next step are those of `test_kubernetes_faults.py` with KINDS=rank.
RECORD is a file that gets a line for each figure. The bars are for a quiet machine: nothing is asserted.
Pods import torch before their ranks start, and no start can be quicker than that: as many plain imports at
once are measured between the starts. Ranks without torch tell what is ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.kubernetes.test_kubernetes_faults import commit, quantiles
from e2e.kubernetes.test_kubernetes_platform import KubernetesPlatform, succeeded
from phalanx.kit.text import parse_job_label
from support.waiting import wait_until

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3600)]
STARTS, ENDS = int(os.environ.get("STARTS", "10")), int(os.environ.get("ENDS", "50"))
RECORD = os.environ.get("RECORD")
_AT_ONCE = 5
_NEVER = {"count": 0, "per": "1h"}
_BEGIN = """
import os
import time
from pathlib import Path

Path(os.environ["MARKS"], f"{os.environ['PHALANX_JOB']}-{os.getpid()}").write_text(str(time.time()))
"""


@pytest.fixture
def platform(cluster, tmp_path):
    for number in range(3):
        cluster.kubelet.add_node(f"node-{number}", cpu="32")
    one = KubernetesPlatform(tmp_path, cluster)
    one.up()
    yield one
    one.down()
    wait_until(lambda: cluster.left() == [], "an empty cluster")


def tell(cluster, capsys, what, values, bar):
    """Print one figure, and record it."""
    found = {
        "cluster": type(cluster).__name__,
        "commit": commit(),
        "load": os.getloadavg()[0],
        "seconds": what,
        **quantiles(sorted(values)),
        "most": round(max(values), 3),
        "bar": bar,
    }
    with capsys.disabled():
        print(json.dumps(found), flush=True)
    if RECORD:
        with Path(RECORD).open("a") as record:
            record.write(json.dumps(found) + "\n")


def importing_torch_s(num):
    """Seconds until so many interpreters, started at once, have imported torch."""
    began = time.monotonic()
    started = [subprocess.Popen([sys.executable, "-c", "import torch"]) for _ in range(num)]
    assert [one.wait() for one in started] == [0] * num
    return time.monotonic() - began


@pytest.mark.parametrize("framework", ["none", "torch"])
@pytest.mark.parametrize("num_nodes", [1, 3])
def test_from_the_binding_of_pods_to_the_first_line_of_all_ranks(
    platform, cluster, tmp_path, capsys, num_nodes, framework
):
    marks, code = tmp_path / "marks", tmp_path / "code"
    for one in (marks, code):
        one.mkdir()
    (code / "begin.py").write_text(_BEGIN)
    spec = {
        "workdir": str(code),
        "run": "python begin.py",
        "framework": framework,
        "pool": "kube",
        "resources": {"nodes": num_nodes, "slots_per_node": 1},
        "env": {"MARKS": str(marks)},
    }
    found, floor = [], []
    for _ in range(STARTS):
        if framework == "torch":
            floor.append(importing_torch_s(num_nodes))
        before = set(marks.iterdir())
        succeeded(platform, platform.submit(spec))
        begun = [float(one.read_text()) for one in set(marks.iterdir()) - before]
        assert len(begun) == num_nodes
        bound = list(cluster.kubelet.bound_at.values())[-num_nodes:]
        found.append(max(begun) - max(bound) / 1e6)
    tell(cluster, capsys, f"from binding to ranks, {num_nodes} pods, {framework}", found, 3.0)
    if floor:
        tell(cluster, capsys, f"imports of torch, {num_nodes} at once", floor, None)


def test_from_the_end_of_a_pod_to_the_state_of_its_job(platform, cluster, capsys):
    spec = {
        "run": "sleep 3600",
        "framework": "none",
        "pool": "kube",
        "resources": {"nodes": 1, "slots_per_node": 1},
        "recovery": {"rank_crash": _NEVER, "node_lost": _NEVER, "preempted": _NEVER},
    }
    found = []
    while len(found) < ENDS:
        jobs = [platform.submit(spec) for _ in range(_AT_ONCE)]
        for job in jobs:
            platform.wait_state(job, "running")
        for job in jobs:
            part = f"-{job.replace('-', '')}-"
            pod = next(one for one in cluster.kubelet.living() if part in one)
            cluster.kubelet.kill(pod)
            wait_until(lambda job=job: platform.show(job).is_terminal, "its end")
            ended_at = cluster.kubelet.ended_at[pod] / 1e6
            events = platform._kept_client().history(parse_job_label(job))
            told = [one.at.timestamp() for one in events if one.state != "running"]
            found.append(min(at for at in told if at > ended_at) - ended_at)
    tell(cluster, capsys, "from the end of a pod to the state of its job", found, 0.3)
