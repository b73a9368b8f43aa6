"""The image and the manifests in `deploy/` say what the code does."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from phalanx import __version__
from phalanx.schemas.pools.pool_file import read_pool_file
from phalanx.server.settings import Settings
from support.waiting import wait_until

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
IMAGE = ROOT / "deploy" / "image" / "Dockerfile"
BIN = Path(sys.executable).parent


def rendered(folder):
    kubectl = shutil.which("kubectl", path=str(BIN)) or shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed: scripts/kubectl.sh")
    done = subprocess.run(
        [kubectl, "kustomize", MANIFESTS / folder], capture_output=True, text=True, check=True
    )
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}


def pod_of(deployment):
    return deployment["spec"]["template"]["spec"]


@pytest.fixture
def control_plane(tmp_path):
    """`phalanx up` with the arguments of the base, on a free port and without its pool."""
    documents = yaml.safe_load_all((MANIFESTS / "base" / "control-plane.yaml").read_text())
    deployment = next(one for one in documents if one["kind"] == "Deployment")
    (container,) = pod_of(deployment)["containers"]
    words = list(container["args"])
    at = words.index("--pool")
    del words[at : at + 2]
    words[words.index("--home") + 1] = str(tmp_path / "home")
    words[words.index("--port") + 1] = "0"
    words[words.index("--slots") + 1] = "1"  # a home without any pool is refused
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [BIN / "phalanx", *words],
            env={**os.environ, "HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    file = tmp_path / "home" / "server.json"

    def listens():
        assert process.poll() is None, (tmp_path / "log").read_text()
        return file.exists()

    try:
        wait_until(listens, "the control plane")
        yield container, process
    finally:
        process.terminate()
        process.wait(30)


def listening_port(process):
    """The port that the control plane or a process of it listens on; None while there is none."""
    server = psutil.Process(process.pid)
    for one in (server, *server.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # a short one may have ended meanwhile
            for connection in one.net_connections("tcp"):
                if connection.status == "LISTEN":
                    return connection.laddr.port
    return None


def test_the_control_plane_starts_with_the_arguments_and_answers_the_probes(control_plane):
    container, process = control_plane
    wait_until(lambda: listening_port(process) is not None, "a port")
    port = listening_port(process)
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[name]["httpGet"]
        headers = {one["name"]: one["value"] for one in asked["httpHeaders"]}
        url = f"{asked['scheme'].lower()}://127.0.0.1:{port}{asked['path']}"

        def ready(url=url, headers=headers):
            return httpx.get(url, headers=headers, verify=False).status_code == 200

        wait_until(ready, name)
    other = httpx.get(url, headers={"Host": "elsewhere.example"}, verify=False)
    assert other.status_code >= 400


@pytest.mark.extras
def test_the_base_is_consistent():
    objects = rendered("base")
    deployment = objects["Deployment", "phalanx"]
    pod = pod_of(deployment)
    (container,) = pod["containers"]
    words = container["args"]
    port = words[words.index("--port") + 1]
    assert [str(one["containerPort"]) for one in container["ports"]] == [port]
    service = objects["Service", "phalanx"]
    assert [str(one["port"]) for one in service["spec"]["ports"]] == [port]
    assert (
        service["spec"]["selector"].items()
        <= deployment["spec"]["template"]["metadata"]["labels"].items()
    )
    namespace = service["metadata"]["namespace"]
    url = f"https://{service['metadata']['name']}.{namespace}.svc:{port}"
    assert words[words.index("--advertise") + 1] == url
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    home = Path(words[words.index("--home") + 1])
    assert mounts[str(home.parent)] == "home", "the top of a volume belongs to root"
    assert f"PHALANX_HOME={home}\n" in IMAGE.read_text()
    assert words[words.index("--pool") + 1] in mounts
    assert {one["name"] for one in pod["volumes"]} == set(mounts.values())
    assert pod["serviceAccountName"] in {name for kind, name in objects if kind == "ServiceAccount"}
    assert container["image"] == f"phalanx:{__version__}"
    assert pod["securityContext"]["runAsUser"] == 10001
    file, _ = read_pool_file(MANIFESTS / "base" / "pool.yaml")
    assert file.clusters[0].server_url == url
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.extras
def test_replicas_share_a_home_and_a_database():
    objects = rendered("replicas")
    deployment = objects["Deployment", "phalanx"]
    assert deployment["spec"]["replicas"] > 1
    assert deployment["spec"]["strategy"]["type"] == "RollingUpdate"
    claim = objects["PersistentVolumeClaim", "phalanx-home"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (container,) = pod_of(deployment)["containers"]
    for one in container["env"]:
        _, group, key = one["name"].split("__")
        fields = Settings.model_fields[group.lower()].annotation.model_fields
        assert key.lower() in fields
        assert "secretKeyRef" in one["valueFrom"]
    budget = objects["PodDisruptionBudget", "phalanx"]
    assert budget["spec"]["minAvailable"] < deployment["spec"]["replicas"]
    base = pod_of(rendered("base")["Deployment", "phalanx"])["containers"][0]
    assert container["args"] == base["args"]


def test_the_image_is_made_of_what_the_repository_has():
    text = IMAGE.read_text()
    lines = [one.split(maxsplit=1) for one in text.splitlines() if one and not one.startswith("#")]
    kept = (IMAGE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    for word, rest in lines:
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert "!" + source.rstrip("/") in kept, source
    for name in ("server", "train", "ray"):
        assert (ROOT / "requirements" / f"{name}.txt").exists()
    entry = json.loads(next(rest for word, rest in lines if word == "ENTRYPOINT"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [Path(one).name for one in entry] == ["phalanx"]
    assert "phalanx" in project["scripts"]
    users = [rest for word, rest in lines if word == "USER"]
    assert users == ["10001"]
    assert f"--uid {users[0]}" in text
    assert not re.search(r"(?i)token|password|secret", text)


def test_no_image_names_a_registry():
    for path in (ROOT / "deploy").rglob("*.yaml"):
        for image in re.findall(r"(?m)^\s*-?\s*image: *\"?([^\s\"]+)", path.read_text()):
            first, slash, _ = image.partition("/")
            assert not slash or not re.search(r"[.:]", first), f"{path}: {image}"


def test_every_image_of_ours_is_one_that_the_dockerfile_builds():
    kinds = {"phalanx": "server", "phalanx-train": "train", "phalanx-ray": "ray"}
    for path in (ROOT / "deploy").rglob("*.yaml"):
        if "helm" in path.parts:
            continue
        for image in re.findall(r"(?m)^\s*-?\s*image: *\"?(phalanx[^\s\"]*)", path.read_text()):
            name, _, tag = image.partition(":")
            assert name in kinds, f"{path}: {image}"
            assert tag in ("", __version__), f"{path}: {image}"
            assert (ROOT / "requirements" / f"{kinds[name]}.txt").exists()
            if "ray" in path.parts:
                assert kinds[name] == "ray", "an image of a Ray cluster has Ray"
