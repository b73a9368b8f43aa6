"""The Helm chart: its values, what it renders, and its agreement with the kustomize base and the code."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from phalanx import __version__
from phalanx.schemas.pools.pool_file import read_pool_file
from phalanx.server.settings import Settings

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "phalanx"
BASE = ROOT / "deploy" / "kubernetes" / "base"
SETS = sorted(CHART.glob("ci/*-values.yaml"))
HELM = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")


def needs_helm(test):
    """Marks a test that runs helm: `make test-extras` installs it."""
    skip = pytest.mark.skipif(HELM is None, reason="helm is not installed: scripts/kubectl.sh")
    return pytest.mark.extras(skip(test))


TEMPLATES = "\n".join(path.read_text() for path in sorted(CHART.glob("templates/*")))


def render(*arguments, name="phalanx"):
    return subprocess.run(
        [HELM, "template", name, CHART, "--namespace", "phalanx-system", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def rendered(*arguments, name="phalanx"):
    done = render(*arguments, name=name)
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    keys = [
        (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects
    ]
    assert len(keys) == len(set(keys))
    return dict(zip(keys, objects, strict=True))


def container_of(objects):
    deployment = objects["Deployment", "phalanx-system", "phalanx"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container


def leaves(values, path=()):
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in ("resources", "settings"):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def test_every_value_is_described_and_used():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values, schema)
    described = set(schema["properties"]) - {"global"}
    assert described == set(values)
    for path in leaves(values):
        properties = schema
        for key in path:
            properties = properties["properties"][key]
        assert re.search(rf"\.Values\.{re.escape('.'.join(path))}\b", TEMPLATES), path


def test_the_schema_refuses_what_is_misspelt_or_secret():
    schema = json.loads((CHART / "values.schema.json").read_text())
    for wrong in (
        {"replica": 2},
        {"replicas": 0},
        {"home": {"accessMode": "ReadOnlyMany"}},
        {"settings": {"DATABASE__URL": "postgresql://…"}},
        {"settings": {"api.max_streams": 5}},
        {"projects": ["Not-A-Name"]},
        {"retention": {"logs": "a month"}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_chart_has_the_release_and_the_rights_of_the_base():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    base = {one["kind"]: one for one in yaml.safe_load_all((BASE / "rbac.yaml").read_text()) if one}
    template = (CHART / "templates" / "rbac.yaml").read_text()
    for kind in ("Role", "ClusterRole"):
        (section,) = [
            one for one in template.split("\n---\n") if re.search(rf"^kind: {kind}$", one, re.M)
        ]
        rules = re.sub(r"(?m)^\s*{{.*}}$", "", section.split("\nrules:\n")[1])
        assert yaml.safe_load(rules) == base[kind]["rules"], kind


@needs_helm
@pytest.mark.parametrize("file", SETS, ids=lambda path: path.stem)
def test_each_set_of_values_is_linted_and_valid(file):
    done = subprocess.run(
        [HELM, "lint", "--strict", CHART, "-f", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for (kind, _, name), document in rendered("-f", file).items():
        if kind == "ServiceMonitor":
            continue
        kubernetes_validate.validate(document, "1.37", strict=True)
        assert name


def test_the_sets_of_values_use_most_of_the_values():
    assert len(SETS) >= 4
    used = set()
    for file in SETS:
        values = yaml.safe_load(file.read_text())
        used |= {path[0] for path in leaves(values)}
    unused = set(yaml.safe_load((CHART / "values.yaml").read_text())) - used
    assert unused == {"publicUrl", "affinity", "podDisruptionBudget", "resources"}


@needs_helm
def test_the_default_is_the_base():
    objects = rendered()
    container = container_of(objects)
    documents = [
        one for one in yaml.safe_load_all((BASE / "control-plane.yaml").read_text()) if one
    ]
    (deployment,) = [one for one in documents if one["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (base,) = pod["containers"]
    assert container["args"] == base["args"]
    for key in (
        "securityContext",
        "startupProbe",
        "livenessProbe",
        "readinessProbe",
        "resources",
        "volumeMounts",
    ):
        assert container[key] == base[key], key
    own = objects["Deployment", "phalanx-system", "phalanx"]["spec"]
    assert own["template"]["spec"]["securityContext"] == pod["securityContext"]
    assert own["strategy"] == deployment["spec"]["strategy"]
    assert container["image"] == f"phalanx:{__version__}"


@needs_helm
@pytest.mark.parametrize("file", SETS, ids=lambda path: path.stem)
def test_settings_exist_and_pool_files_are_read(file, tmp_path):
    objects = rendered("-f", file)
    container = container_of(objects)
    for one in container["env"]:
        words = one["name"].split("__")
        if words[0] == "PHALANX":
            fields = Settings.model_fields[words[1].lower()].annotation.model_fields
            assert words[2].lower() in fields
            if re.search("URL$|KEY$|SECRET$", one["name"]) and "PUBLIC" not in one["name"]:
                assert "secretKeyRef" in one["valueFrom"], one["name"]
    hosts = next(one["value"] for one in container["env"] if one["name"].endswith("ALLOWED_HOSTS"))
    probe = container["readinessProbe"]["httpGet"]["httpHeaders"][0]["value"]
    assert probe in json.loads(hosts)
    pool = tmp_path / "pool.yaml"
    pool.write_text(objects["ConfigMap", "phalanx-system", "phalanx-pool"]["data"]["pool.yaml"])
    read, _ = read_pool_file(pool)
    words = container["args"]
    for cluster in read.clusters:
        assert cluster.server_url == words[words.index("--advertise") + 1]
    namespaces = {name for kind, _, name in objects if kind == "Namespace"}
    roles = {namespace for kind, namespace, _ in objects if kind == "Role"}
    assert roles == namespaces


@needs_helm
def test_rights_on_pods_of_others_can_be_left_out():
    (file,) = [one for one in SETS if "restricted" in one.name]
    role = next(one for (kind, _, _), one in rendered("-f", file).items() if kind == "ClusterRole")
    assert [one["resources"] for one in role["rules"]] == [["nodes"], ["resourceslices"]]


@needs_helm
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "replicas=2"], "replicas: more than one needs database.existingSecret"),
        (
            ["--set", "replicas=2,database.existingSecret=x,home.accessMode=ReadWriteOnce"],
            "home.accessMode: several replicas mount the home",
        ),
        (["--set", "ingress.enabled=true"], "ingress.host: an enabled Ingress needs"),
        (["--set", "login.issuer=https://id.example.com"], "login.clientId: a provider needs"),
        (["--set", "serviceMonitor.enabled=true"], "serviceMonitor: needs token.existingSecret"),
        (["--set", "replica=2"], "replica"),
    ],
)
def test_values_that_contradict_one_another_are_refused(words, message):
    done = render(*words)
    assert done.returncode != 0
    assert message in done.stderr


@needs_helm
def test_a_release_of_any_name_selects_its_own_pods():
    objects = rendered(name="second")
    deployment = objects["Deployment", "phalanx-system", "second-phalanx"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    service = objects["Service", "phalanx-system", "second-phalanx"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["selector"]["app.kubernetes.io/instance"] == "second"
    words = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "https://second-phalanx.phalanx-system.svc:7000" in words
