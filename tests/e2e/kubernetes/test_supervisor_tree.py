"""Jobs in images without Phalanx: the supervisor tree is copied into their pods."""

import signal
import sys

import pytest

from e2e.kubernetes.conftest import CLUSTERS, cluster_of
from e2e.kubernetes.test_kubernetes_platform import KubernetesPlatform, succeeded
from phalanx.errors import UserError
from phalanx.supervise.portable.copy import copy_tree
from support import images
from support.waiting import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.extras,
    pytest.mark.leaves("the fake API server of all tests here keeps a thread for each connection"),
]
TREE = "phalanx-tree:test"
MOST_BYTES = 75_000_000
RANK_C = """
#include <stdio.h>
#include <stdlib.h>
int main(void) { printf("musl rank %s of %s\\n", getenv("RANK"), getenv("WORLD_SIZE")); return 0; }
"""


@pytest.fixture(scope="module")
def tree_image(tmp_path_factory):
    return images.built_tree(tmp_path_factory.mktemp("tree-image"))


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request, tmp_path_factory, tree_image):
    images.need_roots()
    one = cluster_of(request, tmp_path_factory.mktemp("cluster"))
    one.add_nodes(1)
    one.kubelet.images[TREE] = tree_image
    yield one
    one.close()


@pytest.fixture(scope="module")
def platform(cluster, tmp_path_factory):
    one = KubernetesPlatform(tmp_path_factory.mktemp("platform"), cluster)
    one.up(num_nodes=1, supervisor_image=TREE, images_with_phalanx=["phalanx:*"])
    yield one
    one.down()
    wait_until(lambda: cluster.left() == [], "an empty cluster")


def job(platform, image, run, files, **spec):
    code = platform.root / f"code-{len(list(platform.root.glob('code-*')))}"
    code.mkdir()
    for name, text in files.items():
        (code / name).write_text(text)
    resources = {"nodes": 1, "slots_per_node": 2}
    body = {"workdir": str(code), "run": run, "image": image, "pool": "kube"}
    return platform.submit({**body, "resources": resources, **spec})


def test_ranks_of_a_static_shell_in_an_empty_image(platform, cluster, tmp_path):
    env = {"FLAVOUR": "static", "PATH": "/bin"}
    cluster.kubelet.images["shell:1"] = images.static_shell(tmp_path / "shell", env)
    files = {"work.sh": 'echo "$FLAVOUR rank $RANK of $WORLD_SIZE on $(cat /proc/1/comm)"\n'}
    label = job(platform, "shell:1", "sh work.sh", files)
    succeeded(platform, label)
    said = platform.output(label)
    for rank in range(2):
        assert f"static rank {rank} of 2 on loader" in said
    assert not (tmp_path / "shell" / "etc" / "ssl").exists()


def test_ranks_of_a_program_that_is_linked_to_musl(platform, cluster, tmp_path):
    cluster.kubelet.images["musl:1"] = images.with_musl(tmp_path / "musl", RANK_C)
    label = job(platform, "musl:1", "/bin/rank", {"note": ""})
    succeeded(platform, label)
    said = platform.output(label)
    assert "musl rank 0 of 2" in said
    assert "musl rank 1 of 2" in said


def shown(platform, label):
    """What `show` says, in one line: a terminal breaks long ones."""
    return " ".join(platform.run("show", label).stdout.split())


TRAIN = """
import sys

import torch

import phalanx
import phalanx.train as pt

run = pt.init(checkpoint_every="2 steps")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.ones(32, 4), torch.ones(32, 1))
model, optimizer, loader = run.prepare(model, optimizer, torch.utils.data.DataLoader(data, 4))
for epoch in run.epochs(1):
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=float(loss))
print("phalanx of", phalanx.__file__, "python of", sys.prefix, "pydantic", "pydantic" in sys.modules)
"""


def test_a_training_with_the_python_of_the_image(platform, cluster, tmp_path):
    root = tmp_path / "python"
    packages = [images.site_packages()]
    cluster.kubelet.images["torch:1"] = images.with_python(root, sys.executable, packages)
    label = job(platform, "torch:1", "python train.py", {"train.py": TRAIN})
    view = succeeded(platform, label)
    said = platform.output(label)
    assert said.count("phalanx of /phalanx-tree/ranks/phalanx/__init__.py python of /venv") == 2
    assert "pydantic False" in said
    assert view.progress.high_water_step == 4
    assert "fresh interpreters" not in shown(platform, label)


def test_a_python_below_3_11_runs_scripts_and_says_what_it_cannot(platform, cluster, tmp_path):
    python = images.older_python()
    cluster.kubelet.images["old:1"] = images.with_python(tmp_path / "old", python)
    script = "import os, sys\nprint('rank', os.environ['RANK'], sys.version_info[:2])\n"
    label = job(platform, "old:1", "python train.py", {"train.py": script})
    succeeded(platform, label)
    assert "rank 1 (3, " in platform.output(label)
    assert "needs Python 3.11" in shown(platform, label)


def test_images_with_phalanx_get_no_copy(platform, cluster):
    label = job(
        platform, "phalanx:7", "python train.py", {"train.py": "print('here')"}, framework="none"
    )
    succeeded(platform, label)
    spec = list(cluster.kubelet.running.values())[-1].spec
    assert "initContainers" not in spec
    assert spec["containers"][0]["command"][0] == "python"


def test_the_first_process_of_a_pod_passes_term_on(platform, cluster, tmp_path):
    cluster.kubelet.images["shell:1"] = images.static_shell(tmp_path / "shell")
    script = "trap 'echo saved; exit 0' TERM\necho begun\nwhile true; do sleep 0.1; done\n"
    files = {"work.sh": script}
    label = job(platform, "shell:1", "sh work.sh", files, grace="20s")
    wait_until(lambda: platform.output(label).count("begun") == 2, "both ranks")
    pod = list(cluster.kubelet.starts)[-1]
    cluster.kubelet.kill(pod, signal.SIGTERM)
    wait_until(lambda: platform.output(label).count("saved") == 2, "both ranks to save")
    platform.run("stop", label, "--grace", "1s", check=False)


def test_a_tree_is_small_and_one_that_was_changed_is_not_copied(tree_image, tmp_path):
    source = tree_image.root / "opt" / "phalanx-tree"
    target = tmp_path / "copy"
    target.mkdir()
    copied = copy_tree(source, target)
    assert copied <= MOST_BYTES
    assert (target / "tree.json").read_bytes() == (source / "tree.json").read_bytes()
    (target / "etc" / "cacert.pem").write_text("another authority")
    with pytest.raises(UserError, match=r"cacert\.pem was changed"):
        copy_tree(target, tmp_path / "third")
