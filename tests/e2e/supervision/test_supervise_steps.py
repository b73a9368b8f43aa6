"""Steps of scripts that name none: their lines are counted, across restarts."""

import pytest

from e2e.supervision.node import Node
from phalanx.core.contract.checkpointing import CheckpointPolicy
from phalanx.schemas.wire.supervision import MetricsReport

pytestmark = pytest.mark.e2e

# Resumes from its folder, prints five lines in each life, and dies in the first.
SCRIPT = """
    import os, sys, time
    done = 0
    if os.path.isdir("out"):
        done = int(open("out/state.bin").read())
    for number in range(done + 1, done + 6):
        print(f"loss {number}.5", flush=True)
    os.makedirs("out", exist_ok=True)
    open("out/state.tmp", "w").write(str(number))
    os.rename("out/state.tmp", "out/state.bin")
    while not done and not os.path.exists("committed"):
        time.sleep(0.01)
    sys.exit(not done)
"""


def steps(node, generation):
    node.ended(generation)
    node.release()
    found = [r for r in node.plane.reports(MetricsReport) if r.generation == generation]
    return [(point.step, point.values["loss"]) for r in found for point in r.points]


def test_lines_are_counted_on_from_the_restored_checkpoint(tmp_path):
    role = {"metric_lines": ("loss {loss}",), "checkpoint": CheckpointPolicy(directory="out")}
    with Node(tmp_path, SCRIPT, role=role) as node:
        node.run()
        node.plane.wait_for(lambda: list((tmp_path / "checkpoints").glob("step-*[!p]")))
        (node.code / "committed").touch()
        assert node.ended(0).step == 5
        node.run(1, restarts=1)
        assert node.ended(1).step == 10  # real progress: the script has resumed
        assert steps(node, 1) == [(number, number + 0.5) for number in range(6, 11)]


@pytest.mark.parametrize("known", [0, 400])
def test_lines_are_counted_on_from_the_last_known_step(tmp_path, known):
    """Without a folder of checkpoints nothing shows that the script has resumed: no progress is claimed."""
    script = "import sys\nfor n in range(3): print(f'loss {n}', flush=True)\nsys.exit(1)"
    with Node(tmp_path, script, role={"metric_lines": ("loss {loss}",)}) as node:
        node.run(last_step=known)  # what an earlier attempt has reached
        assert node.ended(0).step == 3
        node.run(1, restarts=1, last_step=known)
        assert node.ended(1).step == 3
        first = known + 3  # this node saw more than the control plane knew
        assert [step for step, _ in steps(node, 1)] == [first + 1, first + 2, first + 3]
