"""A platform whose only pool is a Ray cluster of this machine."""

import json
import subprocess
import sys

import yaml

from e2e.platform.harness import BIN, Platform
from e2e.ray.raylets import Raylets
from support.waiting import wait_until


class RayPlatform(Platform):
    """`phalanx up --slots 0 --pool FILE` in front of raylets; `own_slots` are this machine's own."""

    own_slots = 0

    def __init__(self, root, raylets: Raylets, **pool):
        super().__init__(root)
        self.raylets = raylets
        self.file = root / "pool.yaml"
        self.pool = {
            "name": "ray",
            "executor": "ray",
            "address": raylets.address,
            "root": str(root / "nodes"),
            **pool,
        }

    def up(self):
        self.file.write_text(yaml.safe_dump({"schema": 1, "pools": [self.pool]}))
        with (self.root / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                [BIN / "phalanx", "up", "--slots", str(self.own_slots), "--pool", self.file],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, "the control plane")
        self.wait_nodes(len(self.raylets.nodes))

    def wait_nodes(self, count):
        """Wait until so many nodes take jobs."""

        def open_nodes():
            with self.client() as client:
                return sum(node.num_slots > 0 for node in client.nodes()) >= count

        wait_until(open_nodes, f"{count} nodes")

    def raylet_of(self, job, node_rank):
        """The raylet on which a node rank runs."""
        name = self.show(job).nodes[node_rank].node
        return self.raylets.of(name.removeprefix("ray-"))

    def in_ray(self):
        """Groups and actors of this home that Ray still knows, asked by another driver."""
        owner = (self.home / "pools" / "owner").read_text().strip()
        script = (
            "import json, ray, sys\n"
            "ray.init(address=sys.argv[1], namespace='phalanx-' + sys.argv[2],"
            " log_to_driver=False, logging_level='error')\n"
            "groups = [g['name'] for g in ray.util.placement_group_table().values()"
            " if g['state'] != 'REMOVED' and sys.argv[2] in g['name']]\n"
            "print(json.dumps([groups, ray.util.list_named_actors()]))\n"
        )
        asked = [sys.executable, "-c", script, self.raylets.address, owner]
        done = subprocess.run(asked, capture_output=True, text=True, check=True, cwd="/")
        return json.loads(done.stdout.splitlines()[-1])


def step_times(out):
    """Wall-clock times of all completed steps of the probe."""
    try:
        return [float(line.split()[0]) for line in open(f"{out}.steps").read().splitlines()]
    except FileNotFoundError:
        return []
