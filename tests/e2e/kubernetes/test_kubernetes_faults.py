"""Training on three nodes of a cluster under random faults: `-m proof`.

FAULTS sets their number (24), SEED the seed, KINDS the kinds, and RECORD a file that gets one line with the
counts. Three ranks train in three pods while ranks and pods are killed, pods are deleted, evicted and
removed by force, nodes are lost, restarted and cut off, the API server is away with its history lost, and
the control plane is killed. Each job has to end with the weights of an undisturbed one.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from e2e.kubernetes.test_kubernetes_platform import KubernetesPlatform, on_kubernetes, succeeded
from e2e.platform.harness import kill
from phalanx.executors.kubernetes.client import MERGE_PATCH
from support.waiting import wait_until

pytestmark = pytest.mark.proof
FAULTS, SEED = int(os.environ.get("FAULTS", "24")), int(os.environ.get("SEED", "0"))
ALL = "rank,pod,delete,evict,force,node,partition,api,control-plane"
KINDS = tuple(os.environ.get("KINDS", ALL).split(","))
RECORD = os.environ.get("RECORD")
# The next fault comes after so many steps, in one of four cases at once.
_STEPS = 30
_FLAGS = ("--epochs=20", "--samples=960", "--step-s=0.05")
_POD = re.compile(r"(.+)-j(\d+)-a(\d+)-n(\d+)$")
_PODS = "/api/v1/namespaces/phalanx-default/pods"


class Witness:
    """Looks at the containers that run, and notes when two attempts of a job do at a time."""

    def __init__(self, kubelet):
        self.kubelet, self.doubles = kubelet, set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self):
        self._closed.set()
        self._thread.join(10)

    def _look(self):
        while not self._closed.wait(0.02):
            attempts = {}
            for name in self.kubelet.living():
                _, job, attempt, _ = _POD.fullmatch(name).groups()
                attempts.setdefault(job, set()).add(attempt)
            for job, found in attempts.items():
                if len(found) > 1:
                    self.doubles.add((job, *sorted(found)))


class Faults:
    """The faults of one cluster. Each ends before its method returns, apart from its effects."""

    def __init__(self, platform, cluster, dice):
        self.platform, self.cluster, self.dice = platform, cluster, dice
        self.kubelet = cluster.kubelet
        self.done = Counter()
        self.outs = {}  # the output of each job
        self.others = []  # when other things than ranks were hit
        self.killed = []  # when a rank was killed, of which job, and its last step before

    def recovered_s(self):
        """From kills of ranks to the first step of those that follow, where nothing else was hit."""
        found = []
        for at, job, (_, _, pid) in self.killed:
            later = [one for one in _lines(self.outs[job]) if one[0] > at and one[2] != pid]
            if later and not any(at < other <= later[0][0] for other in self.others):
                found.append(later[0][0] - at)
        return sorted(found)

    def cause(self, kind, job):
        """Cause one; False where the job has nothing that it could hit now."""
        living = sorted(self.kubelet.living())
        if not living and kind not in ("api", "control-plane"):
            return False
        if kind != "rank":
            self.others.append(time.time())
        getattr(self, f"_{kind.replace('-', '_')}")(self.dice.choice(living or [""]), job)
        self.done[kind] += 1
        return True

    def _rank(self, pod, job):
        ranks = [rank.pid for rank in self.platform.show(job).ranks or () if rank.pid]
        if ranks:
            self.killed.append((time.time(), job, _last(self.outs[job])))
            kill(self.dice.choice(ranks))

    def _pod(self, pod, job):
        self.kubelet.kill(pod)

    def _delete(self, pod, job):
        self.kubelet.client.call("DELETE", f"{_PODS}/{pod}")

    def _evict(self, pod, job):
        self.kubelet.evict(pod)

    def _force(self, pod, job):
        """Deletion without a word of the kubelet; a restart of the node proves the end."""
        node = self._node_of(pod)
        self.kubelet.client.call("DELETE", f"{_PODS}/{pod}", {"gracePeriodSeconds": 0})
        self.kubelet.client.call(
            "PATCH", f"{_PODS}/{pod}", {"metadata": {"finalizers": None}}, kind=MERGE_PATCH
        )
        time.sleep(self.dice.uniform(0, 2))
        self._restart(node)

    def _node(self, pod, job):
        node = self._node_of(pod)
        self.kubelet.lose(node)
        time.sleep(self.dice.uniform(0, 3))
        self.kubelet.bring_back(node, restarted=True)

    def _partition(self, pod, job):
        node = self._node_of(pod)
        self.kubelet.partition(node)
        time.sleep(self.dice.uniform(0, 3))
        self.kubelet.bring_back(node, restarted=False)

    def _api(self, pod, job):
        self.cluster.away()
        time.sleep(self.dice.uniform(0, 3))
        self.cluster.back()

    def _control_plane(self, pod, job):
        self.platform._forget_client()
        process = self.platform.process
        kill(self.platform.server_pid(), signal.SIGKILL)
        process.kill()
        process.wait()
        time.sleep(self.dice.uniform(0, 1))
        self.platform.up()

    def _node_of(self, pod):
        return next(one.node for one in self.kubelet.running.values() if one.name == pod)

    def _restart(self, node):
        self.kubelet.lose(node)
        self.kubelet.bring_back(node, restarted=True)


@pytest.mark.timeout(7200)
def test_faults_lose_no_job_and_no_sample(cluster, tmp_path, capsys):
    cluster.add_nodes(3)
    platform = KubernetesPlatform(tmp_path, cluster)
    platform.up()
    calm = tmp_path / "calm"
    succeeded(platform, platform.submit(_job(calm)), guard_s=1800)
    dice, witness = random.Random(SEED), Witness(cluster.kubelet)
    faults, views, began = Faults(platform, cluster, dice), [], time.monotonic()
    while faults.done.total() < FAULTS:
        out = tmp_path / f"out-{len(views)}"
        job = platform.submit(_job(out))
        faults.outs[job] = out
        platform.wait_steps(_STEPS, out)
        while not (ended := _is_over(platform, job)) and faults.done.total() < FAULTS:
            if faults.cause(kind := dice.choice(KINDS), job) and dice.random() < 0.75:
                before = _steps(out)
                wait_until(
                    lambda job=job, out=out, before=before: (
                        _is_over(platform, job) or _steps(out) >= before + _STEPS
                    ),
                    f"{_STEPS} steps after {kind}",
                    guard_s=600,
                )
            with capsys.disabled():
                done = faults.done.total()
                print(f"{time.monotonic() - began:.0f} s: {done}/{FAULTS} {kind} {job}", flush=True)
        views.append(succeeded(platform, job, guard_s=1800) if not ended else platform.show(job))
        assert out.read_text() == calm.read_text()
    witness.close()
    platform.down()
    wait_until(lambda: cluster.left() == [], "an empty cluster")
    found = {
        "cluster": type(cluster).__name__,
        "commit": commit(),
        "seed": SEED,
        "faults": dict(faults.done),
        "jobs": len(views),
        "not succeeded": sum(one.state != "succeeded" for one in views),
        "samples missed or twice": sum(v.lineage.missed + v.lineage.duplicated for v in views),
        "attempts": sum(one.attempts for one in views),
        "supervisors started": sum(cluster.kubelet.starts.values()),
        "pods started twice": sum(number > 1 for number in cluster.kubelet.starts.values()),
        "attempts at a time": sorted(witness.doubles),
        "seconds from the kill of a rank to the next step": quantiles(faults.recovered_s()),
        "seconds": round(time.monotonic() - began),
    }
    with capsys.disabled():
        print(json.dumps(found), flush=True)
    if RECORD:
        with Path(RECORD).open("a") as record:
            record.write(json.dumps(found) + "\n")
    wrong = ("not succeeded", "samples missed or twice", "pods started twice", "attempts at a time")
    assert not any(found[name] for name in wrong), found


def _job(out):
    budget = {"count": 1000, "per": "1h"}
    recovery = {"rank_crash": budget, "node_lost": budget, "preempted": budget}
    return {**on_kubernetes(out, *_FLAGS), "recovery": recovery}


def _is_over(platform, job):
    view = platform.show(job)
    if view.is_terminal:
        assert view.state == "succeeded", (view.failure, platform.run("why", job).stdout)
    return view.is_terminal


def _lines(out):
    """Time, epoch and process of each step that rank 0 completed."""
    steps = Path(f"{out}.steps")
    words = [line.split() for line in steps.read_text().splitlines()] if steps.exists() else []
    return [(float(at), int(epoch), int(pid)) for at, epoch, pid in words]


def _steps(out):
    return len(_lines(out))


def _last(out):
    return _lines(out)[-1]


def quantiles(values):
    if not values:
        return {}
    p50, p95 = (values[int((len(values) - 1) * part)] for part in (0.5, 0.95))
    return {"count": len(values), "p50": round(p50, 2), "p95": round(p95, 2)}


def commit():
    argv = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(argv, cwd=Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip()
