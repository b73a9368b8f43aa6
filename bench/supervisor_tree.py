"""What the supervisor tree costs beside an installed Phalanx: bytes, copy, imports, start.

    python bench/supervisor_tree.py [--rounds 15]

Both kinds take turns within each round. A start is the time from the exec of a supervisor to its first
report at a control plane that answers at once.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from phalanx.core.contract.job import WarmStart
from phalanx.kit.interpreter import command_in
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import NodeReadyReport
from phalanx.supervise.portable.build import TreeBuild, pack, size_of
from phalanx.supervise.portable.copy import copy_tree
from phalanx.testing.control_plane import FakeControlPlane
from phalanx.testing.executors import gang_contract

IMPORTS = "import phalanx.executors.kubernetes.pod, phalanx.supervise.program"


def seconds(action):
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def imports(words):
    return seconds(lambda: subprocess.run([*words, "-c", IMPORTS], check=True, env={}))


def start(words, folder):
    """Seconds until a supervisor has reported."""
    folder.mkdir()
    plane = FakeControlPlane()
    assignment = Assignment(
        gang=gang_contract(1, checkpoint_dir=str(folder)),
        node_rank=0,
        node_dir=str(folder),
        workdir=str(folder),
        cwd=str(folder),
        command=["/bin/true"],
        env={"PATH": "/usr/bin:/bin"},
        cpus=1,
        server_url=plane.url,
        token=plane.token,
        warm=WarmStart(enabled=False),
    )
    path = folder / "assignment.json"
    path.write_text(assignment.model_dump_json())
    began = time.perf_counter()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [*words, "-m", "phalanx.supervise", "--assignment", path], stderr=log, env={}
        )
    plane.wait_for(lambda: plane.reports(NodeReadyReport))
    took = time.perf_counter() - began
    process.terminate()
    process.wait(30)
    plane.away()
    return took


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        tree = root / "tree"
        tree.mkdir()
        took = seconds(TreeBuild(tree).run)
        pack(tree, root / "tree.tar.gz")
        packed = (root / "tree.tar.gz").stat().st_size
        print(f"built in {took:.1f} s: {size_of(tree) / 1e6:.1f} MB, {packed / 1e6:.1f} MB packed")
        kinds = {"installed": [sys.executable], "tree": command_in(str(tree))}
        found = {("copy", "tree"): []}
        for number in range(rounds):
            target = root / f"copy{number}"
            target.mkdir()
            found["copy", "tree"].append(seconds(lambda target=target: copy_tree(tree, target)))
            for kind, words in kinds.items():
                found.setdefault(("imports", kind), []).append(imports(words))
                folder = root / f"{kind}{number}"
                found.setdefault(("start", kind), []).append(start(words, folder))
        for (what, kind), values in sorted(found.items()):
            low, high = min(values), max(values)
            middle = statistics.median(values)
            print(f"{what:8} {kind:10} median {middle:.3f} s, {low:.3f} to {high:.3f} ({rounds})")


if __name__ == "__main__":
    main()
