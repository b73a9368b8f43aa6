"""Twenty jobs at once with gangs of one to three nodes, priorities and two projects with quotas.

Ray's own state never shows half a gang, nor a project with more slots than its quota.
"""

import json
import random
import subprocess
import sys

import pytest

from e2e.ray.raylets import Raylets
from e2e.ray.rayplatform import RayPlatform
from support.waiting import wait_until

pytest.importorskip("ray")
pytestmark = [pytest.mark.extras, pytest.mark.e2e, pytest.mark.proof]

# A driver of its own asks Ray every 100 ms and prints what it sees of the gangs of this home.
SAMPLER = """
import json, ray, sys, time
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
from ray._private import state
print("ready", flush=True)
while True:
    at = time.monotonic()
    gangs = {}
    for group in ray.util.placement_group_table().values():
        if sys.argv[2] in group["name"] and group["state"] != "REMOVED":
            placed = [node for node in group["bundles_to_node_id"].values() if node]
            slots = sum(bundle.get("slot", 0) for bundle in group["bundles"].values())
            gangs[group["name"]] = [len(placed), len(group["bundles"]), group["state"], slots]
    free = sum(node.get("slot", 0) for node in state.available_resources_per_node().values())
    print(json.dumps([gangs, free]), flush=True)
    time.sleep(max(0, 0.1 - (time.monotonic() - at)))
"""


@pytest.fixture
def platform(tmp_path):
    raylets = Raylets(2, 2, 2)
    one = RayPlatform(tmp_path, raylets)
    one.up()
    yield one
    one.down()
    raylets.close()


def halves(samples):
    """Samples in which Ray holds some places of a gang and not the others."""
    return [
        (name, gang)
        for gangs, _ in samples
        for name, gang in gangs.items()
        if gang[0] not in (0, gang[1])
    ]


QUOTAS = {"small": 2, "large": 4}


def held(gangs, projects):
    """Slots that each project holds in Ray, by the names of the gangs."""
    sums = dict.fromkeys(QUOTAS, 0)
    for name, (placed, _, _, slots) in gangs.items():
        if placed:
            sums[projects[int(name.rsplit("-j-", 1)[1].split("-")[0])]] += slots
    return sums


def beyond(samples, projects, quotas=QUOTAS):
    """What projects held in samples in which that was more than their quota."""
    found = [held(gangs, projects) for gangs, _ in samples]
    return [one for one in found if any(one[name] > most for name, most in quotas.items())]


def test_twenty_mixed_gangs_are_never_half_held(platform):
    owner = (platform.home / "pools" / "owner").read_text().strip()
    rng = random.Random(5)
    file = platform.root / "projects.yaml"
    rows = [{"name": name, "max_slots": most} for name, most in QUOTAS.items()]
    file.write_text(json.dumps({"schema": 1, "projects": rows}))
    platform.run("projects", "apply", "-f", file)
    sampler = subprocess.Popen(
        [sys.executable, "-c", SAMPLER, platform.raylets.address, owner],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    assert sampler.stdout.readline() == "ready\n"
    jobs, projects = [], {}
    for number in range(20):
        nodes, slots = rng.randint(1, 3), rng.randint(1, 2)
        project = "small" if nodes * slots <= QUOTAS["small"] else "large"
        spec = {
            "name": f"mixed-{number}",
            "run": "sleep 0.3",
            "framework": "none",
            "pool": "ray",
            "project": project,
            "priority": rng.choice([10, 50, 90]),
            "resources": {"nodes": nodes, "slots_per_node": min(slots, 4 // nodes)},
        }
        jobs.append(platform.submit(spec))
        projects[int(jobs[-1].removeprefix("j-"))] = project
    wait_until(lambda: all(platform.show(job).is_terminal for job in jobs), "all jobs", guard_s=400)
    sampler.terminate()
    samples = [json.loads(line) for line in sampler.stdout if line.endswith("\n")]
    assert {platform.show(job).state for job in jobs} == {"succeeded"}
    assert platform.in_ray() == [[], []]
    seen = {name for gangs, _ in samples for name in gangs}
    most = max(len(gangs) for gangs, _ in samples)
    print(f"{len(samples)} samples, {len(seen)} gangs seen, {most} at once")
    assert halves(samples) == []
    assert len(seen) >= 15
    assert most >= 2
    # The check itself can see half a gang.
    assert halves([[{"x": [1, 2, "CREATED", 2]}, 0]])
    # No project is ever beyond its quota; a smaller one would have been noticed.
    assert beyond(samples, projects) == []
    assert beyond(samples, projects, {"small": 1, "large": 1})
