"""Random orders and random deaths at random moments: every generation ends, and nothing is left."""

import contextlib
import os
import random
import signal
import time

import pytest

from e2e.supervision.node import Node
from phalanx.core.jobs.desired import Action
from phalanx.schemas.wire.supervision import Orders
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

SCRIPT = """
    import os, random, time
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    fate = random.random()
    if fate < 0.1:
        raise RuntimeError("Connection closed by peer")
    if fate < 0.5:
        raise SystemExit(3 if fate < 0.2 else 0)
    time.sleep(600)
"""


def strike(node, rng, target):
    """SIGKILL somebody, or nobody when he is gone already."""
    with contextlib.suppress(AssertionError, ProcessLookupError, FileNotFoundError):
        if target == "rank":
            spared = {node.reaper(), node.warm_process()}
            ranks = [pid for pid in node.marked() if pid not in spared]
            os.kill(rng.choice(ranks or [0x3FFFFF]), signal.SIGKILL)
        else:
            os.kill(
                node.warm_process() if target == "warm_process" else node.reaper(), signal.SIGKILL
            )


def survivors(node):
    found = set(node.marked())
    with contextlib.suppress(AssertionError, FileNotFoundError):
        found.discard(node.warm_process())
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_every_generation_ends_and_leaves_nothing(tmp_path, seed):
    rng = random.Random(seed)
    (tmp_path / "light" / "torch").mkdir(parents=True)
    (tmp_path / "light" / "torch" / "__init__.py").touch()
    env = {"PYTHONPATH": str(tmp_path / "light")}
    with Node(tmp_path, SCRIPT, ranks=3, warm=True, env=env) as node:
        for generation in range(20):
            node.plane.order(
                Orders(
                    version=f"run:{generation}",
                    action=Action.RUN,
                    generation=generation,
                    master_port=node.port,
                )
            )
            time.sleep(rng.random() * 0.06)  # not to wait for anything: to hit any moment
            if generation % 8 == 7:
                strike(node, rng, rng.choice(["warm_process", "reaper"]))
            elif rng.random() < 0.5:
                strike(node, rng, "rank")
            action = rng.choice([Action.END, Action.STOP])
            node.order(action, generation, grace_left_s=rng.random() * 0.1)
            node.ended(generation)
            # A warm process that has just been forked runs the reaper's program for an instant.
            wait_until(lambda: not survivors(node), "the end of every process of the generation")
