"""How long a gang needs to come up, and to come back after SIGKILL, warm and cold.

    python bench/supervisor.py [--kills 7] [--ranks 3]

One supervisor under a control plane that answers at once; an unmodified DDP script on gloo. Prints
seconds from SIGKILL of a rank to the next completed optimizer step of the whole gang.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from phalanx.core.contract.job import WarmStart
from phalanx.core.jobs.desired import Action
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import (
    NodeReadyReport,
    Orders,
    RanksEndedReport,
    RanksStartedReport,
)
from phalanx.testing.control_plane import FakeControlPlane
from phalanx.testing.executors import gang_contract

SCRIPT = """
import time, torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(time.time(), flush=True)
    time.sleep(0.02)
"""


def measure(folder, ranks, kills, warm):
    """Seconds to the first step from the start, and from each kill."""
    node = folder / ("warm" if warm else "cold")
    node.mkdir()
    (node / "train.py").write_text(SCRIPT)
    plane = FakeControlPlane()
    gang = gang_contract(1, ranks_per_node=ranks, grace_s=5.0, checkpoint_dir=str(folder))
    assignment = Assignment(
        gang=gang,
        node_rank=0,
        node_dir=str(node),
        workdir=str(node),
        cwd=str(node),
        command=[sys.executable, "train.py"],
        env=dict(os.environ),
        cpus=os.cpu_count() or 1,
        server_url=plane.url,
        token=plane.token,
        warm=WarmStart(enabled=warm),
    )
    (node / "assignment.json").write_text(assignment.model_dump_json())
    began = time.time()
    argv = [
        sys.executable,
        "-m",
        "phalanx.supervise",
        "--assignment",
        str(node / "assignment.json"),
    ]
    process = subprocess.Popen(argv, start_new_session=True, stderr=subprocess.DEVNULL)
    port = plane.wait_for(lambda: plane.reports(NodeReadyReport))[0].port
    gaps = []
    for generation in range(kills + 1):
        plane.order(
            Orders(
                version=f"run:{generation}",
                action=Action.RUN,
                generation=generation,
                master_address="127.0.0.1",
                master_port=port,
            )
        )
        pids = of(plane, RanksStartedReport, generation).pids
        gaps.append(first_step(node / f"g{generation:03d}", ranks) - began)
        time.sleep(0.3)
        began = time.time()
        if generation < kills:
            os.kill(pids[generation % ranks], signal.SIGKILL)
            port = of(plane, RanksEndedReport, generation).port
    plane.order(Orders(version="release", action=Action.RELEASE))
    process.wait()
    plane.away()
    return gaps[0], gaps[1:]


def of(plane, kind, generation):
    return plane.wait_for(lambda: [r for r in plane.reports(kind) if r.generation == generation])[0]


def first_step(folder, ranks):
    """When the last rank had completed its first step."""
    files = [folder / f"r{rank:05d}.out" for rank in range(ranks)]
    while not all(file.exists() and "\n" in file.read_text() for file in files):
        time.sleep(0.002)
    return max(float(file.read_text().split()[0]) for file in files)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for warm in (True, False):
            start, gaps = measure(Path(folder), options.ranks, options.kills, warm)
            word = "warm" if warm else "cold"
            print(
                f"{word}: start to first step {start:.2f} s; SIGKILL to next step median "
                f"{statistics.median(gaps):.2f} s, worst {max(gaps):.2f} s of {len(gaps)}"
            )


if __name__ == "__main__":
    main()
