"""What Ray's autoscaler is asked for: room for whole gangs within the bound of the pool."""

import json
import subprocess
import sys

import pytest

from e2e.ray.raylets import Raylets
from e2e.ray.rayplatform import RayPlatform
from support.waiting import wait_until

pytest.importorskip("ray")
pytestmark = [pytest.mark.extras, pytest.mark.e2e]

# Where the autoscaler reads it: a driver of its own prints the request again and again.
READER = """
import json, ray, sys, time
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL as CHANNEL
from ray.experimental.internal_kv import _internal_kv_get
print("ready", flush=True)
for _ in sys.stdin:
    print((_internal_kv_get(CHANNEL) or b"[]").decode(), flush=True)
"""


class Requests:
    """The standing request, as the autoscaler sees it."""

    def __init__(self, address):
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        assert self.process.stdout.readline() == "ready\n"

    def now(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        asked = json.loads(self.process.stdout.readline())
        return [one.get("resources", one) for one in asked]

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def test_whole_gangs_within_the_bound_are_asked_for(tmp_path):
    raylets = Raylets()
    scaling = {"max": 4, "node": {"slots": 1}, "cool_down": {"up": "100ms"}, "idle_after": "100ms"}
    platform = RayPlatform(tmp_path, raylets, slot="slot", scaling=scaling)
    try:
        platform.up()
        requests = Requests(raylets.address)
        assert requests.now() == []
        job = {"framework": "none", "run": "sleep 600", "pool": "ray"}
        two = platform.submit({**job, "resources": {"nodes": 2}, "priority": 90})
        three = platform.submit({**job, "resources": {"nodes": 3}, "priority": 10})
        # Only two nodes are left below the bound.
        bundle = {"slot": 1.0, "CPU": 1.0}
        wait_until(lambda: requests.now() == [bundle] * 2, "the first request")
        assert platform.show(three).state == "queued"
        for _ in range(2):  # what the autoscaler does then
            raylets.add(1)
        platform.wait_state(two, "running")
        wait_until(lambda: requests.now() == [], "the end of the first request")
        # Its two nodes beside the two that are in use. It is before the gang of three in the queue: nodes
        # that the first of a queue waits for are not given to later jobs.
        last = platform.submit({**job, "resources": {"nodes": 2}, "priority": 50})
        wait_until(lambda: requests.now() == [bundle] * 4, "the second request")
        platform.run("stop", last)
        platform.run("stop", three)
        wait_until(lambda: requests.now() == [], "the end of it")
        assert platform.show(two).state == "running"
        requests.close()
    finally:
        platform.down()
        raylets.close()
