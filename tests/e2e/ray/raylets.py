"""A real Ray cluster of several raylets on this machine, kept small, and what may happen to it."""

import contextlib
import os
import signal

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# On a busy machine a raylet takes its time to register.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")

STORE_BYTES = 80 << 20


class Raylets:
    """A head without slots, and nodes with the custom resource `slot`."""

    def __init__(self, *slots, system_config=None, num_cpus=2, port=None):
        from ray.cluster_utils import Cluster

        args = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        if port is not None:
            args["gcs_server_port"] = port
        if system_config:
            args["_system_config"] = system_config
        self.num_cpus = num_cpus
        self.cluster = Cluster(initialize_head=True, head_node_args=args)
        self.nodes = []
        for num in slots:
            self.add(num)

    @property
    def address(self):
        return self.cluster.address

    def add(self, slots, **labels):
        node = self.cluster.add_node(
            wait=False,
            num_cpus=self.num_cpus,
            resources={"slot": slots},
            labels=labels,
            object_store_memory=STORE_BYTES,
        )
        self.nodes.append(node)
        return node

    def of(self, ray_id):
        """The raylet whose node id begins like this."""
        return next(node for node in self.nodes if node.node_id.startswith(ray_id))

    def sigkill(self, node):
        """The raylet alone, as the kernel would: agents and workers have to find out by themselves."""
        process = node.all_processes["raylet"][0].process
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        self.nodes.remove(node)
        return process.pid

    def forget(self, node):
        """Collect what is left of a killed node."""
        with contextlib.suppress(Exception):
            self.cluster.remove_node(node, allow_graceful=False)

    def close(self):
        self.cluster.shutdown()
