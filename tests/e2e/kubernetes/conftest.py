"""A cluster of three nodes for the tests of this folder."""

import pytest

from phalanx.testing.kubernetes.api import FakeKubernetes
from phalanx.testing.kubernetes.kubelet import ProcessKubelet


class KubernetesCluster:
    """A fake API server with a process kubelet."""

    def __init__(self, root):
        self.root = root
        self.api = FakeKubernetes()
        self.kubeconfig = self.api.kubeconfig(root / "kubeconfig")
        self.kubelet = ProcessKubelet(self.kubeconfig, root)
        self.api.add_namespace("phalanx-default")
        self.api.add_namespace("phalanx-tests")

    def add_nodes(self, count):
        for number in range(count):
            self.kubelet.add_node(f"node-{number}")

    def left(self):
        """Objects with a label of ours that the cluster still has."""
        kinds = ("pods", "secrets", "configmaps")
        return [key for key in self.api.store.objects if key[0] in kinds]

    def close(self):
        self.kubelet.close()
        self.api.close()


@pytest.fixture
def cluster(tmp_path):
    made = KubernetesCluster(tmp_path)
    yield made
    made.close()
